"""Lever: placement. Whole stages change places: slow links go where they carry least, weak groups where they hurt.

Two groups that do the same stage of two replicas hold the same blocks, so they change places without a byte: after that
the ends of a slow link are in different replicas, and no micro-batch goes over it. A rank all of whose links are slow
goes to an end of its pipeline, where it has one neighbour. In jobs with few stages, groups that lost speed are also put
last or first in their replica, or together in the last replicas (as NTP packs domains, arXiv 2504.06095).
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from evenkeel.layouts.layout import Layout
from evenkeel.planning.costs.links import SlowLink
from evenkeel.planning.levers.lever import Asked, Lever
from evenkeel.planning.levers.rebalance.grid import Grid, grid_of, with_grid
from evenkeel.planning.repair import places_of, repaired
from evenkeel.planning.situation import Situation

_MAX_GROUPS = 15
_MAX_PARTNERS = 2
_Place = tuple[int, int]


class Placement(Lever):
    """Whole stages in other places."""

    name = "placement"
    asked = Asked.SHAPE, 3
    leads_on = False
    is_asked_again = True

    def propose(self, situation: Situation, base: Layout) -> Iterable[Layout]:
        """``base`` without its dead and with slow links out of the way, then with weak groups elsewhere."""
        num_groups = sum(len(replica.stages) for replica in base.replicas)
        if not situation.links and num_groups > _MAX_GROUPS:
            return
        live = situation.throughputs.keys()
        shape = repaired(base, live)
        if shape is None:
            return
        grids = [grid for link in situation.links for grid in _around(shape, link)]
        if num_groups <= _MAX_GROUPS:
            grids += _by_strength(situation, grid_of(shape))
        for grid in grids:
            yield with_grid(shape, grid, live)

    def describe(self, before: Layout, after: Layout) -> str:
        """How many ranks have another place."""
        places = places_of(before)
        moved = [rank for rank, place in places_of(after).items() if places.get(rank, place) != place]
        return f"rank {', '.join(map(str, sorted(moved)))} in other places" if moved else ""


def _exchanged(shape: Layout, one: _Place, other: _Place) -> Grid:
    grid = grid_of(shape)
    (d, s), (e, t) = one, other
    grid[d][s], grid[e][t] = grid[e][t], grid[d][s]
    return grid


def _around(shape: Layout, link: SlowLink) -> Iterator[Grid]:
    """Grids in which a pipeline no longer goes over a slow link, or over fewer of them."""
    places = places_of(shape)
    ends = [places[rank] for rank in link.ranks if rank in places]
    if len(ends) < len(link.ranks):
        return
    if len(ends) == 2 and (ends[0][0] != ends[1][0] or abs(ends[0][1] - ends[1][1]) != 1):
        return  # no pipeline goes over it
    for d, s in ends:
        last = len(shape.replicas[d].stages) - 1
        if len(ends) == 2:
            alike = [e for e, r in enumerate(shape.replicas) if e != d and len(r.stages) == last + 1]
            for e in alike[:_MAX_PARTNERS]:
                yield _exchanged(shape, (d, s), (e, s))
        for t in (0, last):
            if t != s:
                yield _exchanged(shape, (d, s), (d, t))


def _by_strength(situation: Situation, rows: list[list[tuple[int, ...]]]) -> Iterator[Grid]:
    """Groups by what they can do: strong ones first or last in their replica, and weak ones in the last replicas."""
    speeds = situation.throughputs

    def weakness(group: tuple[int, ...]) -> float:
        return round(-sum([speeds[rank] for rank in group]), 6)

    if len({weakness(group) for row in rows for group in row}) == 1:
        return
    ways = [[sorted(row, key=weakness) for row in rows], [sorted(row, key=weakness, reverse=True) for row in rows]]
    if len({len(row) for row in rows}) == 1:
        flat = sorted(chain.from_iterable(rows), key=weakness)
        ways.append([flat[d * len(rows[0]) : (d + 1) * len(rows[0])] for d in range(len(rows))])
    for grid in ways:
        if grid != rows:
            yield grid
