"""Lever: layer split. Blocks per stage by the speed of the stage's devices, for each replica on its own.

A pipeline of stages with seconds c_s per micro-batch takes about sum(c) + (m - 1) max(c). Dynamic programming over
(stage, border) keeps every split that no other beats in both sum and maximum, so the best of that form is exact for any
m; the best few are then compared by their true longest path. With few micro-batches the formula is off by some percent;
there comparing is cheap, and all splits are compared.
"""

import math
from collections.abc import Iterable
from itertools import accumulate, combinations

from layouts.layout import Layout, Replica, Stage
from services.scheduler.planning.situation import Situation

_NUM_COMPARED = 4
_EXHAUSTIVE_WORK = 800
_SLACK = 1.01
_Front = list[tuple[float, float, tuple[int, ...]]]


def _prune(points: _Front) -> _Front:
    """Points (maximum, sum, borders) that no other beats in both maximum and sum."""
    points.sort()
    kept: _Front = []
    for point in points:
        if not kept or point[1] < kept[-1][1] * (1.0 - 1e-12):
            kept.append(point)
    return kept


def _least_left(prefix: list[list[float]], cap: float) -> list[list[tuple[float, float]]]:
    """``[s][start]``: least (sum, maximum), each on its own, of blocks from ``start`` on stages from s on.

    Stages longer than ``cap`` seconds are not considered; infinite where nothing is left then.
    """
    num_stages, num_blocks = len(prefix), len(prefix[0]) - 1
    nothing = (math.inf, math.inf)
    following = [nothing] * num_blocks + [(0.0, 0.0)]
    tables = [following]
    for s in range(num_stages - 1, -1, -1):
        seconds_to = prefix[s]
        table = [nothing] * (num_blocks + 1)
        for start in range(s, num_blocks - (num_stages - s) + 1):
            least_sum = least_max = math.inf
            begin = seconds_to[start]
            for stop in range(start + 1, num_blocks + 1):
                seconds = seconds_to[stop] - begin
                if seconds > cap:
                    break
                rest_sum, rest_max = following[stop]
                if seconds + rest_sum < least_sum:
                    least_sum = seconds + rest_sum
                if rest_max < seconds:
                    rest_max = seconds
                if rest_max < least_max:
                    least_max = rest_max
            table[start] = least_sum, least_max
        tables.append(table)
        following = table
    return tables[::-1]


def _by_speed(prefix: list[list[float]], weight: int) -> float:
    """Sum + weight x max of a split by speed: a fair start for the search, whatever the split in force is."""
    num_stages, num_blocks = len(prefix), len(prefix[0]) - 1
    speeds = [num_blocks / seconds[-1] for seconds in prefix]
    borders = [0]
    for s in range(num_stages - 1):
        stop = round(num_blocks * sum(speeds[: s + 1]) / sum(speeds))
        borders.append(min(max(stop, borders[-1] + 1), num_blocks - (num_stages - s - 1)))
    borders.append(num_blocks)
    parts = [prefix[s][borders[s + 1]] - prefix[s][borders[s]] for s in range(num_stages)]
    return sum(parts) + weight * max(parts)


def _smoothest(prefix: list[list[float]], left: list[list[tuple[float, float]]], weight: int) -> float:
    """Sum + weight x max of a split with the least maximum; infinite when ``left`` was cut too short to have one."""
    num_stages, num_blocks = len(prefix), len(prefix[0]) - 1
    most, total, start = left[0][0][1], 0.0, 0
    if most == math.inf:
        return math.inf
    for s, seconds_to in enumerate(prefix):
        last_stop = num_blocks - (num_stages - s - 1)
        fitting = [
            stop
            for stop in range(start + 1, last_stop + 1)
            if seconds_to[stop] - seconds_to[start] <= most and left[s + 1][stop][1] <= most
        ]
        stop = min(fitting, key=lambda stop: seconds_to[stop] - seconds_to[start] + left[s + 1][stop][0])
        total += seconds_to[stop] - seconds_to[start]
        start = stop
    return total + weight * most


def split_candidates(stage_costs: list[list[float]], num_micro_batches: int, incumbent: float) -> list[tuple[int, ...]]:
    """Inner borders of the most promising splits, best first.

    Args:
        stage_costs: ``stage_costs[s][b]``: seconds of block b, forward and backward, on the devices of stage s.
        num_micro_batches: Weight of the slowest stage.
        incumbent: sum + (m - 1) max of a known split; worse ones are cut off.
    """
    num_stages, num_blocks = len(stage_costs), len(stage_costs[0])
    weight = max(0, num_micro_batches - 1)
    prefix = [list(accumulate(costs, initial=0.0)) for costs in stage_costs]
    limit = min(incumbent, _by_speed(prefix, weight)) * _SLACK
    left = _least_left(prefix, limit / (weight + 1))
    limit = min(limit, _smoothest(prefix, left, weight) * _SLACK)
    fronts: dict[int, _Front] = {0: [(0.0, 0.0, ())]}
    for s in range(num_stages):
        last = s == num_stages - 1
        points: dict[int, _Front] = {}
        for start, front in fronts.items():
            for stop in range(num_blocks if last else start + 1, num_blocks - (num_stages - s - 1) + 1):
                seconds = prefix[s][stop] - prefix[s][start]
                rest_sum, rest_max = left[s + 1][stop]
                if (weight + 1) * seconds > limit:
                    break
                if seconds + rest_sum + weight * max(seconds, rest_max) > limit:
                    continue
                for slowest, total, borders in front:
                    most, so_far = max(slowest, seconds), total + seconds
                    if so_far + rest_sum + weight * max(most, rest_max) <= limit:
                        points.setdefault(stop, []).append((most, so_far, borders if last else (*borders, stop)))
        fronts = {stop: _prune(found) for stop, found in points.items()}
    front = fronts.get(num_blocks, [])
    front.sort(key=lambda point: (point[1] + weight * point[0], point[2]))
    return [borders for _, _, borders in front[:_NUM_COMPARED]]


def best_split(situation: Situation, stages: tuple[Stage, ...], quota: int, schedule: str) -> tuple[Stage, ...]:
    """The stages with the split that is fastest for a quota; the given split when none is faster."""
    if len(stages) == 1:
        return stages
    cost, throughputs = situation.cost, situation.throughputs
    num_blocks = stages[-1].stop_block
    costs: list[list[float]] = []
    for stage in stages:
        speeds = tuple(throughputs[rank] for rank in stage.ranks)
        costs.append(cost.seconds_of_blocks(stage.shares, speeds))
    incumbent_parts = [sum(costs[s][stage.first_block : stage.stop_block]) for s, stage in enumerate(stages)]
    now = tuple(stage.stop_block for stage in stages[:-1])
    num_splits = math.comb(num_blocks - 1, len(stages) - 1)
    if num_splits * len(stages) * quota <= _EXHAUSTIVE_WORK:
        candidates = list(combinations(range(1, num_blocks), len(stages) - 1))
    else:
        incumbent = sum(incumbent_parts) + max(0, quota - 1) * max(incumbent_parts)
        candidates = split_candidates(costs, quota, incumbent)

    def seconds(inner: tuple[int, ...]) -> float:
        return cost.makespan(_with_borders(stages, inner), quota, throughputs, schedule)

    best, best_seconds = now, seconds(now) * (1.0 - 1e-9)
    for inner in candidates:
        if (taken := seconds(inner)) < best_seconds:
            best, best_seconds = inner, taken
    return stages if best == now else _with_borders(stages, best)


def _with_borders(stages: tuple[Stage, ...], inner: tuple[int, ...]) -> tuple[Stage, ...]:
    """The stages with other inner borders."""
    borders = (0, *inner, stages[-1].stop_block)
    return tuple(
        Stage(first_block=borders[s], stop_block=borders[s + 1], ranks=stage.ranks, shares=stage.shares)
        for s, stage in enumerate(stages)
    )


class LayerSplit:
    """Blocks per stage by the speed of the stage's devices."""

    name = "layer_split"
    structural = False

    def propose(self, situation: Situation, base: Layout) -> Iterable[Layout]:
        """``base`` with the best split in every replica."""
        yield Layout(
            num_blocks=base.num_blocks,
            schedule=base.schedule,
            standbys=base.standbys,
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
            old = [stage.num_blocks for stage in was.stages]
            new = [stage.num_blocks for stage in becomes.stages]
            if old != new:
                lines.append(f"replica {d} has {'+'.join(map(str, new))} blocks (had {'+'.join(map(str, old))})")
        return "; ".join(lines)
