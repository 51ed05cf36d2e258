"""Traces with known truth: shapes, faults, victims and onsets drawn at random, lengths and noise from real data."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from benchmarks.detection.traces.simulated_run import HARDWARE, OPERATION_NOISE_SIGMA, SimulatedRun, job_of_shape
from evenkeel.simulator.job.noise import rank_noise, resampled_factors
from evenkeel.simulator.job.pipeline_run import run_pipeline
from evenkeel.simulator.job.signals import Signals

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
class Trace(SimulatedRun):
    """One simulated run and its truth.

    Attributes:
        slowdown: Factor on each rank's compute in each iteration, noise included.
        signals: What is reported beside times; None = only times.
    """

    faults: tuple[Fault, ...]
    slowdown: NDArray[np.float64]
    signals: Signals | None = None

    def true_throughput(self, iteration: int) -> NDArray[np.float64]:
        """True throughput of every rank in an iteration, ranks ascending: what a probe would find."""
        truth = np.ones(len(self.times.ranks))
        for fault in self.faults:
            if fault.onset <= iteration < fault.stop:
                truth[[self.times.ranks.index(rank) for rank in fault.ranks]] = fault.throughput
        return truth


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
    layout, model, workload = job_of_shape(rng, shape, num_iterations, tail=tail)
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
    times = run_pipeline(model=model, layout=layout, hardware=HARDWARE, workload=workload, slowdown=slowdown)
    return Trace(
        name=f"{shape}-{scenario}-{slowdown_percent:g}-{seed}",
        layout=layout,
        model=model,
        hardware=HARDWARE,
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
