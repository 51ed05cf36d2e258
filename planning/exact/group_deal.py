"""Devices dealt to replicas: of all ways the one that is judged fastest, where it is known what each replica takes."""

import math

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled
from evenkeel.planning.levers.balance.splits import Floats, Integers

_CLOSER = 1.0 - 1e-9


@compiled
def best_deal(
    seconds: Floats,
    contains: npt.NDArray[np.bool_],
    num_micro_batches: int,
    most_replicas: int,
    risk_margin: float,
    fixed_seconds: Floats,
    limit: float,
) -> tuple[float, Integers]:
    """Judged seconds of the fastest deal below a limit, and what it is; the limit where there is none.

    As long as some deal is faster than the best one so far, that is the best one: what each group does in time is one
    number then, and groups are added up.

    Args:
        seconds: [groups, risks, quota] of the fastest pipeline, infinite where there is none; 0 for a quota of 0
            where a replica may be idle.
        contains: [groups, groups] whether the devices of the second are among those of the first.
        num_micro_batches: Of an iteration.
        most_replicas: Each less is a risk.
        risk_margin: How much slower a layout is judged for each risk, relatively.
        fixed_seconds: [replicas + 1] of an iteration of so many replicas.
        limit: Judged seconds.

    Returns:
        Judged seconds, and [replicas, 3] group, risks and quota of each replica.
    """
    best = np.zeros((0, 3), np.int64)
    while True:
        found = best
        for count in range(most_replicas, 0, -1):
            for risks in range(seconds.shape[1]):
                factor = 1.0 + risk_margin * (most_replicas - count + risks)
                within = limit * _CLOSER / factor - fixed_seconds[count]
                deal = _deal_within(seconds, contains, num_micro_batches, count, risks, within)
                if len(deal):
                    slowest = 0.0
                    for number in range(count):
                        slowest = max(slowest, seconds[deal[number, 0], deal[number, 1], deal[number, 2]])
                    found, limit = deal, min(limit, factor * (slowest + fixed_seconds[count]))
        if found is best:
            return limit, best
        best = found


@compiled
def _deal_within(
    seconds: Floats, contains: npt.NDArray[np.bool_], num_micro_batches: int, count: int, num_risks: int, within: float
) -> Integers:
    """[replicas, 3] group, risks and quota of so many replicas that do an iteration in time; empty when none do."""
    num_groups = len(seconds)
    able = np.full((num_groups, num_risks + 1), -1)
    useful, num_useful = np.empty(num_groups, np.int64), 0
    for group in range(1, num_groups):
        for risks in range(num_risks + 1):
            quota = num_micro_batches
            while quota >= 0 and seconds[group, risks, quota] > within:
                quota -= 1
            able[group, risks] = quota
        if able[group].max() >= 0:
            useful[num_useful] = group
            num_useful += 1
    # Of each rest after so many replicas: how much these do, and which the last of them is.
    done = np.full((count + 1, num_groups, num_risks + 1), -1)
    last = np.zeros((count + 1, num_groups, num_risks + 1, 2), np.int64)
    done[0, num_groups - 1, num_risks] = 0
    for number in range(count):
        for rest in range(num_groups - 1, 0, -1):
            for left in range(num_risks + 1):
                so_far = done[number, rest, left]
                if so_far < 0:
                    continue
                for group in useful[:num_useful]:
                    for own in range(left + 1 if contains[rest, group] else 0):
                        both = so_far + able[group, own]
                        if able[group, own] >= 0 and both > done[number + 1, rest - group, left - own]:
                            done[number + 1, rest - group, left - own] = both
                            last[number + 1, rest - group, left - own, 0] = group
                            last[number + 1, rest - group, left - own, 1] = own
    rest, left = 0, 0
    most = -1
    for other in range(num_groups):
        for more in range(num_risks + 1):
            if done[count, other, more] > most:
                most, rest, left = done[count, other, more], other, more
    if most < num_micro_batches:
        return np.zeros((0, 3), np.int64)
    deal, excess = np.zeros((count, 3), np.int64), most - num_micro_batches
    for number in range(count, 0, -1):
        group, own = last[number, rest, left, 0], last[number, rest, left, 1]
        quota = able[group, own]
        while excess and quota > 1 and seconds[group, own, quota - 1] < math.inf:
            quota, excess = quota - 1, excess - 1
        deal[number - 1, 0], deal[number - 1, 1], deal[number - 1, 2] = group, own, quota
        rest, left = rest + group, left + own
    return deal
