"""What the planner gets to see, and when: detection as it really is, late, sometimes blind, never exact."""

from dataclasses import dataclass

import numpy as np

from evenkeel.simulator.fleet.faults.faults import Fault


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorModel:
    """A detector by its published or measured qualities.

    Attributes:
        stop_seconds: From a death that somebody reports, or a return, to its verdict.
        silent_seconds: From a death that nobody reports to its verdict; None = as ``stop_seconds``.
        slow_seconds: From a slowdown or its end to its verdict.
        slow_miss_probability: A slowdown that is never noticed.
        min_slowdown: Slowdowns smaller than this (1 - throughput) are never noticed.
        estimate_error: Standard deviation of estimated over true throughput of a slow device.
        link_seconds: From a slow link, or its end, to its verdict; None = links are never named.
    """

    stop_seconds: float = 2.0
    silent_seconds: float | None = None
    slow_seconds: float = 30.0
    slow_miss_probability: float = 0.0
    min_slowdown: float = 0.0
    estimate_error: float = 0.0
    link_seconds: float | None = None

    def __post_init__(self) -> None:
        silent = self.stop_seconds if self.silent_seconds is None else self.silent_seconds
        if min(self.stop_seconds, silent, self.slow_seconds, self.estimate_error, self.min_slowdown) < 0.0:
            raise ValueError("detector: seconds, errors and thresholds must be at least 0")
        if self.link_seconds is not None and self.link_seconds < 0.0:
            raise ValueError(f"link_seconds is {self.link_seconds}: it must be at least 0, or left out")
        if not 0.0 <= self.slow_miss_probability <= 1.0:
            raise ValueError(f"slow_miss_probability is {self.slow_miss_probability}: a probability is from 0 to 1")

    def notices(self, rng: np.random.Generator, throughput: float) -> bool:
        """Whether a fault is ever noticed. Death always is."""
        missed = bool(rng.random() < self.slow_miss_probability)
        return throughput <= 0.0 or (1.0 - throughput >= self.min_slowdown and not missed)

    def delay_seconds(self, fault: Fault) -> float:
        """From a fault to its verdict."""
        if fault.throughput > 0.0:
            return self.slow_seconds
        return self.stop_seconds if self.silent_seconds is None or not fault.silent else self.silent_seconds

    def return_seconds(self, fault: Fault) -> float:
        """From the end of a fault to the verdict that its devices are back."""
        return self.slow_seconds if fault.throughput > 0.0 else self.stop_seconds

    def estimate(self, rng: np.random.Generator, throughput: float) -> float:
        """Estimated throughput of a device."""
        factor = 1.0 + self.estimate_error * float(rng.standard_normal())
        return throughput if throughput <= 0.0 else min(1.0, max(0.02, throughput * factor))


_LINK_ITERATIONS = 7.0


def measured_detector(iteration_seconds: float) -> DetectorModel:
    """Our own detector as ``docs/benchmarks/detection.md`` and ``loop.md`` measured it, for a job of that iteration.

    A death that is told: verdict after 0.05 s. Silence: two iterations, at least 1.5 s. A slowdown of 5 % or more:
    found after three iterations; of 3 % every third; below that none, so 3 % is taken as the smallest. Severity is 0.25
    points off at the median, which is 0.4 % as a standard deviation. Slow links are named
    after seven iterations (p95; 4 to 5 at the median).
    """
    return DetectorModel(
        stop_seconds=0.05,
        silent_seconds=max(1.5, 2.0 * iteration_seconds),
        slow_seconds=3.0 * iteration_seconds,
        min_slowdown=0.03,
        estimate_error=0.004,
        link_seconds=_LINK_ITERATIONS * iteration_seconds,
    )
