"""Sequence mix: which documents of an iteration go to which of its micro-batches.

A layout carries the rule, not the samples: every rank computes the same assignment from the lengths of the iteration's
documents, and the iteration consumes exactly the documents that it consumes without a rule. So micro-batches last
equally long although lengths are long-tailed, and those of a slow replica can be smaller than others.

The rule speaks of groups of micro-batches by their indices within the iteration, one group for each replica of the
layout that it was made for, and not of replicas: a layout that gives micro-batches to other replicas can keep the rule,
and with it the contents of every micro-batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from layouts.model import ModelSpec

_MAX_SWAPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """A rule.

    Attributes:
        counts: Micro-batches of each group; groups follow one another, and their sum is the iteration's number.
        weights: Size of the micro-batches of each group in relation to the others, each at least 1.
        token_cost: What a token of a document costs; only its ratio to ``square_cost`` means anything.
        square_cost: What a unit of its squared length costs.
        fill: How often the largest micro-batch of a group counts beside the sum of all: pipeline stages - 1, since a
            pipeline fills and drains at the pace of its largest.
        max_scale: No micro-batch gets more tokens than the job's token budget times this: memory sets it.

    Raises:
        ValueError: Numbers that no rule can have; the message says which.
    """

    counts: tuple[int, ...]
    weights: tuple[int, ...]
    token_cost: float = 1.0
    square_cost: float = 0.0
    fill: int = 0
    max_scale: float = 1.5

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.weights) or not self.counts:
            raise ValueError(f"mix: {len(self.counts)} counts and {len(self.weights)} weights: as many, and at least 1")
        if min(self.counts) < 1 or min(self.weights) < 1:
            raise ValueError(f"mix: counts {self.counts}, weights {self.weights}: each must be at least 1")
        costs = (self.token_cost, self.square_cost)
        if not all(math.isfinite(cost) and cost >= 0.0 for cost in costs) or sum(costs) <= 0.0:
            raise ValueError(f"mix: costs {costs}: finite, at least 0, and not both 0")
        if self.fill < 0:
            raise ValueError(f"mix: fill is {self.fill}: at least 0")
        if not (math.isfinite(self.max_scale) and self.max_scale >= 1.0):
            raise ValueError(f"mix: max_scale is {self.max_scale}: at least 1")

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches that the rule speaks of."""
        return sum(self.counts)

    def cost(self, length: int) -> float:
        """What a document costs."""
        return self.token_cost * length + self.square_cost * length * length

    def sizes(self) -> tuple[float, ...]:
        """Size of each micro-batch, 1 = the mean."""
        total = sum([count * weight for count, weight in zip(self.counts, self.weights, strict=True)])
        mean = total / self.num_micro_batches
        return tuple(
            [weight / mean for count, weight in zip(self.counts, self.weights, strict=True) for _ in range(count)]
        )

    def scales(self, quotas: Sequence[int]) -> tuple[float, ...]:
        """Mean size of the micro-batches of each replica when they are dealt out in order; 1 for a quota of 0."""
        running = [0.0, *accumulate(self.sizes())]
        borders = [0, *accumulate(quotas)]
        return tuple(
            [
                (running[borders[d + 1]] - running[borders[d]]) / quota if quota else 1.0
                for d, quota in enumerate(quotas)
            ]
        )


def even_mix(
    quotas: Sequence[int], *, token_cost: float, square_cost: float, fill: int = 0, max_scale: float = 1.5
) -> Mix:
    """The rule of a healthy job: all micro-batches alike.

    Args:
        quotas: Micro-batches of each replica.
        token_cost: As in :class:`Mix`.
        square_cost: As in :class:`Mix`.
        fill: As in :class:`Mix`.
        max_scale: As in :class:`Mix`.
    """
    counts = tuple(quota for quota in quotas if quota)
    return Mix(
        counts=counts,
        weights=(1,) * len(counts),
        token_cost=token_cost,
        square_cost=square_cost,
        fill=fill,
        max_scale=max_scale,
    )


def mix_for(model: ModelSpec, quotas: Sequence[int], *, num_stages: int, max_scale: float = 1.5) -> Mix:
    """The even rule for a model: documents cost what they cost in all its blocks together."""
    return even_mix(
        quotas,
        token_cost=sum(block.forward_flops_per_token for block in model.blocks),
        square_cost=sum(block.forward_flops_per_squared_length for block in model.blocks),
        fill=num_stages - 1,
        max_scale=max_scale,
    )


def mixed(rule: Mix, lengths: Sequence[int], max_tokens: int) -> tuple[tuple[int, ...], ...] | None:
    """Deal documents out to micro-batches: first to groups, so that replicas end together, then within each group.

    Args:
        rule: How large micro-batches are to be.
        lengths: Tokens of each document of the iteration, each at least 1.
        max_tokens: Most tokens of a micro-batch.

    Returns:
        For each micro-batch the numbers of its documents, ascending, at least one. Every document is in exactly one.
        None when the documents do not go in like this; they then stay where they are.

    >>> mixed(even_mix((1, 1), token_cost=1.0, square_cost=0.0), [5, 3, 2, 4], 10)
    ((0, 2), (1, 3))
    """
    costs = [rule.cost(length) for length in lengths]
    order = sorted(range(len(lengths)), key=lambda number: (-costs[number], number))
    best: tuple[float, tuple[tuple[int, ...], ...]] | None = None
    for num_large in (0, 1, 2, 3, 4, 5, 6, 7, 8) if rule.fill else (0,):
        if num_large > max(rule.counts) or num_large * len(rule.counts) > len(order):
            break
        found = _tried(rule, order, costs, lengths, max_tokens, num_large)
        if found is not None and (best is None or found[0] < best[0] * (1.0 - 1e-9)):
            best = found
    return None if best is None else best[1]


def _tried(
    rule: Mix,
    order: Sequence[int],
    costs: Sequence[float],
    lengths: Sequence[int],
    max_tokens: int,
    num_large: int,
) -> tuple[float, tuple[tuple[int, ...], ...]] | None:
    """Deal documents out with the largest ones side by side: the first group gets the ``num_large`` largest, and so on.

    A group with a large document waits for it while its pipeline fills, once, however many large ones it has.

    Returns:
        How long the slowest group takes, and the numbers of each micro-batch.
    """
    bins = [
        _Bin(size=float((count + rule.fill) * weight), least=count, max_tokens=count * max_tokens, fill=rule.fill)
        for count, weight in zip(rule.counts, rule.weights, strict=True)
    ]
    heaviest_first = sorted(bins, key=lambda each: -each.size / each.least)
    rest = order
    for place, each in enumerate(heaviest_first if num_large else ()):
        own = order[place * num_large : (place + 1) * num_large]
        for number in own:
            each.take(number, costs, lengths)
        rest = order[(place + 1) * num_large :]
    if any(each.tokens > each.max_tokens for each in bins) or not _dealt(bins, rest, costs, lengths):
        return None
    packs: list[tuple[int, ...]] = []
    slowest = 0.0
    for group, count in zip(bins, rule.counts, strict=True):
        inner = [_Bin(size=1.0, least=1, max_tokens=max_tokens) for _ in range(count)]
        if not _dealt(inner, sorted(group.pack, key=lambda number: (-costs[number], number)), costs, lengths):
            return None
        loads = [each.load for each in inner]
        slowest = max(slowest, (sum(loads) + rule.fill * max(loads)) / group.size)
        packs += [tuple(sorted(each.pack)) for each in inner]
    return slowest, tuple(packs)


class _Bin:
    """Where documents go: a group, or a micro-batch."""

    __slots__ = ("fill", "largest", "least", "load", "max_tokens", "pack", "size", "tokens")

    def __init__(self, *, size: float, least: int, max_tokens: int, fill: int = 0) -> None:
        self.size, self.least, self.max_tokens, self.fill = size, least, max_tokens, fill
        self.largest = 0.0
        self.pack: list[int] = []
        self.load, self.tokens = 0.0, 0

    def time(self, load: float, cost: float = 0.0) -> float:
        """How long it takes with this load; its micro-batches are even, or as large as its largest document."""
        if not self.fill:
            return load / self.size
        return (load + self.fill * max(self.largest, cost, load / self.least)) / self.size

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


def _dealt(bins: list[_Bin], order: Sequence[int], costs: Sequence[float], lengths: Sequence[int]) -> bool:
    """Deal documents out: most expensive first, each to the bin that would be done first with it, then improve.

    False when a document has no place.
    """
    missing = sum(max(0, each.least - len(each.pack)) for each in bins)
    if len(order) < missing:
        return False
    for place, number in enumerate(order):
        # As soon as there are only enough documents for the bins that need some, these get them.
        scarce = missing >= len(order) - place
        best: _Bin | None = None
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


def _improved(bins: list[_Bin], costs: Sequence[float], lengths: Sequence[int]) -> bool:
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
