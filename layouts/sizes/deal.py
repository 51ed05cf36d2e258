"""Dealing documents out to bins: micro-batches, or groups of them."""

import math
from collections.abc import Sequence

from evenkeel.layouts.sizes.taper import one_f_one_b_seconds, taper

_MAX_SWAPS = 64


class Bin:
    """Where documents go: a micro-batch.

    Attributes:
        size: How large it is to be in relation to others.
        least: Documents that it needs.
        max_tokens: Most tokens of all its documents together.
        load: Cost of its documents.
        largest: Cost of the most expensive one.
    """

    __slots__ = ("largest", "least", "load", "max_tokens", "pack", "size", "tokens")

    def __init__(self, *, size: float, least: int, max_tokens: int) -> None:
        self.size, self.least, self.max_tokens = size, least, max_tokens
        self.largest = 0.0
        self.pack: list[int] = []
        self.load, self.tokens = 0.0, 0

    def time(self, load: float, cost: float = 0.0) -> float:
        """How long it takes with this load, of which ``cost`` is a document that may come in."""
        del cost
        return load / self.size

    def take(self, number: int, costs: Sequence[float], lengths: Sequence[int]) -> None:
        """A document comes in."""
        self.pack.append(number)
        self.load += costs[number]
        self.tokens += lengths[number]
        self.largest = max(self.largest, costs[number])

    def give(self, number: int, costs: Sequence[float], lengths: Sequence[int]) -> None:
        """A document leaves."""
        self.pack.remove(number)
        self.load -= costs[number]
        self.tokens -= lengths[number]
        if costs[number] >= self.largest:
            self.largest = max([costs[each] for each in self.pack], default=0.0)


class Group(Bin):
    """The micro-batches of one replica, as one bin.

    Attributes:
        weight: Size of its micro-batches in relation to those of other groups.
        fill: Pipeline stages - 1.
        taper: What their sizes aim at.
    """

    __slots__ = ("_bubble", "_crest", "fill", "taper", "weight")

    def __init__(self, count: int, *, weight: float, max_tokens: int, fill: int) -> None:
        self.taper = taper(count, fill)
        seconds = one_f_one_b_seconds(self.taper, fill) if fill else float(count)
        super().__init__(size=weight * seconds, least=count, max_tokens=max_tokens)
        self.weight, self.fill = weight, fill
        self._bubble, self._crest = seconds / count - 1.0, max(self.taper) / count

    def time(self, load: float, cost: float = 0.0) -> float:
        """As if documents were fine, or as long as the pipeline waits for its most expensive one amid large ones."""
        if not self.fill:
            return load / self.size
        waits = max(self.largest, cost) - self._crest * load
        return (load + max(self._bubble * load, self.fill * waits)) / self.size


def dealt(bins: Sequence[Bin], order: Sequence[int], costs: Sequence[float], lengths: Sequence[int]) -> bool:
    """Deal documents out: most expensive first, each to the bin that would be done first with it, then improve.

    False when a document has no place.
    """
    missing = sum(max(0, each.least - len(each.pack)) for each in bins)
    if len(order) < missing:
        return False
    for place, number in enumerate(order):
        # As soon as there are only enough documents for the bins that need some, these get them.
        scarce = missing >= len(order) - place
        best: Bin | None = None
        soonest = math.inf
        for each in bins:
            if each.tokens + lengths[number] > each.max_tokens or (scarce and len(each.pack) >= each.least):
                continue
            after = each.time(each.load + costs[number], costs[number])
            if after < soonest:
                best, soonest = each, after
        if best is None:
            return False
        missing -= len(best.pack) < best.least
        best.take(number, costs, lengths)
    for _ in range(_MAX_SWAPS):
        if not _improved(bins, costs, lengths):
            break
    return True


def _improved(bins: Sequence[Bin], costs: Sequence[float], lengths: Sequence[int]) -> bool:
    """Move a document from the slowest bin to the fastest, or swap two of theirs; False when none helps."""
    last = max(bins, key=lambda each: each.time(each.load))
    first = min(bins, key=lambda each: each.time(each.load))
    slowest = last.time(last.load)
    best: tuple[float, int, int] | None = None
    for mine in last.pack:
        for other in (-1, *first.pack):
            if other < 0 and len(last.pack) <= last.least:
                continue
            moved = costs[mine] - (costs[other] if other >= 0 else 0.0)
            more = lengths[mine] - (lengths[other] if other >= 0 else 0)
            if moved <= 0.0 or first.tokens + more > first.max_tokens or last.tokens - more > last.max_tokens:
                continue
            after = max(last.time(last.load - moved), first.time(first.load + moved, costs[mine]))
            if after < slowest * (1.0 - 1e-9) and (best is None or (after, mine, other) < best):
                best = after, mine, other
    if best is None:
        return False
    _, mine, other = best
    last.give(mine, costs, lengths)
    first.take(mine, costs, lengths)
    if other >= 0:
        first.give(other, costs, lengths)
        last.take(other, costs, lengths)
    return True
