"""Traces with slow communication: victims, onsets and durations drawn at random, nodes with clocks that are apart."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from benchmarks.detection.traces.simulated_run import HARDWARE, OPERATION_NOISE_SIGMA, SimulatedRun, job_of_shape
from benchmarks.detection.traces.traces import SMALLEST_DISTANCE
from evenkeel.layouts.layout import Layout
from evenkeel.simulator.job.links import LinkConditions, SlowLinks
from evenkeel.simulator.job.noise import rank_noise, resampled_factors
from evenkeel.simulator.job.observations import NodeClock
from evenkeel.simulator.job.pipeline_run import run_pipeline

CLOCK_OFFSET_SECONDS = 5e-3
CLOCK_SKEW = 2e-5
_BYTES_PER_TOKEN = 8192
_SHORTEST_FAULT = 30


class Victim(StrEnum):
    """What is slow. COMPUTE is a slow device whose links are healthy: nobody's communication may be accused."""

    NONE = "none"
    LINK = "link"
    ENDPOINT = "endpoint"
    GROUP = "group"
    COMPUTE = "compute"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTrace(SimulatedRun):
    """One simulated run and its truth; ``fault`` is None where no link was slow."""

    fault: SlowLinks | None
    slow_device: int | None


def make_link_trace(
    seed: int, *, shape: str, victim: Victim, slowdown_percent: float, num_iterations: int = 300
) -> LinkTrace:
    """One trace.

    Args:
        seed: Same seed, same trace.
        shape: A name in ``SHAPES``.
        victim: What becomes slow.
        slowdown_percent: How much longer its transfers take, or its compute.
        num_iterations: Length of the run.
    """
    rng = np.random.default_rng(seed)
    layout, model, workload = job_of_shape(rng, shape, num_iterations)
    ranks = layout.ranks
    # A stage a node, so that activations cross, or a replica a node (4x2x2), so that gradients do.
    devices_per_node = int(rng.choice([4, 8]))
    clocks = tuple(_clock(rng) for _ in range(-(-len(ranks) // devices_per_node)))
    onset = int(rng.integers(SMALLEST_DISTANCE, num_iterations - SMALLEST_DISTANCE))
    stop = num_iterations
    if rng.random() < 0.5:
        stop = min(onset + int(rng.integers(_SHORTEST_FAULT, 101)), num_iterations)
    factor = 1.0 + slowdown_percent / 100.0
    hit = _victim_ranks(rng, layout, victim)
    fault = None
    if victim in (Victim.LINK, Victim.ENDPOINT, Victim.GROUP):
        fault = SlowLinks(ranks=hit, factor=factor, onset=onset, stop=stop)
    slowdown = resampled_factors(rng, num_iterations)[:, None] * rank_noise(
        rng, (num_iterations, len(ranks)), sigma=OPERATION_NOISE_SIGMA
    )
    if victim is Victim.COMPUTE:
        slowdown[onset:stop, ranks.index(hit[0])] *= factor
    links = LinkConditions(
        rng=rng,
        num_iterations=num_iterations,
        bytes_per_token=_BYTES_PER_TOKEN,
        faults=() if fault is None else (fault,),
        common=resampled_factors(rng, num_iterations),
    )
    times = run_pipeline(
        model=model, layout=layout, hardware=HARDWARE, workload=workload, slowdown=slowdown, links=links
    )
    return LinkTrace(
        name=f"{shape}-{victim}-{slowdown_percent:g}-{seed}",
        layout=layout,
        model=model,
        hardware=HARDWARE,
        workload=workload,
        times=times,
        devices_per_node=devices_per_node,
        clocks=clocks,
        fault=fault,
        slow_device=hit[0] if victim is Victim.COMPUTE else None,
    )


def _clock(rng: np.random.Generator) -> NodeClock:
    return NodeClock(
        offset_seconds=float(rng.uniform(-CLOCK_OFFSET_SECONDS, CLOCK_OFFSET_SECONDS)),
        skew=float(rng.uniform(-CLOCK_SKEW, CLOCK_SKEW)),
    )


def _victim_ranks(rng: np.random.Generator, layout: Layout, victim: Victim) -> tuple[int, ...]:
    """One rank, the two ends of a border between stages, or the shards of a stage."""
    replica = layout.replicas[rng.integers(len(layout.replicas))]
    if victim is Victim.GROUP:
        return replica.stages[rng.integers(len(replica.stages))].ranks
    if victim is Victim.LINK:
        s = rng.integers(len(replica.stages) - 1)
        t = rng.integers(len(replica.stages[s].ranks))
        return replica.stages[s].ranks[t], replica.stages[s + 1].ranks[t]
    return (int(rng.choice(layout.ranks)),)
