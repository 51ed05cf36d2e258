"""Synchronous restart: the whole job stops for every death and starts again with a replacement.

Source: the baseline of FT-HSDP (arXiv 2602.00277): every failure of a synchronous job costs a restart of everything,
of which building communicators alone is 17 s with 16 K devices and 200 s with 98 K; recovery takes about 200, 300, 600
and 600 s (warm) with 16 K, 22 K, 64 K and 98 K devices, so effective time at 18 min between failures is (18 - 10) / 18
= 44 %. Deviations: between the published sizes the time is interpolated (logarithmically), below them it is that of
``costs.restart_seconds``; the part of that time that passes until the replacement is there is
``costs.replacement_seconds``; the work since the last checkpoint is not
lost, as in the published estimate.
"""

import math
from itertools import pairwise

from evenkeel.simulator.fleet.operation.operation import operation_of
from evenkeel.simulator.fleet.strategy import Answer, Question

PUBLISHED_SECONDS = ((16_384, 200.0), (22_528, 300.0), (65_536, 600.0), (98_304, 600.0))


def recovery_seconds(num_devices: int, smallest_seconds: float) -> float:
    """Restart of a synchronous job: published by size, interpolated between.

    >>> recovery_seconds(98_304, 180.0)
    600.0
    """
    points = [(64, min(smallest_seconds, PUBLISHED_SECONDS[0][1])), *PUBLISHED_SECONDS]
    if num_devices <= points[0][0]:
        return points[0][1]
    for (small, less), (large, more) in pairwise(points):
        if num_devices <= large:
            part = math.log(num_devices / small) / math.log(large / small)
            return less + part * (more - less)
    return points[-1][1]


class SynchronousRestart:
    """Everybody or nobody."""

    name = "synchronous restart"

    def answer(self, question: Question) -> Answer:
        """The full shape, once everybody is back and what is left of the restart is over."""
        if not set(question.home.ranks) <= question.throughputs.keys():
            return Answer(operation=None, reruns_iteration=False)
        if question.current is not None:
            return Answer(operation=question.current)
        total = recovery_seconds(len(question.home.ranks), question.costs.restart_seconds)
        pause = max(0.0, total - question.costs.replacement_seconds)
        return Answer(operation=operation_of(question.home), pause_seconds=pause, reruns_iteration=False)
