"""Sequence mix: which documents of an iteration go to which of its micro-batches.

A layout carries the rule, not the samples: every rank computes the same assignment from the lengths of the iteration's
documents, and the iteration consumes exactly the documents that it consumes without a rule. So replicas last equally
long although lengths are long-tailed, those of a slow replica can have smaller micro-batches than others, and in a
pipeline the first and last ones are smaller than those between them.

The rule speaks of groups of micro-batches by their indices within the iteration, one group for each replica of the
layout that it was made for, and not of replicas: a layout that gives micro-batches to other replicas can keep the rule,
and with it the contents of every micro-batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.sizes.deal import Bin, Group, dealt
from evenkeel.layouts.sizes.taper import one_f_one_b_seconds, taper

_MOST_LARGE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """A rule.

    Attributes:
        counts: Micro-batches of each group; groups follow one another, and their sum is the iteration's number.
        weights: Size of the micro-batches of each group in relation to the others, each at least 1.
        token_cost: What a token of a document costs; only its ratio to ``square_cost`` means anything.
        square_cost: What a unit of its squared length costs.
        fill: Pipeline stages - 1: a group's micro-batches are in the order, and of the sizes, with which a pipeline of
            so many stages fills and drains soonest (:mod:`evenkeel.layouts.sizes.taper`).
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
        """Mean size of the micro-batches of its group for each micro-batch, 1 = the mean of all."""
        total = sum([count * weight for count, weight in zip(self.counts, self.weights, strict=True)])
        mean = total / self.num_micro_batches
        return tuple(
            [weight / mean for count, weight in zip(self.counts, self.weights, strict=True) for _ in range(count)]
        )

    def targets(self) -> tuple[float, ...]:
        """What the size of each micro-batch aims at, 1 = the mean of all: those of a group are tapered."""
        tapers = [size for count in self.counts for size in taper(count, self.fill)]
        return tuple([size * each for size, each in zip(self.sizes(), tapers, strict=True)])

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
    """The rule of a healthy job: all replicas alike.

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
    most_large = min(_MOST_LARGE, *rule.counts, len(order) // len(rule.counts)) if rule.fill else 0
    tries = [_grouped(rule, order, costs, lengths, max_tokens, num_large) for num_large in range(most_large + 1)]
    found = [(max(group.time(group.load) for group in groups), groups) for groups in tries if groups is not None]
    best: tuple[float, list[tuple[int, ...]]] | None = None
    for _, groups in sorted(found, key=lambda each: each[0]):
        slowest, packs = 0.0, []
        for group in groups:
            line = _in_line(group, costs, lengths, max_tokens)
            slowest = math.inf if line is None else max(slowest, line[0] / group.size)
            if line is None or (best is not None and slowest >= best[0] * (1.0 - 1e-9)):
                break
            packs += line[1]
        else:
            best = slowest, packs
    return None if best is None else tuple(best[1])


def _grouped(
    rule: Mix,
    order: Sequence[int],
    costs: Sequence[float],
    lengths: Sequence[int],
    max_tokens: int,
    num_large: int,
) -> list[Group] | None:
    """Deal documents out with the largest ones side by side: the first group gets the ``num_large`` largest, and so on.

    A group with a large document waits for it while its pipeline fills, once, however many large ones it has.
    """
    groups = [
        Group(count, weight=weight, max_tokens=count * max_tokens, fill=rule.fill)
        for count, weight in zip(rule.counts, rule.weights, strict=True)
    ]
    for place, each in enumerate(sorted(groups, key=lambda each: -each.weight) if num_large else ()):
        for number in order[place * num_large : (place + 1) * num_large]:
            each.take(number, costs, lengths)
    if any(each.tokens > each.max_tokens for each in groups):
        return None
    return groups if dealt(groups, order[num_large * len(groups) :], costs, lengths) else None


def _in_line(
    group: Group, costs: Sequence[float], lengths: Sequence[int], max_tokens: int
) -> tuple[float, list[tuple[int, ...]]] | None:
    """A group's documents in micro-batches in the order in which these run, and how long they take in its pipeline.

    Those in the middle are the largest. What they aim at is a taper, or equal sizes where documents are too coarse.
    """
    order = sorted(group.pack, key=lambda number: (-costs[number], number))
    best: tuple[float, list[tuple[int, ...]]] | None = None
    for sizes in dict.fromkeys((group.taper, (1.0,) * group.least)):
        inner = [Bin(size=size, least=1, max_tokens=max_tokens) for size in sizes]
        if not dealt(inner, order, costs, lengths):
            continue
        lightest_first = sorted(inner, key=lambda each: each.load)
        places = sorted(range(group.least), key=lambda place: (group.taper[place], place))
        line = dict(zip(places, lightest_first, strict=True))
        loads = [line[place].load for place in range(group.least)]
        seconds = one_f_one_b_seconds(loads, group.fill) if group.fill else sum(loads)
        if best is None or seconds < best[0] * (1.0 - 1e-9):
            best = seconds, [tuple(sorted(line[place].pack)) for place in range(group.least)]
    return best
