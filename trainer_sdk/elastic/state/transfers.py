"""Which slices move where when one layout follows another: every rank computes it alone, so nothing is negotiated."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.rank_state import StandIn
from evenkeel.trainer_sdk.elastic.model.parameters import ParameterSpec
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap, Slice
from evenkeel.trainer_sdk.groups.delivery import Move

_WORTH_A_SOURCE_ELEMENTS = 1024
"""Below about 10 KB a further source costs more than it saves."""


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
    held_in: dict[int, _Held] = {}
    lacking_in: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for spec in specs:
        from_way, to_way = before.holders(spec.name), after.holders(spec.name)
        ways = (id(from_way), id(to_way))
        if ways not in lacking_in:
            held_in.setdefault(ways[0], _Held(from_way, readable, staying, gone))
            lacking_in[ways] = [
                (rank, start, stop)
                for rank, wanted in to_way.items()
                for start, stop in held_in[ways[0]].lacking(rank, wanted)
            ]
        held, row_elements = held_in[ways[0]], spec.row_elements
        for rank, start, stop in lacking_in[ways]:
            able = held.able(start)
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


class _Held:
    """Who may be read for what of the parameters that are held in one way; ``gone`` has keeper and owner by number."""

    def __init__(
        self,
        holders: Mapping[int, Slice],
        readable: Collection[int],
        staying: Collection[int],
        gone: Mapping[int, tuple[int, int]],
    ) -> None:
        held = {rank: holders[rank] for rank in sorted(holders) if rank in readable}
        held |= {number: holders[owner] for number, (_, owner) in gone.items() if owner in holders}
        self._held = {rank: one for rank, one in held.items() if len(one)}
        self._staying = staying
        self._borders = sorted({border for held in self._held.values() for border in (held.start, held.stop)})
        self._able: dict[int, list[int]] = {}

    def lacking(self, rank: int, wanted: Slice) -> list[tuple[int, int]]:
        """The parts of a slice outside what its rank has, cut where the set of holders changes."""
        start, stop = wanted.start, wanted.stop
        if start >= stop:
            return []
        inner = self._borders[bisect_right(self._borders, start) : bisect_left(self._borders, stop)]
        pieces, local = pairwise((start, *inner, stop)), self._held.get(rank, Slice(0, 0))
        return [(a, b) for a, b in pieces if not (local.start <= a and b <= local.stop)]

    def able(self, start: int) -> list[int]:
        """Who holds the piece that begins at ``start``, ascending; those who leave only when nobody stays."""
        which = bisect_right(self._borders, start)
        if which not in self._able:
            holders = [rank for rank, held in self._held.items() if held.start <= start < held.stop]
            self._able[which] = [rank for rank in holders if rank in self._staying] or holders
        return self._able[which]
