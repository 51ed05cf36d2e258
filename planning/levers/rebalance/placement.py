"""Lever: placement. Whole stages change places: slow links go where they carry least, weak groups where they hurt.

Two groups that do the same stage of two replicas hold the same blocks, so they change places without a byte: after that
the ends of a slow link are in different replicas, and no micro-batch goes over it. A rank all of whose links are slow
goes to an end of its pipeline, where it has one neighbour. In jobs with few stages, groups that lost speed are also put
last or first in their replica, or together in the last replicas (as NTP packs domains, arXiv 2504.06095).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from evenkeel.layouts.layout import Layout, Replica, Stage
from evenkeel.planning.costs.links import SlowLink
from evenkeel.planning.levers.lever import Asked, Lever
from evenkeel.planning.repair import places_of, repaired
from evenkeel.planning.situation import Situation

_MAX_GROUPS = 15
_MAX_PARTNERS = 2
_Place = tuple[int, int]
_Groups = Sequence[Sequence[Stage]]


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
        shape = repaired(base, situation.throughputs.keys())
        if shape is None:
            return
        for link in situation.links:
            yield from _around(shape, link)
        if num_groups <= _MAX_GROUPS:
            yield from _by_strength(situation, shape)

    def describe(self, before: Layout, after: Layout) -> str:
        """How many ranks have another place."""
        places = places_of(before)
        moved = [rank for rank, place in places_of(after).items() if places.get(rank, place) != place]
        return f"rank {', '.join(map(str, sorted(moved)))} in other places" if moved else ""


def _placed(shape: Layout, groups: _Groups) -> Layout:
    """The layout with other groups in its places; blocks and quotas stay where they are."""
    replicas = tuple(
        Replica(
            stages=tuple(
                was if was.ranks == group.ranks else replace(was, ranks=group.ranks, shares=group.shares)
                for was, group in zip(replica.stages, row, strict=True)
            ),
            num_micro_batches=replica.num_micro_batches,
        )
        for replica, row in zip(shape.replicas, groups, strict=True)
    )
    return replace(shape, replicas=replicas)


def _exchanged(shape: Layout, one: _Place, other: _Place) -> Layout:
    groups = [list(replica.stages) for replica in shape.replicas]
    (d, s), (e, t) = one, other
    groups[d][s], groups[e][t] = groups[e][t], groups[d][s]
    return _placed(shape, groups)


def _around(shape: Layout, link: SlowLink) -> Iterator[Layout]:
    """Layouts in which a pipeline no longer goes over a slow link, or over fewer of them."""
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


def _by_strength(situation: Situation, shape: Layout) -> Iterator[Layout]:
    """Groups by what they can do: strong ones first or last in their replica, and weak ones in the last replicas."""
    speeds = situation.throughputs

    def strength(group: Stage) -> float:
        return round(sum(speeds[rank] for rank in group.ranks), 6)

    rows = [list(replica.stages) for replica in shape.replicas]
    if len({strength(group) for row in rows for group in row}) == 1:
        return
    ways: list[list[list[Stage]]] = [
        [sorted(row, key=lambda group: -strength(group)) for row in rows],
        [sorted(row, key=strength) for row in rows],
    ]
    if len({len(row) for row in rows}) == 1:
        flat = sorted((group for row in rows for group in row), key=lambda group: -strength(group))
        ways.append([flat[d * len(rows[0]) : (d + 1) * len(rows[0])] for d in range(len(rows))])
    for groups in ways:
        if groups != rows:
            yield _placed(shape, groups)
