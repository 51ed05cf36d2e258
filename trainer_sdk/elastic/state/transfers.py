"""Which slices move where when one layout follows another: every rank computes it alone, so nothing is negotiated."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.rank_state import StandIn
from evenkeel.trainer_sdk.elastic.model.parameters import ParameterSpec
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap, Slice
from evenkeel.trainer_sdk.groups.delivery import Move

_WORTH_A_SOURCE_ELEMENTS = 1024
"""Below about 10 KB a further source costs more than it saves."""


_Lacking = tuple[int, int, int, list[int]]
"""A rank, start and stop of what it lacks of a parameter, and who has that, ascending: those who leave only when nobody
stays."""


class MissingSliceError(ValueError):
    """Nobody who may be read holds a slice that the new layout needs; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy(Move):
    """A slice of a parameter and of its optimizer moments.

    With ``copy_of`` the source does not send what it holds itself, but what it keeps of that rank, which is gone.
    """

    copy_of: int | None = None


def plan_transfers(
    specs: Sequence[ParameterSpec],
    old: Layout,
    new: Layout,
    sources: Collection[int],
    stand_ins: Sequence[StandIn] = (),
) -> tuple[Copy, ...]:
    """The least set of copies that gives every rank of ``new`` what it must hold.

    What a source holds already is never copied to it. Several holders share a large piece, those that have sent
    least so far first. A rank that leaves is read only when nobody who stays holds the slice, because it would have to
    join the new groups for it.

    Args:
        specs: The model's parameters.
        old: Layout whose slices are read.
        new: Layout to reach.
        sources: Ranks of ``old`` that are alive and hold its slices. A rank number alone proves nothing: the
            replacement of a dead process has the number and not the slices.
        stand_ins: Copies of ranks of ``old`` that are gone; read only where nobody who stays holds the slice.

    Raises:
        MissingSliceError: Nobody alive holds a slice; nothing was copied.
    """
    before, after = OwnershipMap(specs, old), OwnershipMap(specs, new)
    readable, staying = frozenset(sources), frozenset(new.ranks)
    sent = Counter[int]()
    copies: list[Copy] = []
    # Whoever is gone counts as a rank of another number: a replacement with its own does not pass for it.
    gone = {-1 - one.owner: (one.keeper, one.owner) for one in stand_ins}
    # Thousands of ranks hold hundreds of parameters in a few ways: what is the same for a way is found once.
    lacking_in: dict[tuple[int, int], list[_Lacking]] = {}
    for spec in specs:
        from_way, to_way = before.holders(spec.name), after.holders(spec.name)
        ways = (id(from_way), id(to_way))
        if ways not in lacking_in:
            held = {rank: from_way[rank] for rank in sorted(from_way) if rank in readable}
            held |= {number: from_way[owner] for number, (_, owner) in gone.items() if owner in from_way}
            lacking_in[ways] = list(_lacking(held, to_way, staying))
        row_elements = spec.row_elements
        for rank, start, stop, able in lacking_in[ways]:
            if not able:
                raise MissingSliceError(
                    f"no rank among {sorted(readable)} holds {spec.name}[{start}:{stop}], which rank "
                    f"{rank} needs: restore it from a checkpoint, or plan a layout for a rank that holds it"
                )
            parts = max(1, min(len(able), stop - start, (stop - start) * row_elements // _WORTH_A_SOURCE_ELEMENTS))
            # Sorting keeps the order of those that have sent as much: by rank.
            chosen = [min(able, key=sent.__getitem__)] if parts == 1 else sorted(able, key=sent.__getitem__)[:parts]
            borders = [start + (stop - start) * part // parts for part in range(parts + 1)]
            for source, (a, b) in zip(chosen, pairwise(borders), strict=True):
                num_elements = (b - a) * row_elements
                sent[source] += num_elements
                keeper, owner = gone.get(source, (source, None))
                copies.append(
                    Copy(
                        name=spec.name,
                        start=a,
                        stop=b,
                        num_elements=num_elements,
                        source=keeper,
                        destination=rank,
                        copy_of=owner,
                    )
                )
    return tuple(copies)


def _lacking(held: Mapping[int, Slice], wanted: Mapping[int, Slice], staying: Collection[int]) -> Iterator[_Lacking]:
    """What each rank wants and does not hold, cut where the set of holders changes."""
    holders = {rank: one for rank, one in held.items() if one}
    borders = sorted({border for one in holders.values() for border in (one.start, one.stop)})
    able: dict[int, list[int]] = {}
    for rank, one in wanted.items():
        if not one:
            continue
        inner = borders[bisect_right(borders, one.start) : bisect_left(borders, one.stop)]
        local = holders.get(rank, Slice(0, 0))
        for a, b in pairwise((one.start, *inner, one.stop)):
            if local.start <= a and b <= local.stop:
                continue
            which = bisect_right(borders, a)
            if which not in able:
                here = [each for each, its in holders.items() if its.start <= a < its.stop]
                able[which] = [each for each in here if each in staying] or here
            yield rank, a, b, able[which]
