"""Which slices move where when one layout follows another: every rank computes it alone, so nothing is negotiated."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from layouts.layout import Layout
from trainer_sdk.elastic.ownership import OwnershipMap, Slice
from trainer_sdk.elastic.parameters import ParameterSpec

_WORTH_A_SOURCE_ELEMENTS = 1024
"""Below about 10 KB a further source costs more than it saves."""


class MissingSliceError(ValueError):
    """Nobody who may be read holds a slice that the new layout needs; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Copy ``[start, stop)`` of a parameter, and of its optimizer moments, from one rank to another.

    With ``copy_of`` the source does not send what it holds itself, but what it keeps of that rank, which is gone.
    """

    name: str
    start: int
    stop: int
    source: int
    destination: int
    copy_of: int | None = None


def plan_transfers(
    specs: Sequence[ParameterSpec], old: Layout, new: Layout, sources: Collection[int]
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

    Raises:
        MissingSliceError: Nobody alive holds a slice; nothing was copied.
    """
    before, after = OwnershipMap(specs, old), OwnershipMap(specs, new)
    readable = frozenset(sources)
    staying = frozenset(new.ranks)
    sent: dict[int, int] = {}
    copies: list[Copy] = []
    for spec in specs:
        holders = [held for held in before.holdings(spec.name) if held.rank in readable and len(held.slice)]
        borders = sorted({border for held in holders for border in (held.slice.start, held.slice.stop)})
        for wanted in after.holdings(spec.name):
            local = next((held.slice for held in holders if held.rank == wanted.rank), None)
            for start, stop in _missing_pieces(wanted.slice, local, borders):
                able = [held.rank for held in holders if held.slice.start <= start and stop <= held.slice.stop]
                if not able:
                    raise MissingSliceError(
                        f"no rank among {sorted(readable)} holds {spec.name}[{start}:{stop}], which rank "
                        f"{wanted.rank} needs: restore it from a checkpoint, or plan a layout for a rank that holds it"
                    )
                chosen = sorted(able, key=lambda rank: (rank not in staying, sent.get(rank, 0), rank))
                if chosen[0] in staying:
                    chosen = [rank for rank in chosen if rank in staying]
                for source, part in _spread(start, stop, spec.row_elements, chosen):
                    sent[source] = sent.get(source, 0) + len(part) * spec.row_elements
                    copies.append(
                        Copy(name=spec.name, start=part.start, stop=part.stop, source=source, destination=wanted.rank)
                    )
    return tuple(copies)


def _spread(start: int, stop: int, row_elements: int, able: Sequence[int]) -> list[tuple[int, Slice]]:
    """Split a piece evenly over as many of the holders as its size is worth, least busy first."""
    parts = max(1, min(len(able), stop - start, (stop - start) * row_elements // _WORTH_A_SOURCE_ELEMENTS))
    borders = [start + (stop - start) * part // parts for part in range(parts + 1)]
    return [(rank, Slice(a, b)) for rank, (a, b) in zip(able, pairwise(borders), strict=False)]


def _missing_pieces(wanted: Slice, local: Slice | None, borders: Sequence[int]) -> list[tuple[int, int]]:
    """The parts of ``wanted`` outside ``local``, cut where the set of holders changes."""
    if not len(wanted):
        return []
    cuts = {wanted.start, wanted.stop, *(border for border in borders if wanted.start < border < wanted.stop)}
    ordered = sorted(cuts)
    pieces = pairwise(ordered)
    if local is None:
        return list(pieces)
    return [(start, stop) for start, stop in pieces if not (local.start <= start and stop <= local.stop)]
