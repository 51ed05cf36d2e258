"""What a rank's gradient sums of an unfinished iteration contain: the bookkeeping that makes them worth keeping."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from layouts.mix import Mix


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialSum:
    """``[start, stop)`` of a parameter's cut axis, and the micro-batches whose gradients are summed there."""

    name: str
    start: int
    stop: int
    micro_batches: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientLedger:
    """One rank's sums.

    Attributes:
        iteration: Iteration that they belong to; -1 when there are none.
        sums: Stretches that do not overlap.
        losses: Loss, summed over tokens, of each micro-batch whose loss this rank knows.
        mix: Which documents the micro-batches had; the same on all ranks of an epoch.
    """

    iteration: int = -1
    sums: tuple[PartialSum, ...] = ()
    losses: Mapping[int, float] = field(default_factory=dict)
    mix: Mix | None = None


def ledger_to_json(ledger: GradientLedger, names: Sequence[str]) -> dict[str, Any]:
    """Lists and numbers only; equal sets of micro-batches are written once.

    Args:
        ledger: Ledger.
        names: All parameters of the model, in the same order on every rank.
    """
    place = {name: index for index, name in enumerate(names)}
    sets: dict[frozenset[int], int] = {}
    sums = [
        [place[each.name], each.start, each.stop, sets.setdefault(each.micro_batches, len(sets))]
        for each in ledger.sums
    ]
    return {
        "iteration": ledger.iteration,
        "sets": [sorted(micro_batches) for micro_batches in sets],
        "sums": sums,
        "losses": sorted(ledger.losses.items()),
        "mix": None if ledger.mix is None else asdict(ledger.mix),
    }


def ledger_from_json(values: Mapping[str, Any], names: Sequence[str]) -> GradientLedger:
    """The inverse of :func:`ledger_to_json`."""
    sets = [frozenset(micro_batches) for micro_batches in values["sets"]]
    return GradientLedger(
        iteration=values["iteration"],
        sums=tuple(
            PartialSum(name=names[place], start=start, stop=stop, micro_batches=sets[which])
            for place, start, stop, which in values["sums"]
        ),
        losses=dict(values["losses"]),
        mix=None if values["mix"] is None else _mix(values["mix"]),
    )


def _mix(values: Mapping[str, Any]) -> Mix:
    return Mix(**{**values, "counts": tuple(values["counts"]), "weights": tuple(values["weights"])})
