"""Lever: layer split. Blocks per stage by the speed of the stage's devices, for each replica on its own.

The few splits that can be the fastest (:mod:`evenkeel.planning.levers.balance.splits`), each with the widths that are
best for its blocks, are compared by their true longest path.
"""

import math
from itertools import pairwise

import numpy as np

from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.layouts.programs.schedules import live_activations
from evenkeel.planning.costs.risks import RISK_MARGIN, crowding
from evenkeel.planning.levers.balance.cuts import cuts_of
from evenkeel.planning.levers.balance.splits import likely_splits
from evenkeel.planning.levers.lever import Asked, Lever
from evenkeel.planning.situation import Situation

_BETTER = 1.0 - 1e-9


def fastest_stages(
    situation: Situation, stages: tuple[Stage, ...], quota: int, schedule: str, *, widths: bool, splits: bool
) -> tuple[Stage, ...] | None:
    """Stages of these ranks that are fastest of those that memory holds; None where none are.

    The given ones when none are faster. Splits that cannot be the fastest by the closed form of a pipeline's time are
    not looked at any closer. Where memory is not known, fuller devices are a risk.

    Args:
        situation: The question.
        stages: Who works together, in this order.
        quota: Micro-batches of the replica.
        schedule: Name of the schedule.
        widths: Whether shares may become others, and slow ranks be left out.
        splits: Whether blocks may change stages.
    """
    cost, best, best_seconds = situation.cost, None, math.inf
    if _fits(situation, stages, quota, schedule):
        best, best_seconds = stages, situation.makespan(stages, quota, schedule)
    splits &= len(stages) > 1
    if not (widths or splits):
        return best
    cuts = [
        cuts_of(situation, stage, live_activations(schedule, s, len(stages), quota), widths=widths)
        for s, stage in enumerate(stages)
    ]
    ways = [(0, *[stage.stop_block for stage in stages])]
    if splits:
        seconds = np.stack([each.seconds for each in cuts])
        ways += likely_splits(seconds, quota, cost.forward_part, cost.workload.transfer_seconds)
    parts = np.zeros((len(stages), 3))
    for way in ways:
        blocks = list(pairwise(way))
        parts[:, 1] = [each.seconds[own] for each, own in zip(cuts, blocks, strict=True)]
        if situation.least_makespan(parts, quota, schedule, best_seconds) >= best_seconds:
            continue
        shape = tuple([each.stage(stage, own) for each, stage, own in zip(cuts, stages, blocks, strict=True)])
        taken = situation.makespan(shape, quota, schedule)
        if taken < best_seconds * _BETTER and crowding(situation, shape) > crowding(situation, stages):
            taken *= 1.0 + RISK_MARGIN
        if taken < best_seconds * _BETTER and _fits(situation, shape, quota, schedule):
            best, best_seconds = shape, taken
    return best


def _fits(situation: Situation, stages: tuple[Stage, ...], quota: int, schedule: str) -> bool:
    if situation.device_bytes is None:
        return True
    return not situation.replica_excess_bytes(Replica(stages=stages, num_micro_batches=quota), schedule)


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
