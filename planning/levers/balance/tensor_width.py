"""Lever: tensor width. Shards in proportion to the speed of their devices, any integer width.

Equal shards run a stage at (number of shards) x (slowest device); shards weighted by speed run it at nearly the sum of
speeds, up to the rounding to whole granules.
"""

import math
from functools import lru_cache

import numpy as np

from evenkeel.layouts.layout import Layout
from evenkeel.numeric.compiled import compiled
from evenkeel.planning.levers.balance.splits import Floats, Integers
from evenkeel.planning.levers.lever import Asked, Lever


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
