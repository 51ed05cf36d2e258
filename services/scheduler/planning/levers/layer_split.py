"""Lever: layer split. Blocks per stage by the speed of the stage's devices, for each replica on its own.

A pipeline of stages with seconds c_s per micro-batch takes about sum(c) + (m - 1) max(c). Dynamic programming over
(stage, border) keeps every split that no other beats in both sum and maximum, so the best of that form is exact for any
m; the best few are then compared by their true longest path. Which borders can matter at all follows from the best
split known so far: a stage may last no longer than that split leaves over for the slowest stage, and with that limit
few borders are left. With few micro-batches the formula is off by some percent; there comparing is cheap, and all
splits are compared.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

from layouts.layout import Layout, Replica, Stage
from services.scheduler.planning.situation import Situation

_NUM_COMPARED = 4
_EXHAUSTIVE_WORK = 800
_SLACK = 0.06
_EPSILON = 1e-9
_Front = list[tuple[float, float, tuple[int, ...]]]
_Prefixes = Sequence[list[float]]


def _prune(points: _Front) -> _Front:
    """Points (maximum, sum, borders) that no other beats in both maximum and sum."""
    if len(points) == 1:
        return points
    points.sort()
    kept: _Front = []
    for point in points:
        if not kept or point[1] < kept[-1][1] * (1.0 - 1e-12):
            kept.append(point)
    return kept


def _windows(prefix: _Prefixes, cap: float) -> list[tuple[int, int]] | None:
    """For each stage the borders [least, most] at which it may stop when no stage lasts longer than ``cap``.

    None when no split keeps to the cap.
    """
    num_stages, num_blocks = len(prefix), len(prefix[0]) - 1
    most, stop = [], 0
    for s, seconds_to in enumerate(prefix):
        start, stop = stop, min(bisect_right(seconds_to, seconds_to[stop] + cap) - 1, num_blocks - num_stages + s + 1)
        if stop == start:
            return None
        most.append(stop)
    if stop < num_blocks:
        return None
    least, start = [num_blocks], num_blocks
    for s in range(num_stages - 1, 0, -1):
        stop, start = start, max(bisect_left(prefix[s], prefix[s][start] - cap), s)
        if stop == start:
            return None
        least.append(start)
    least.reverse()
    if any(low > high for low, high in zip(least, most, strict=True)) or prefix[0][least[0]] > cap:
        return None
    return list(zip(least, most, strict=True))


def _least_maximum(prefix: _Prefixes, low: float, high: float) -> float:
    """The least cap with which a split exists, up to a thousandth, from above; ``high`` is one."""
    while high - low > 1e-3 * high:
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
    return _least_maximum(prefix, low, high) * (1.0 - 1e-3)


def _least_left(prefix: _Prefixes, windows: list[tuple[int, int]], cap: float) -> list[dict[int, tuple[float, float]]]:
    """``[s][start]``: least (sum, maximum), each on its own, of the blocks from ``start`` on stages from s on.

    Only starts from which the rest can be done within the cap are in it.
    """
    bottom = len(prefix[0]) - 1
    sums, maxima = [0.0], [0.0]
    tables = [{bottom: (0.0, 0.0)}]
    for s in range(len(prefix) - 1, -1, -1):
        seconds_to = prefix[s]
        low, high = windows[s - 1] if s else (0, 0)
        # What is left after this stage, seen from its end: its own time is then a difference to where it starts.
        totals = [to + rest for to, rest in zip(seconds_to[bottom:], sums, strict=False)]
        new_sums, new_maxima = [], []
        for start in range(low, high + 1):
            begin = seconds_to[start]
            first = max(start + 1, bottom)
            stop = min(bisect_right(seconds_to, begin + cap), bottom + len(sums))
            left = totals[first - bottom : stop - bottom]
            new_sums.append(min(left) - begin if left else math.inf)
            ends = [to - begin for to in seconds_to[first:stop]]
            new_maxima.append(min(map(max, ends, maxima[first - bottom :]), default=math.inf))
        bottom, sums, maxima = low, new_sums, new_maxima
        found = zip(range(low, high + 1), zip(sums, maxima, strict=True), strict=True)
        tables.append({start: each for start, each in found if each[0] < math.inf})
    return tables[::-1]


def _limits(
    prefix: _Prefixes, weight: int, incumbent: float
) -> tuple[float, float, list[dict[int, tuple[float, float]]]]:
    """(limit of sum + weight x max, cap of a stage, what is left from each border) that good splits keep to."""
    num_stages = len(prefix)
    distinct = list({id(seconds_to): seconds_to for seconds_to in prefix}.values())
    total = sum([min([p[b + 1] - p[b] for p in distinct]) for b in range(len(prefix[0]) - 1)])
    limit = incumbent * (1.0 + _EPSILON)
    if weight:
        # A split with nearly the least maximum, and of those the least sum, is a good one to start from.
        tight = _least_maximum(prefix, total / num_stages, (limit - total) / weight * (1.0 + _EPSILON))
        windows = _windows(prefix, tight)
        if windows is not None:
            least_sum, _ = _least_left(prefix, windows, tight)[0].get(0, (math.inf, 0.0))
            limit = min(limit, (least_sum + weight * tight) * (1.0 + _EPSILON))
    limit *= 1.0 + _SLACK / (weight + 6)  # the fewer micro-batches, the less exact the formula
    # No stage may be slower than what a split as good as the known one has left for its slowest.
    cap = (limit - total) / weight * (1.0 + _EPSILON) if weight else limit
    windows = _windows(prefix, cap)
    return limit, cap, [{}] if windows is None else _least_left(prefix, windows, cap)


def split_candidates(prefix: _Prefixes, num_micro_batches: int, incumbent: float) -> list[tuple[int, ...]]:
    """Inner borders of the most promising splits, best first.

    Args:
        prefix: ``prefix[s][b]``: seconds of blocks 0 to b - 1, forward and backward, on the devices of stage s.
        num_micro_batches: Weight of the slowest stage.
        incumbent: sum + (m - 1) max of a known split; worse ones are cut off.
    """
    num_stages, num_blocks = len(prefix), len(prefix[0]) - 1
    weight = max(0, num_micro_batches - 1)
    limit, cap, left = _limits(prefix, weight, incumbent)
    if 0 not in left[0]:
        return []
    floor = left[0][0][1]
    fronts: dict[int, _Front] = {0: [(floor, 0.0, ())]}
    for s, seconds_to in enumerate(prefix):
        last = s == num_stages - 1
        points: dict[int, _Front] = {}
        for start, front in fronts.items():
            begin = seconds_to[start]
            for stop, (rest_sum, rest_max) in left[s + 1].items():
                seconds = seconds_to[stop] - begin
                if stop <= start or seconds > cap:
                    continue
                room = limit - rest_sum - seconds
                least = max(seconds, rest_max)
                for slowest, total, borders in front:
                    if total + weight * max(slowest, least) <= room:
                        longer = borders if last else (*borders, stop)
                        points.setdefault(stop, []).append((max(slowest, seconds), total + seconds, longer))
        fronts = {stop: _prune(found) for stop, found in points.items()}
    front = fronts.get(num_blocks, [])
    front.sort(key=lambda point: (point[1] + weight * point[0], point[2]))
    return [borders for _, _, borders in front[:_NUM_COMPARED]]


def best_split(situation: Situation, stages: tuple[Stage, ...], quota: int, schedule: str) -> tuple[Stage, ...]:
    """The stages with the split that is fastest for a quota; the given split when none is faster."""
    if len(stages) == 1:
        return stages
    num_blocks, throughputs, cost = stages[-1].stop_block, situation.throughputs, situation.cost
    prefix = [cost.seconds_to_block(stage.shares, tuple([throughputs[r] for r in stage.ranks])) for stage in stages]
    now = tuple(stage.stop_block for stage in stages[:-1])
    num_splits = math.comb(num_blocks - 1, len(stages) - 1)
    if num_splits * len(stages) * quota <= _EXHAUSTIVE_WORK:
        candidates = list(combinations(range(1, num_blocks), len(stages) - 1))
    else:
        parts = [p[stage.stop_block] - p[stage.first_block] for p, stage in zip(prefix, stages, strict=True)]
        candidates = split_candidates(prefix, quota, sum(parts) + max(0, quota - 1) * max(parts))

    def seconds(shape: tuple[Stage, ...]) -> float:
        return situation.makespan(shape, quota, schedule)

    best, best_seconds = stages, seconds(stages) * (1.0 - 1e-9)
    for inner in candidates:
        if inner != now and (taken := seconds(shape := _with_borders(stages, inner))) < best_seconds:
            # A split that does not fit memory may only replace one that does not either.
            if _excess(situation, shape, quota) > _excess(situation, stages, quota):
                continue
            best, best_seconds = shape, taken
    return best


def _excess(situation: Situation, stages: tuple[Stage, ...], quota: int) -> float:
    if situation.device_bytes is None:
        return 0.0
    return situation.replica_excess_bytes(Replica(stages=stages, num_micro_batches=quota))


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
