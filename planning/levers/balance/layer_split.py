"""Lever: layer split. Blocks per stage by the speed of the stage's devices, for each replica on its own.

The few splits that can be the fastest (:mod:`evenkeel.planning.levers.balance.splits`) are compared by their true
longest path. With few micro-batches the form by which they are found is off by some percent; there comparing is cheap,
and all splits are compared.
"""

import math
from itertools import combinations

import numpy as np

from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.planning.costs.risks import RISK_MARGIN, crowding
from evenkeel.planning.levers.balance.splits import Floats, climbed, parts_of, ranges_of, split_candidates
from evenkeel.planning.levers.lever import Asked, Lever
from evenkeel.planning.situation import Situation

_EXHAUSTIVE_WORK = 2000
_NUM_COMPARED = 3
_EPSILON = 1e-9


def likely_splits(situation: Situation, seconds: Floats, quota: int, schedule: str) -> list[tuple[int, ...]]:
    """Borders of the splits that can be the fastest for a quota, the outer ones included: all where there are few.

    Args:
        situation: The question.
        seconds: [stages, blocks + 1, blocks + 1] as in :mod:`evenkeel.planning.levers.balance.splits`.
        quota: Micro-batches of the replica.
        schedule: Name of the schedule.
    """
    num_stages, num_blocks = len(seconds), seconds.shape[1] - 1
    if math.comb(num_blocks - 1, num_stages - 1) * num_stages * max(1, quota) <= _EXHAUSTIVE_WORK:
        return [(0, *inner, num_blocks) for inner in combinations(range(1, num_blocks), num_stages - 1)]
    found, values = split_candidates(seconds, quota)
    order = sorted(zip(values.tolist(), map(tuple, found.tolist()), strict=True))
    best = [borders for _, borders in order[:_NUM_COMPARED]]
    if schedule == "1f1b" and best and quota:
        cost = situation.cost
        better = climbed(seconds, np.array(best[0]), quota, cost.forward_part, cost.workload.transfer_seconds)[1]
        best = list(dict.fromkeys((tuple(better.tolist()), *best)))
    return best


def best_split(situation: Situation, stages: tuple[Stage, ...], quota: int, schedule: str) -> tuple[Stage, ...]:
    """The stages with the split that is fastest for a quota; the given split when none is faster.

    Splits that cannot be the fastest by the closed form of a pipeline's time are not looked at any closer.
    """
    if len(stages) == 1 or not quota:
        return stages
    speeds, to_block = situation.speeds, situation.cost.seconds_to_block
    prefix = [to_block(stage.shares, tuple([speeds[rank] for rank in stage.ranks])) for stage in stages]
    seconds = ranges_of(np.array(prefix))
    now = (0, *[stage.stop_block for stage in stages])

    def least(borders: tuple[int, ...], limit: float) -> float:
        return situation.least_makespan(parts_of(seconds, np.array(borders)), quota, schedule, limit)

    best, best_seconds = stages, math.inf
    for borders in likely_splits(situation, seconds, quota, schedule):
        if borders == now or least(borders, best_seconds) >= best_seconds:
            continue
        shape = _with_borders(stages, borders)
        if (taken := situation.makespan(shape, quota, schedule)) < best_seconds:
            if _excess(situation, shape, quota, schedule) > _excess(situation, stages, quota, schedule):
                # A split that does not fit memory may only replace one that does not either; where memory is not
                # known, fuller devices are a risk.
                taken *= 1.0 + RISK_MARGIN
                if situation.device_bytes is not None or taken >= best_seconds:
                    continue
            best, best_seconds = shape, taken
    worth = best_seconds / (1.0 - _EPSILON)
    if worth < least(now, worth) or worth < situation.makespan(stages, quota, schedule):
        return best
    return stages


def _excess(situation: Situation, stages: tuple[Stage, ...], quota: int, schedule: str) -> float:
    """By how much a split fills the fullest device beyond what it may: bytes, or blocks where no limit is known."""
    replica = Replica(stages=stages, num_micro_batches=quota)
    return crowding(situation, stages) + situation.replica_excess_bytes(replica, schedule)


def _with_borders(stages: tuple[Stage, ...], borders: tuple[int, ...]) -> tuple[Stage, ...]:
    """The stages with other borders; a stage that stays as it is stays the same object."""
    return tuple(
        stage
        if (stage.first_block, stage.stop_block) == (borders[s], borders[s + 1])
        else Stage(first_block=borders[s], stop_block=borders[s + 1], ranks=stage.ranks, shares=stage.shares)
        for s, stage in enumerate(stages)
    )


class LayerSplit(Lever):
    """Blocks per stage by the speed of the stage's devices."""

    name = "layer_split"
    asked = Asked.TUNING, 1

    def describe(self, before: Layout, after: Layout) -> str:
        """Blocks per stage before and after, for replicas where they differ."""
        lines = []
        for d, (was, becomes) in enumerate(zip(before.replicas, after.replicas, strict=False)):
            if was.stages is becomes.stages:
                continue
            old = [stage.num_blocks for stage in was.stages]
            new = [stage.num_blocks for stage in becomes.stages]
            if old != new:
                lines.append(f"replica {d} has {'+'.join(map(str, new))} blocks (had {'+'.join(map(str, old))})")
        return "; ".join(lines)
