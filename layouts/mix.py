"""Sequence mix: which documents of an iteration go to which of its micro-batches.

A layout carries the rule, not the samples: every rank computes the same assignment from the lengths of the iteration's
documents, and the iteration consumes exactly the documents that it consumes without a rule. So micro-batches last
equally long although lengths are long-tailed, and those of a slow replica can be smaller than others.

The rule speaks of micro-batches by their index within the iteration and not of replicas: a layout that gives them to
other replicas can keep the rule, and with it the contents of every micro-batch.
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
        counts: Runs of consecutive micro-batches that are to be of one size; their sum is the iteration's number.
        weights: Size of the micro-batches of each run in relation to the others, each at least 1.
        token_cost: What a token of a document costs; only its ratio to ``square_cost`` means anything.
        square_cost: What a unit of its squared length costs.
        max_scale: No micro-batch gets more tokens than the job's token budget times this: memory sets it.

    Raises:
        ValueError: Numbers that no rule can have; the message says which.
    """

    counts: tuple[int, ...]
    weights: tuple[int, ...]
    token_cost: float = 1.0
    square_cost: float = 0.0
    max_scale: float = 1.5

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.weights) or not self.counts:
            raise ValueError(f"mix: {len(self.counts)} counts and {len(self.weights)} weights: as many, and at least 1")
        if min(self.counts) < 1 or min(self.weights) < 1:
            raise ValueError(f"mix: counts {self.counts}, weights {self.weights}: each must be at least 1")
        costs = (self.token_cost, self.square_cost)
        if not all(math.isfinite(cost) and cost >= 0.0 for cost in costs) or sum(costs) <= 0.0:
            raise ValueError(f"mix: costs {costs}: finite, at least 0, and not both 0")
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


def even_mix(num_micro_batches: int, *, token_cost: float, square_cost: float, max_scale: float = 1.5) -> Mix:
    """The rule of a healthy job: all micro-batches alike."""
    return Mix(
        counts=(num_micro_batches,),
        weights=(1,),
        token_cost=token_cost,
        square_cost=square_cost,
        max_scale=max_scale,
    )


def mix_for(model: ModelSpec, num_micro_batches: int, max_scale: float = 1.5) -> Mix:
    """The even rule for a model: documents cost what they cost in all its blocks together."""
    return even_mix(
        num_micro_batches,
        token_cost=sum(block.forward_flops_per_token for block in model.blocks),
        square_cost=sum(block.forward_flops_per_squared_length for block in model.blocks),
        max_scale=max_scale,
    )


def mixed(rule: Mix, lengths: Sequence[int], max_tokens: int) -> tuple[tuple[int, ...], ...] | None:
    """Deal documents out to micro-batches.

    Longest first, each to the micro-batch that would be done first with it; then documents are moved and swapped away
    from the one that is last, while that helps.

    Args:
        rule: How large micro-batches are to be.
        lengths: Tokens of each document of the iteration, each at least 1.
        max_tokens: Most tokens of a micro-batch.

    Returns:
        For each micro-batch the numbers of its documents, ascending, at least one. Every document is in exactly one.
        None when the documents do not go in like this; they then stay where they are.

    >>> mixed(even_mix(2, token_cost=1.0, square_cost=0.0), [5, 3, 2, 4], 10)
    ((0, 2), (1, 3))
    """
    sizes = rule.sizes()
    if len(lengths) < len(sizes):
        return None
    packs: list[list[int]] = [[] for _ in sizes]
    loads, tokens = [0.0] * len(sizes), [0] * len(sizes)
    costs = [rule.cost(length) for length in lengths]
    order = sorted(range(len(lengths)), key=lambda number: (-costs[number], number))
    for place, number in enumerate(order):
        empty = [m for m, pack in enumerate(packs) if not pack]
        # As soon as there are only enough documents for the empty micro-batches, these get them.
        choice = empty if len(empty) >= len(order) - place else range(len(sizes))
        fitting = [m for m in choice if tokens[m] + lengths[number] <= max_tokens]
        if not fitting:
            return None
        first = min(fitting, key=lambda m: ((loads[m] + costs[number]) / sizes[m], m))
        packs[first].append(number)
        loads[first] += costs[number]
        tokens[first] += lengths[number]
    for _ in range(_MAX_SWAPS):
        if not _improved(packs, loads, tokens, sizes, costs, lengths, max_tokens):
            break
    return tuple(tuple(sorted(pack)) for pack in packs)


def _improved(
    packs: list[list[int]],
    loads: list[float],
    tokens: list[int],
    sizes: Sequence[float],
    costs: Sequence[float],
    lengths: Sequence[int],
    max_tokens: int,
) -> bool:
    """Move a document from the slowest micro-batch to the fastest, or swap two of theirs; False when none helps."""
    relative = [load / size for load, size in zip(loads, sizes, strict=True)]
    last = max(range(len(packs)), key=lambda m: (relative[m], -m))
    first = min(range(len(packs)), key=lambda m: (relative[m], m))
    best: tuple[float, int, int] | None = None
    for mine in packs[last]:
        for other in (-1, *packs[first]):
            if other < 0 and len(packs[last]) == 1:
                continue
            moved = costs[mine] - (costs[other] if other >= 0 else 0.0)
            more = lengths[mine] - (lengths[other] if other >= 0 else 0)
            if moved <= 0.0 or tokens[first] + more > max_tokens or tokens[last] - more > max_tokens:
                continue
            slowest = max((loads[last] - moved) / sizes[last], (loads[first] + moved) / sizes[first])
            if slowest < relative[last] * (1.0 - 1e-9) and (best is None or (slowest, mine, other) < best):
                best = slowest, mine, other
    if best is None:
        return False
    _, mine, other = best
    packs[last].remove(mine)
    packs[first].append(mine)
    moved, more = costs[mine], lengths[mine]
    if other >= 0:
        packs[first].remove(other)
        packs[last].append(other)
        moved, more = moved - costs[other], more - lengths[other]
    loads[last] -= moved
    loads[first] += moved
    tokens[last] -= more
    tokens[first] += more
    return True
