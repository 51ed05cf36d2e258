"""What a rank's gradient sums of an unfinished iteration contain: the bookkeeping that makes them worth keeping.

A ledger is told in two texts: where there are sums, which ranks of equal places have in common, and what is in them,
which is the same for the shards of a stage. So of thousands of ledgers few texts differ.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, pairwise
from typing import Any, NamedTuple

from evenkeel.layouts.json_schema import record_from
from evenkeel.layouts.sizes.mix import Mix


class SummedStretch(NamedTuple):
    """``[start, stop)`` of a parameter's cut axis, and which of the tally's sets of micro-batches is summed there."""

    name: str
    start: int
    stop: int
    which: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What a rank has done of an iteration.

    Attributes:
        iteration: Iteration that the sums belong to; -1 when there are none.
        sets: Micro-batches whose gradients are in some sums.
        losses: Loss, summed over tokens, of each micro-batch whose loss the rank knows.
        mix: Which documents the micro-batches had; the same on all ranks of an epoch.
    """

    iteration: int = -1
    sets: tuple[frozenset[int], ...] = ()
    losses: Mapping[int, float] = field(default_factory=dict)
    mix: Mix | None = None


class GradientLedger(NamedTuple):
    """One rank's sums.

    Attributes:
        stretches: Where they are; none overlap.
        tally: What is in them.
    """

    stretches: tuple[SummedStretch, ...] = ()
    tally: Tally = Tally()


def ledger_to_texts(ledger: GradientLedger, names: Sequence[str]) -> tuple[bytes, bytes]:
    """Stretches and tally, each as JSON of lists and numbers.

    Args:
        ledger: Ledger.
        names: All parameters of the model, in the same order on every rank.
    """
    place = {name: index for index, name in enumerate(names)}
    tally = ledger.tally
    said = {
        "iteration": tally.iteration,
        "sets": [_borders(micro_batches) for micro_batches in tally.sets],
        "losses": sorted(tally.losses.items()),
        "mix": None if tally.mix is None else asdict(tally.mix),
    }
    stretches = [(place[name], start, stop, which) for name, start, stop, which in ledger.stretches]
    return _text(stretches), _text(said)


def ledgers_from_texts(told: Mapping[int, Sequence[bytes]], names: Sequence[str]) -> dict[int, GradientLedger]:
    """The inverse of :func:`ledger_to_texts`, for many ranks: equal texts are read once and give one object."""
    stretches = {
        text: tuple([SummedStretch(names[place], *rest) for place, *rest in json.loads(text)])
        for text in {first for first, _ in told.values()}
    }
    sets: dict[tuple[int, ...], frozenset[int]] = {}
    tallies = {text: _tally(json.loads(text), sets) for text in {second for _, second in told.values()}}
    return {rank: GradientLedger(stretches[first], tallies[second]) for rank, (first, second) in told.items()}


def _text(values: Any) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode()


def _tally(values: Mapping[str, Any], sets: dict[tuple[int, ...], frozenset[int]]) -> Tally:
    """Read a tally; ``sets`` has those that were read before."""
    mix = values["mix"]
    for borders in map(tuple, values["sets"]):
        if borders not in sets:
            sets[borders] = frozenset(chain.from_iterable(map(range, borders[::2], borders[1::2])))
    return Tally(
        iteration=values["iteration"],
        sets=tuple([sets[tuple(borders)] for borders in values["sets"]]),
        losses=dict(values["losses"]),
        mix=mix and record_from(Mix, mix),
    )


def _borders(numbers: Iterable[int]) -> list[int]:
    """Where the stretches of neighbouring numbers begin and end: a replica runs neighbours.

    >>> _borders({1, 2, 3, 7})
    [1, 4, 7, 8]
    """
    ordered = sorted(numbers)
    gaps = [border for last, first in pairwise(ordered) if last + 1 < first for border in (last + 1, first)]
    return [ordered[0], *gaps, ordered[-1] + 1] if ordered else []
