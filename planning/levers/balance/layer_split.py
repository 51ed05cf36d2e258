"""Lever: layer split. Blocks per stage by the speed of the stage's devices, for each replica on its own.

The few splits that can be the fastest (:mod:`evenkeel.planning.levers.balance.split_search`) are compared by their
true
longest path. With few micro-batches the form by which they are found is off by some percent; there comparing is cheap,
and all splits are compared.
"""

import math
from itertools import combinations

import numpy as np

from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.planning.costs.risks import RISK_MARGIN, crowding
from evenkeel.planning.levers.balance.split_search import split_candidates
from evenkeel.planning.levers.lever import Asked, Lever
from evenkeel.planning.pipelined.pipeline_bound import climbed, split_parts
from evenkeel.planning.situation import Situation

_EXHAUSTIVE_WORK = 2000
_EPSILON = 1e-9


def best_split(situation: Situation, stages: tuple[Stage, ...], quota: int, schedule: str) -> tuple[Stage, ...]:
    """The stages with the split that is fastest for a quota; the given split when none is faster.

    Splits that cannot be the fastest by the closed form of a pipeline's time are not looked at any closer.
    """
    if len(stages) == 1 or not quota:
        return stages
    num_blocks, cost = stages[-1].stop_block, situation.cost
    prefix = situation.seconds_to_blocks(stages)
    now = (0, *[stage.stop_block for stage in stages])
    candidates: list[tuple[int, ...]]
    if math.comb(num_blocks - 1, len(stages) - 1) * len(stages) * quota <= _EXHAUSTIVE_WORK:
        candidates = [(0, *inner, num_blocks) for inner in combinations(range(1, num_blocks), len(stages) - 1)]
    else:
        parts = split_parts(prefix, np.array(now)).tolist()
        found = split_candidates(prefix, quota, sum(parts) + max(0, quota - 1) * max(parts))
        candidates = list(map(tuple, found.tolist()))
        if schedule == "1f1b":
            start = found[0] if candidates else np.array(now)
            better = climbed(prefix, start, quota, cost.forward_part, cost.workload.transfer_seconds)[1]
            candidates = list(dict.fromkeys((tuple(better.tolist()), *candidates)))

    def least(borders: tuple[int, ...], limit: float) -> float:
        return situation.least_makespan(split_parts(prefix, np.array(borders)), quota, schedule, limit)

    best, best_seconds = stages, math.inf
    for borders in candidates:
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
    if situation.device_bytes is None:
        return max(0.0, crowding(situation, stages))
    return situation.replica_excess_bytes(Replica(stages=stages, num_micro_batches=quota), schedule)


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
