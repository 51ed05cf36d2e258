"""Whether this machine kept up with the devices that it stands in for. Pure.

An emulated device sleeps until its work has lasted as long as it should. Where others want this machine's processors,
the work itself takes longer than that, and a healthy device looks slow: what was seen then says nothing about speed.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from evenkeel.demo.observed.observations import Observations
from evenkeel.demo.observed.run_log import RankSample, VerdictSeen
from evenkeel.demo.observed.truths import true_throughputs

ON_TIME = 1.05
"""Up to here speeds are found as exactly as the expectations ask for."""
_WORST_TENTH = 0.9
_STRETCH = 4
"""Iterations in a row: so many are enough for a verdict or a median, and one late iteration of them is not much."""
_TRUE_PART = 0.5
"""A verdict that says a device is slow is true when at least this part of what it says was so."""


def lateness(seen: Observations) -> float:
    """How many times as long as it should compute took on devices that nobody touched, in the worst tenth of the run.

    1.0 = on time; NaN when no iteration was seen.
    """
    touched = {truth.rank for truth in seen.truths}
    of_iterations = []
    for entry in seen.iterations:
        late = [
            sample.compute_seconds * seen.flops_per_second / sample.flops
            for sample in seen.log.samples_of(entry.iteration)
            if sample.rank not in touched and sample.flops > 0.0
        ]
        if late:
            of_iterations.append(median(late))
    if not of_iterations:
        return math.nan
    return sorted(of_iterations)[int(_WORST_TENTH * len(of_iterations))]


def lateness_during(seen: Observations, iterations: range) -> float:
    """How many times as long as it should compute took in the worst stretch of these iterations, on whichever device.

    A device that was slowed on purpose should take as long as it was told to. 1.0 = on time, or nothing was seen.
    """
    of_devices: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for iteration in iterations:
        for sample in seen.log.samples_of(iteration):
            if (due_seconds := _due_seconds(seen, sample)) is not None:
                of_devices[sample.rank].append((sample.compute_seconds, due_seconds))
    return max(
        (
            _ratio(of_device[first : first + _STRETCH])
            for of_device in of_devices.values()
            for first in range(max(len(of_device) - _STRETCH, 0) + 1)
        ),
        default=1.0,
    )


def is_true_of_the_machine(seen: Observations, verdict: VerdictSeen) -> bool:
    """Whether the devices that a verdict calls slow were held up by this machine about as much as it says."""
    if not 0.0 < verdict.throughput < 1.0:
        return False
    claimed = 1.0 / verdict.throughput - 1.0
    for culprit in verdict.culprits:
        of_device = [
            (sample.compute_seconds, due_seconds)
            for iteration in range(verdict.first_iteration, verdict.decided_iteration + 1)
            for sample in seen.log.samples_of(iteration)
            if sample.rank == culprit.rank and (due_seconds := _due_seconds(seen, sample)) is not None
        ]
        if not of_device or _ratio(of_device) - 1.0 < _TRUE_PART * claimed:
            return False
    return bool(verdict.culprits)


def _due_seconds(seen: Observations, sample: RankSample) -> float | None:
    """How long its device should have computed; None where it had nothing to do, or its speed changed meanwhile."""
    began = true_throughputs(seen.truths, seen.num_ranks, sample.started_at)[sample.rank]
    ended = true_throughputs(seen.truths, seen.num_ranks, sample.ended_at)[sample.rank]
    if began != ended or began <= 0.0 or sample.flops <= 0.0:
        return None
    return sample.flops / (seen.flops_per_second * began)


def _ratio(spans: Sequence[tuple[float, float]]) -> float:
    return sum(taken for taken, _ in spans) / sum(due for _, due in spans)
