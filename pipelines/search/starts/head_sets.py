"""What may stand beside a heavy last layer: sets of layers, by kinds, whose window still lets a plan be short enough.

The heavier the set the less is left to the other devices. The first layer is worth less there: all others then wait for
it once more.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from evenkeel.pipelines.search.starts.balance import window_loads
from evenkeel.pipelines.search.starts.deals import Deal, Layers, stages_dealt
from evenkeel.pipelines.search.tables import Ints, Table

_HEAVY = 0.5  # of an even share: from there a last layer is heavy
_NONE = np.empty(0, dtype=np.int64)


def is_head_heavy(table: Table) -> bool:
    """Whether the last layer is much of a device's work, on devices that are alike."""
    works = np.diff(table.sums, axis=1).sum(axis=0)
    devices = table.speeds.shape[0]
    return bool(devices > 1 and works[-1] * devices >= _HEAVY * works.sum() and np.ptp(table.speeds) == 0)


def head_sets(table: Table, layers: Layers, cap: float) -> list[tuple[int, ...]]:
    """Sets of kinds beside the last layer, the most promising first; none where that is not heavy.

    Args:
        table: The case.
        layers: Of the case.
        cap: What the head's device may do before, between and after the head's passes; in units of time.
    """
    kinds, works, devices = layers.kinds[:-1], layers.works[:-1], table.speeds.shape[0]
    if not is_head_heavy(table):
        return []
    places = {int(kind): np.flatnonzero(kinds == kind) for kind in np.unique(kinds)}
    late_start = (devices - 1) * table.sums[0, 1]
    found: list[tuple[float, tuple[int, ...]]] = []

    def grow(chosen: tuple[int, ...], rest: Sequence[int]) -> None:
        if chosen:
            beside = np.concatenate([places[kind][: chosen.count(kind)] for kind in set(chosen)])
            if _window(table, beside) > cap:
                return
            found.append((works[beside].sum() - late_start * (0 in beside), chosen))
        for at, kind in enumerate(rest):
            if chosen.count(kind) < len(places[kind]):
                grow((*chosen, kind), rest[at:])

    grow((), sorted(places))
    return [chosen for _, chosen in sorted(found, reverse=True)]


def _window(table: Table, beside: Ints) -> float:
    devices = np.zeros(table.sums.shape[1] - 1, dtype=np.int64)
    devices[beside] = devices[-1] = 1
    sizes, placement = stages_dealt(Deal(devices, np.zeros_like(devices)))
    return float(window_loads(table, sizes, placement)[1])


def with_set(layers: Layers, deal: Deal, chosen: Sequence[int], generator: np.random.Generator) -> Deal:
    """A deal in which this set stands beside the last layer; whoever gives a layer of it gets one for it.

    The set stands where the layers next to one another are such, at the first such place: the device then works before
    the head's first pass, and micro-batches pass it once. Where there is none its layers are drawn.
    """
    kinds, devices = layers.kinds[:-1], deal.devices.copy()
    head, placed = devices[-1], devices[:-1]
    beside = _in_a_row(kinds, chosen)
    if not len(beside):
        beside = np.concatenate(
            [
                generator.choice(np.flatnonzero(kinds == kind), count, replace=False)
                for kind, count in sorted(Counter(chosen).items())
            ]
        )
    out = np.setdiff1d(np.flatnonzero(placed == head), beside).tolist()
    others = np.unique(placed[placed != head])
    for layer in np.setdiff1d(beside, np.flatnonzero(placed == head)).tolist():
        same = [each for each in out if kinds[each] == kinds[layer]] or out
        if same:
            placed[same[0]] = placed[layer]
            out.remove(same[0])
        placed[layer] = head
    for layer in out:
        placed[layer] = generator.choice(others)
    return Deal(devices, np.zeros_like(deal.cuts))


def _in_a_row(kinds: Ints, chosen: Sequence[int]) -> Ints:
    """The first layers next to one another whose kinds are these, in any order; nothing where there are none."""
    wanted, size = sorted(chosen), len(chosen)
    for first in range(len(kinds) - size + 1):
        if sorted(kinds[first : first + size].tolist()) == wanted:
            return np.arange(first, first + size)
    return _NONE
