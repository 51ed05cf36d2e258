"""Lever: tensor width. Shards in proportion to the speed of their devices, any integer width.

Equal shards run a stage at (number of shards) x (slowest device); shards weighted by speed run it at nearly the sum of
speeds, up to the rounding to whole granules.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from layouts.layout import Layout, Replica, Stage
from services.scheduler.planning.situation import Situation


@lru_cache(maxsize=4096)
def best_widths(num_granules: int, speeds: tuple[float, ...]) -> tuple[int, ...]:
    """Granules per shard that minimise the slowest shard's granules / speed; a shard may get none.

    Greedy and exact: each granule goes to the shard that would have it done first; first of equals.
    """
    widths = [0] * len(speeds)
    for _ in range(num_granules):
        first = min(range(len(speeds)), key=lambda t: ((widths[t] + 1) / speeds[t], t))
        widths[first] += 1
    return tuple(widths)


def best_stage(situation: Situation, stage: Stage) -> Stage:
    """The stage with the best widths for its live ranks; ranks that would only hold it up are left out."""
    cost, throughputs = situation.cost, situation.throughputs
    speeds = {rank: throughputs[rank] for rank in stage.ranks}
    even = len(set(speeds.values())) == len(set(stage.shares)) == 1
    if even and cost.main_width % len(stage.ranks) == 0:
        return stage  # equal shards of equal devices, without a rest
    ordered = sorted(stage.ranks, key=lambda rank: (-speeds[rank], rank))
    best, best_seconds = stage, sum(cost.stage_seconds(stage, throughputs))
    for count in range(len(ordered), 0, -1):
        ranks = tuple(rank for rank in stage.ranks if rank in ordered[:count])
        chosen = tuple(speeds[rank] for rank in ranks)
        widths = best_widths(max(cost.main_width, count), chosen)
        kept = [(rank, width) for rank, width in zip(ranks, widths, strict=True) if width]
        divisor = math.gcd(*(width for _, width in kept))
        candidate = Stage(
            first_block=stage.first_block,
            stop_block=stage.stop_block,
            ranks=tuple(rank for rank, _ in kept),
            shares=tuple(width // divisor for _, width in kept),
        )
        seconds = sum(cost.stage_seconds(candidate, throughputs))
        if seconds < best_seconds * (1.0 - 1e-9):
            best, best_seconds = candidate, seconds
    return best


class TensorWidth:
    """Widths of shards by the speed of their devices."""

    name = "tensor_width"
    structural = False

    def propose(self, situation: Situation, base: Layout) -> Iterable[Layout]:
        """``base`` with the best widths in every stage."""
        replicas = tuple(
            Replica(
                stages=tuple(best_stage(situation, stage) for stage in replica.stages),
                num_micro_batches=replica.num_micro_batches,
            )
            for replica in base.replicas
        )
        working = {rank for replica in replicas for rank in replica.ranks}
        standbys = tuple(sorted({*base.ranks, *base.standbys} - working))
        yield replace(base, replicas=replicas, standbys=standbys)

    def describe(self, before: Layout, after: Layout) -> str:
        """Which stages have new widths."""
        lines = []
        for d, (was, becomes) in enumerate(zip(before.replicas, after.replicas, strict=False)):
            for s, (old, new) in enumerate(zip(was.stages, becomes.stages, strict=False)):
                if (old.ranks, old.shares) != (new.ranks, new.shares) and set(old.ranks) & set(new.ranks):
                    widths = ", ".join(f"rank {r}: {w}" for r, w in zip(new.ranks, new.shares, strict=True))
                    lines.append(f"replica {d} stage {s} cut as {widths}")
        return "; ".join(lines)
