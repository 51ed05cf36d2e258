"""Lever: layer split. Blocks per stage by the speed of the stage's devices, for each replica on its own.

A pipeline of stages with seconds c_s per micro-batch takes about sum(c) + (m - 1) max(c). For a cap on the maximum,
dynamic programming over (stage, border) finds the least sum; lowering the cap from one such split to the next finds
all that no other beats in both, so the best of that form is exact for any m; the best few are then compared by their
true longest path. Which borders can matter at all follows from the best split known so far: a stage may last no longer
than that split leaves over for the slowest stage, and with that cap few borders are left. With few micro-batches the
formula is off by some percent; there comparing is cheap, and all splits are compared.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

from layouts.layout import Layout, Replica, Stage
from services.scheduler.planning.situation import RISK_MARGIN, Situation
from services.scheduler.planning.split_climb import climbed, parts_of

_NUM_COMPARED = 3
_EXHAUSTIVE_WORK = 2000
_SLACK = 0.3
_EPSILON = 1e-9
_TIGHT = 0.01
_Prefixes = Sequence[list[float]]


def _windows(prefix: _Prefixes, cap: float) -> list[tuple[int, int]] | None:
    """For each stage borders [least, most] out of which it does not stop when no stage lasts longer than ``cap``.

    None only when no split keeps to the cap. A block that alone lasts longer on some stage can leave a window with
    borders at which nothing fits.
    """
    num_stages, num_blocks = len(prefix), len(prefix[0]) - 1
    most, stop = [], 0
    for s, seconds_to in enumerate(prefix):
        start, last = stop, num_blocks - num_stages + s + 1
        while (stop := min(bisect_right(seconds_to, seconds_to[start] + cap) - 1, last)) <= start:
            if start <= s:
                return None
            start -= 1
        most.append(stop)
    if stop < num_blocks:
        return None
    least, start = [num_blocks], num_blocks
    for s in range(num_stages - 1, 0, -1):
        stop, seconds_to = start, prefix[s]
        while (start := max(bisect_left(seconds_to, seconds_to[stop] - cap), s)) >= stop:
            if stop >= num_blocks - num_stages + s + 1:
                return None
            stop += 1
        least.append(start)
    least.reverse()
    if any(low > high for low, high in zip(least, most, strict=True)) or prefix[0][least[0]] > cap:
        return None
    return list(zip(least, most, strict=True))


def _least_maximum(prefix: _Prefixes, low: float, high: float, tolerance: float) -> float:
    """The least cap with which a split may exist, up to a relative tolerance, from above; ``high`` is one."""
    while high - low > tolerance * high:
        middle = 0.5 * (low + high)
        if _windows(prefix, middle) is None:
            low = middle
        else:
            high = middle
    return high


def least_slowest(prefix: _Prefixes) -> float:
    """Seconds of the slowest stage that no split gets below by more than a thousandth, from below."""
    high = max([seconds_to[-1] for seconds_to in prefix])
    low = 1.0 / sum([1.0 / seconds_to[-1] for seconds_to in prefix])
    return _least_maximum(prefix, low, high, 1e-3) * (1.0 - 1e-3)


def _least_sum(prefix: _Prefixes, cap: float) -> tuple[float, tuple[int, ...]] | None:
    """The split of least sum in which no stage lasts longer than ``cap``: (sum, inner borders); None when none does."""
    windows = _windows(prefix, cap)
    if windows is None:
        return None
    bottom, sums = len(prefix[0]) - 1, [0.0]
    rows: list[tuple[int, list[float]]] = []
    for s in range(len(prefix) - 1, -1, -1):
        seconds_to = prefix[s]
        low, high = windows[s - 1] if s else (0, 0)
        # What is left after this stage, seen from its end: its own time is then a difference to where it starts.
        totals = [to + rest for to, rest in zip(seconds_to[bottom:], sums, strict=False)]
        rows.append((bottom, totals))
        least = []
        for start in range(low, high + 1):
            begin = seconds_to[start]
            first = start + 1 if start >= bottom else bottom
            left = totals[first - bottom : bisect_right(seconds_to, begin + cap) - bottom]
            least.append(min(left) - begin if left else math.inf)
        bottom, sums = low, least
    if sums[0] == math.inf:
        return None
    borders, start = [], 0
    for seconds_to, (bottom, totals) in zip(prefix[:-1], rows[:0:-1], strict=True):
        first = max(start + 1, bottom)
        left = totals[first - bottom : bisect_right(seconds_to, seconds_to[start] + cap) - bottom]
        start = first + left.index(min(left))
        borders.append(start)
    return sums[0], tuple(borders)


def _slowest(prefix: _Prefixes, inner: tuple[int, ...]) -> float:
    """Seconds of the slowest stage of a split."""
    return max(parts_of(prefix, (0, *inner, len(prefix[0]) - 1)))


def split_candidates(prefix: _Prefixes, num_micro_batches: int, incumbent: float) -> list[tuple[int, ...]]:
    """Inner borders of the most promising splits, best first.

    A split that no other beats in both sum and maximum is the one of least sum under some cap on the maximum. They are
    found one after the other by lowering the cap: below the maximum of the split before, and to what a split as good as
    the best one has left for its slowest stage, whose sum can be no less than that of the split before.

    Args:
        prefix: ``prefix[s][b]``: seconds of blocks 0 to b - 1, forward and backward, on the devices of stage s.
        num_micro_batches: Weight of the slowest stage.
        incumbent: sum + (m - 1) max of a known split; worse ones are cut off.
    """
    weight = max(0, num_micro_batches - 1)
    distinct = list({id(seconds_to): seconds_to for seconds_to in prefix}.values())
    least = sum([min([p[b + 1] - p[b] for p in distinct]) for b in range(len(prefix[0]) - 1)])
    best = incumbent * (1.0 + _EPSILON)
    slack = (1.0 + _EPSILON) * (1.0 + _SLACK / (weight + 6))  # the fewer micro-batches, the less exact the formula
    cap = math.inf if not weight else (best * slack - least) / weight * (1.0 + _EPSILON)
    if weight:
        # A split with nearly the least maximum is a good one to start from.
        tight = _least_maximum(prefix, least / len(prefix), (best - least) / weight * (1.0 + _EPSILON), _TIGHT)
        found = _least_sum(prefix, tight)
        if found is not None:
            best = min(best, found[0] + weight * tight)
            cap = (best * slack - least) / weight * (1.0 + _EPSILON)
    points: list[tuple[float, tuple[int, ...]]] = []
    while (found := _least_sum(prefix, cap)) is not None:
        total, inner = found
        slowest = _slowest(prefix, inner)
        points.append((total + weight * slowest, inner))
        if not weight:
            break
        best = min(best, points[-1][0])
        cap = min(slowest * (1.0 - _EPSILON), (best * slack - total) / weight)
    points = sorted([point for point in points if point[0] <= best * slack])
    return [inner for _, inner in points[:_NUM_COMPARED]]


def best_split(situation: Situation, stages: tuple[Stage, ...], quota: int, schedule: str) -> tuple[Stage, ...]:
    """The stages with the split that is fastest for a quota; the given split when none is faster.

    Splits that cannot be the fastest by the closed form of a pipeline's time are not looked at any closer.
    """
    if len(stages) == 1 or not quota:
        return stages
    num_blocks, cost = stages[-1].stop_block, situation.cost
    prefix = situation.seconds_to_blocks(stages)
    now = tuple(stage.stop_block for stage in stages[:-1])
    num_splits = math.comb(num_blocks - 1, len(stages) - 1)
    if num_splits * len(stages) * quota <= _EXHAUSTIVE_WORK:
        candidates = list(combinations(range(1, num_blocks), len(stages) - 1))
    else:
        parts = parts_of(prefix, (0, *now, num_blocks))
        candidates = split_candidates(prefix, quota, sum(parts) + max(0, quota - 1) * max(parts))
        if schedule == "1f1b" and quota:
            start = candidates[0] if candidates else now
            _, better = climbed(prefix, start, cost.forward_part, quota, cost.workload.transfer_seconds)
            candidates = list(dict.fromkeys((better, *candidates)))

    def least(inner: tuple[int, ...], limit: float) -> float:
        return situation.least_makespan(parts_of(prefix, (0, *inner, num_blocks)), quota, schedule, limit)

    best, best_seconds = stages, math.inf
    for inner in candidates:
        if inner == now or least(inner, best_seconds) >= best_seconds:
            continue
        shape = _with_borders(stages, inner)
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
        return max(0.0, situation.crowding(stages))
    return situation.replica_excess_bytes(Replica(stages=stages, num_micro_batches=quota), schedule)


def _with_borders(stages: tuple[Stage, ...], inner: tuple[int, ...]) -> tuple[Stage, ...]:
    """The stages with other inner borders; a stage that stays as it is stays the same object."""
    borders = (0, *inner, stages[-1].stop_block)
    return tuple(
        stage
        if (stage.first_block, stage.stop_block) == (borders[s], borders[s + 1])
        else Stage(first_block=borders[s], stop_block=borders[s + 1], ranks=stage.ranks, shares=stage.shares)
        for s, stage in enumerate(stages)
    )


class LayerSplit:
    """Blocks per stage by the speed of the stage's devices."""

    name = "layer_split"
    structural = False

    def propose(self, situation: Situation, base: Layout) -> Iterable[Layout]:
        """``base`` with the best split in every replica."""
        yield replace(
            base,
            replicas=tuple(
                Replica(
                    stages=best_split(situation, replica.stages, replica.num_micro_batches, base.schedule),
                    num_micro_batches=replica.num_micro_batches,
                )
                for replica in base.replicas
            ),
        )

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
