"""Lever: pair stages. What lives is put together within its domain, and stages change replicas until these are alike.

With few micro-batches each, quotas cannot follow the speeds of replicas: 8 of them over speeds of 7 and 5 are 5 and 3
or 4 and 4, both far from even, where two replicas of speed 6 lose nothing. So stages of the same place in the pipeline
change places between the slowest replica and the fastest. And heads are whole: 28 of them on two stages of
three devices take as long as on 2.8 each, on four and two they lose nothing; so ranks change between two broken stages
of one domain where that fits better. No tensor group comes to span two domains, and a stage that changes its replica
keeps its blocks, so little moves. Where quotas are fine, gathering the loss is better (``move_ranks``), and this lever
proposes nothing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from evenkeel.layouts.layout import Layout
from evenkeel.planning.levers.lever import Asked, Lever
from evenkeel.planning.levers.rebalance.grid import with_grid
from evenkeel.planning.situation import Situation

COARSE_QUOTA = 8
"""Micro-batches of a replica up to which rounding them costs more (6 % and up) than what gathering the loss wins."""

_ILL = 0.03
"""What a stage misses, in devices, before it counts."""

_Shape = list[list[list[int]]]
"""Ranks of each stage of each replica; none where nobody is left."""


def dealt(cells: Sequence[Sequence[float]]) -> list[list[int]]:
    """For each replica and place the replica whose stage comes there: as few changes as it takes.

    The slowest and the fastest replica exchange the stages that bring them closest, as long as that helps the slower.

    Args:
        cells: ``cells[d][s]``, speed of the stage at place s of replica d; 0 = nobody is left.

    >>> dealt([[4.0, 3.0], [3.0, 2.0]])
    [[1, 0], [0, 1]]
    """
    rows = [list(row) for row in cells]
    found = [[d] * len(row) for d, row in enumerate(cells)]
    totals = [sum(row) for row in rows]
    for _ in range(sum(map(len, rows))):
        slow, fast = totals.index(min(totals)), totals.index(max(totals))
        most, s = max(
            (min(totals[slow] + gain, totals[fast] - gain), -s)
            for s, gain in enumerate(f - p for p, f in zip(rows[slow], rows[fast], strict=True))
        )
        s = -s
        if most <= totals[slow] + _ILL:
            break
        rows[slow][s], rows[fast][s] = rows[fast][s], rows[slow][s]
        found[slow][s], found[fast][s] = found[fast][s], found[slow][s]
        totals[slow], totals[fast] = sum(rows[slow]), sum(rows[fast])
    return found


def _speeds(shape: _Shape, speeds: Mapping[int, float]) -> list[list[float]]:
    return [[sum([min(1.0, speeds[rank]) for rank in ranks]) for ranks in row] for row in shape]


def _paired(shape: _Shape, cells: Sequence[Sequence[float]]) -> _Shape:
    return [[shape[source][s] for s, source in enumerate(row)] for row in dealt(cells)]


def _filled(alive: _Shape, full: Sequence[Sequence[int]], situation: Situation) -> _Shape:
    """Broken stages of a domain, two by two, with as many of both in the one as it has places, if heads fit better."""
    width = max(situation.cost.model.blocks, key=lambda block: block.forward_flops_per_token).max_width

    def fit(count: int) -> float:
        return width / math.ceil(width / count) if count else 0.0

    found = [[list(ranks) for ranks in row] for row in alive]
    open_cells: dict[int | str, tuple[int, int]] = {}
    for d, row in enumerate(found):
        for s, ranks in enumerate(row):
            if not ranks or len(ranks) == full[d][s]:
                continue
            where = situation.domain(ranks[0])
            other = open_cells.pop(where, None)
            if other is None:
                open_cells[where] = d, s
                continue
            e, t = other
            both = [*found[e][t], *ranks]
            most = min(full[e][t], len(both))
            if fit(most) + fit(len(both) - most) > fit(len(found[e][t])) + fit(len(ranks)) + 1e-9:
                found[e][t], found[d][s] = both[:most], both[most:]
    return found


class PairStages(Lever):
    """Ranks and whole stages exchanged, so that little is lost to whole heads and whole micro-batches."""

    name = "pair_stages"
    asked = Asked.SHAPE, 2

    def propose(self, situation: Situation, base: Layout) -> Iterable[Layout]:
        """The full shape as far as it lives, put together anew; nothing where quotas are fine."""
        home, speeds = situation.home, situation.throughputs
        if (
            home.num_micro_batches > COARSE_QUOTA * len(home.replicas)
            or len({len(r.stages) for r in home.replicas}) > 1
        ):
            return
        full = [[len(stage.ranks) for stage in replica.stages] for replica in home.replicas]
        alive = [[[r for r in stage.ranks if r in speeds] for stage in replica.stages] for replica in home.replicas]
        pairs = zip(chain.from_iterable(_speeds(alive, speeds)), chain.from_iterable(full), strict=True)
        if sum([speed < most - _ILL for speed, most in pairs]) < 2:
            return
        filled = _filled(alive, full, situation)
        proposed = [alive]
        for shape in (filled, alive):
            for each in (_paired(shape, _speeds(shape, speeds)), shape):
                if each not in proposed and all(any(row) for row in each):
                    proposed.append(each)
                    yield with_grid(home, each, speeds.keys())

    def describe(self, before: Layout, after: Layout) -> str:
        """Stages that work in another replica."""
        home = {rank: d for d, replica in enumerate(before.replicas) for rank in replica.ranks}
        lines = []
        for d, replica in enumerate(after.replicas):
            for s, stage in enumerate(replica.stages):
                source = home.get(stage.ranks[0], d)
                if source != d:
                    lines.append(f"stage {s} of replica {d} comes from replica {source}")
        return "; ".join(lines)
