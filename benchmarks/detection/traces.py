"""Traces with known truth: shapes, faults, victims and onsets drawn at random, lengths and noise from real data."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from numpy.typing import NDArray

from layouts.layout import Layout, uniform_layout
from layouts.model import BlockCost, ModelSpec
from simulator.hardware import Hardware
from simulator.noise import rank_noise, resampled_factors
from simulator.observations import observations
from simulator.pipeline_run import RankTimes, run_pipeline
from simulator.signals import Signals
from simulator.workload import Workload, packed_workload

SHAPES = {"4x2x2": (4, 2, 2), "4x2x4": (4, 2, 4), "4x2x8": (4, 2, 8), "4x4x16": (4, 4, 16)}
"""(TP, DP, PP) by name, as in ResiHP's evaluation."""

LAYERS_PER_STAGE = 4
HIDDEN = 4096
TOKEN_BUDGET = 32_768
DEVICE_FLOPS_PER_SECOND = 150e12
OPERATION_NOISE_SIGMA = 0.004


SMALLEST_DISTANCE = 50
"""Iterations between a persistent fault's onset and either end of the trace, as in ResiHP's protocol."""

DRIFT_OF_JOB = 0.1
DRIFT_OF_DEVICE = 0.01


class Scenario(StrEnum):
    """What happens to the victims, and to everybody."""

    PERSISTENT = "persistent"
    TEMPORARY = "temporary"
    TWO_VICTIMS = "two_victims"
    DRIFT = "drift"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What truly happens: ``ranks`` compute at ``throughput`` during iterations ``[onset, stop)``."""

    ranks: tuple[int, ...]
    throughput: float
    onset: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One simulated run and its truth.

    Attributes:
        slowdown: Factor on each rank's compute in each iteration, noise included.
        signals: What is reported beside times; None = only times.
    """

    name: str
    layout: Layout
    model: ModelSpec
    hardware: Hardware
    workload: Workload
    times: RankTimes
    faults: tuple[Fault, ...]
    slowdown: NDArray[np.float64]
    signals: Signals | None = None

    @property
    def num_iterations(self) -> int:
        """Iterations of the run."""
        return int(self.times.wall.shape[0])

    def observations(self) -> Iterator[pb.Observation]:
        """What the detector would read."""
        return observations(
            job_id=self.name,
            model=self.model,
            layout=self.layout,
            hardware=self.hardware,
            workload=self.workload,
            times=self.times,
        )

    def true_throughput(self, iteration: int) -> NDArray[np.float64]:
        """True throughput of every rank in an iteration, ranks ascending: what a probe would find."""
        truth = np.ones(len(self.times.ranks))
        for fault in self.faults:
            if fault.onset <= iteration < fault.stop:
                truth[[self.times.ranks.index(rank) for rank in fault.ranks]] = fault.throughput
        return truth


def transformer(num_layers: int, hidden: int = HIDDEN) -> ModelSpec:
    """A GPT-like model: attention costs ``4 * hidden`` operations per squared length, halved by the causal mask."""
    layer = BlockCost(
        forward_flops_per_token=24.0 * hidden**2,
        forward_flops_per_squared_length=2.0 * hidden,
        max_width=32,
    )
    return ModelSpec(blocks=(layer,) * num_layers)


def make_trace(
    seed: int,
    *,
    shape: str,
    num_iterations: int = 300,
    slowdown_percent: float = 0.0,
    scenario: Scenario = Scenario.PERSISTENT,
    noise_sigma: float = OPERATION_NOISE_SIGMA,
    tail: float = 1.5,
) -> Trace:
    """One trace.

    Args:
        seed: Same seed, same trace.
        shape: A name in ``SHAPES``.
        num_iterations: Length of the run.
        slowdown_percent: The victim's compute takes so much longer; 0 = healthy run.
        scenario: Faults last to the end, or 10 to 100 iterations when temporary; two victims each have their own onset;
            drift slows the whole job by up to a tenth and each device by up to a hundredth over the run.
        noise_sigma: Robust width of one rank's noise in one iteration; its tails are Student's with 4 degrees.
        tail: Spread of document lengths; see ``packed_workload``.
    """
    rng = np.random.default_rng(seed)
    tensor, data, pipeline = SHAPES[shape]
    num_micro_batches = data * 2 * pipeline
    layout = uniform_layout(
        num_blocks=LAYERS_PER_STAGE * pipeline,
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        num_micro_batches=num_micro_batches,
    )
    model = transformer(layout.num_blocks)
    workload = packed_workload(
        rng,
        num_iterations=num_iterations,
        num_micro_batches=num_micro_batches,
        token_budget=TOKEN_BUDGET,
        length_scale=16.0,
        tail=tail,
    )
    ranks = layout.ranks
    faults = _faults(rng, ranks, num_iterations, slowdown_percent, scenario)
    slowdown = resampled_factors(rng, num_iterations)[:, None] * rank_noise(
        rng, (num_iterations, len(ranks)), sigma=noise_sigma
    )
    if scenario is Scenario.DRIFT:
        progress = np.linspace(0.0, 1.0, num_iterations)[:, None]
        own = rng.uniform(-DRIFT_OF_DEVICE, DRIFT_OF_DEVICE, len(ranks))
        slowdown *= 1.0 + progress * (rng.uniform(0.0, DRIFT_OF_JOB) + own)
    for fault in faults:
        slowdown[fault.onset : fault.stop, [ranks.index(rank) for rank in fault.ranks]] /= fault.throughput
    hardware = Hardware(
        seconds_per_flop=1.0 / DEVICE_FLOPS_PER_SECOND,
        tensor_seconds=1e-3,
        transfer_seconds=1e-3,
        exchange_seconds=0.2,
        optimizer_seconds=0.05,
    )
    times = run_pipeline(model=model, layout=layout, hardware=hardware, workload=workload, slowdown=slowdown)
    return Trace(
        name=f"{shape}-{scenario}-{slowdown_percent:g}-{seed}",
        layout=layout,
        model=model,
        hardware=hardware,
        workload=workload,
        times=times,
        faults=tuple(faults),
        slowdown=slowdown,
    )


def _faults(
    rng: np.random.Generator, ranks: tuple[int, ...], num_iterations: int, slowdown_percent: float, scenario: Scenario
) -> tuple[Fault, ...]:
    if slowdown_percent <= 0:
        return ()
    faults = []
    for victim in rng.choice(len(ranks), size=1 + (scenario is Scenario.TWO_VICTIMS), replace=False):
        onset = int(rng.integers(SMALLEST_DISTANCE, num_iterations - SMALLEST_DISTANCE))
        stop = num_iterations
        if scenario is Scenario.TEMPORARY:
            stop = min(onset + int(rng.integers(10, 101)), num_iterations)
        throughput = 1.0 / (1.0 + slowdown_percent / 100.0)
        faults.append(Fault(ranks=(ranks[victim],), throughput=throughput, onset=onset, stop=stop))
    return tuple(faults)
