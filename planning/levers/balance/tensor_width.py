"""Lever: tensor width. Shards in proportion to the speed of their devices, any integer width.

Equal shards run a stage at (number of shards) x (slowest device); shards weighted by speed run it at nearly the sum of
speeds, up to the rounding to whole granules.
"""

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from evenkeel.layouts.layout import Layout, Stage
from evenkeel.numeric.compiled import compiled
from evenkeel.planning.costs.cost_model import CostModel
from evenkeel.planning.levers.balance.splits import Floats, Integers
from evenkeel.planning.levers.lever import Asked, Lever
from evenkeel.planning.situation import Situation


@compiled
def deal(speeds: Floats, num_granules: int, most: int, widths: Integers) -> None:
    """Each granule to the shard that has it done first and may have more, the first of equals: greedy and exact.

    Args:
        speeds: [shards] of them.
        num_granules: How many are dealt.
        most: Granules that a shard may have, enough for all together.
        widths: [shards] granules of each; is filled.
    """
    widths[:] = 0
    for _ in range(num_granules):
        taker, soonest = 0, math.inf
        for t in range(len(speeds)):
            done = (widths[t] + 1) / speeds[t]
            if widths[t] < most and done < soonest:
                taker, soonest = t, done
        widths[taker] += 1


@lru_cache(maxsize=4096)
def best_widths(num_granules: int, speeds: tuple[float, ...], most: int | None = None) -> tuple[int, ...]:
    """Granules per shard that minimise the slowest shard's granules / speed, as :func:`deal` does; it may get none.

    Args:
        num_granules: How many are dealt.
        speeds: Of the shards.
        most: Granules that a shard may have, enough for all together; None = any number.
    """
    widths = np.empty(len(speeds), np.int64)
    deal(np.array(speeds), num_granules, num_granules if most is None else most, widths)
    return tuple(widths.tolist())


def best_stage(situation: Situation, stage: Stage) -> Stage:
    """The stage with the best widths for its live ranks; ranks that would only hold it up are left out."""
    ranks, cost = stage.ranks, situation.cost
    speeds = tuple([situation.speeds[rank] for rank in ranks])
    even = len(set(speeds)) == len(set(stage.shares)) == 1
    if even and cost.main_width % len(ranks) == 0:
        return stage  # equal shards of equal devices, without a rest
    fastest_first = tuple(sorted(range(len(ranks)), key=lambda t: (-speeds[t], ranks[t])))
    asked = stage.first_block, stage.stop_block, stage.shares, speeds, fastest_first
    found = situation.looks.once("cut", asked, find=lambda: _best_cut(cost, *asked))
    if found is None:
        return stage
    kept, shares = found
    return replace(stage, ranks=tuple([ranks[t] for t in kept]), shares=shares)


def _best_cut(
    cost: CostModel,
    first_block: int,
    stop_block: int,
    shares: tuple[int, ...],
    speeds: tuple[float, ...],
    fastest_first: tuple[int, ...],
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Which shards of a stage to keep, and their shares; None when they are best as they are."""
    main_width, best = cost.main_width, None
    best_seconds = cost.range_seconds(first_block, stop_block, shares, speeds)
    whole = cost.healthy_seconds(first_block, stop_block)
    for count in range(len(speeds), 0, -1):
        if whole >= best_seconds * sum([speeds[t] for t in fastest_first[:count]]):
            break  # however it is cut, so few do not get faster
        chosen = sorted(fastest_first[:count])
        widths = best_widths(max(main_width, count), tuple([speeds[t] for t in chosen]))
        kept = tuple([t for t, width in zip(chosen, widths, strict=True) if width])
        divisor = math.gcd(*widths)
        cut = tuple([width // divisor for width in widths if width])
        seconds = cost.range_seconds(first_block, stop_block, cut, tuple([speeds[t] for t in kept]))
        if seconds < best_seconds * (1.0 - 1e-9):
            best, best_seconds = (kept, cut), seconds
    return best


class TensorWidth(Lever):
    """Widths of shards by the speed of their devices."""

    name = "tensor_width"
    asked = Asked.TUNING, 0

    def describe(self, before: Layout, after: Layout) -> str:
        """Which stages have new widths."""
        lines = []
        for d, (was, becomes) in enumerate(zip(before.replicas, after.replicas, strict=False)):
            if was.stages is becomes.stages:
                continue
            for s, (old, new) in enumerate(zip(was.stages, becomes.stages, strict=False)):
                if (old.ranks, old.shares) != (new.ranks, new.shares) and set(old.ranks) & set(new.ranks):
                    widths = ", ".join(f"rank {r}: {w}" for r, w in zip(new.ranks, new.shares, strict=True))
                    lines.append(f"replica {d} stage {s} cut as {widths}")
        return "; ".join(lines)
