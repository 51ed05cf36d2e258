"""Which entries of a frame share a replica and a stage, and what pipelines they make: worked out once for a layout."""

import math

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled
from evenkeel.services.detector.domain.frames.layout import FrameLayout

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int32]


class PipelineGrid:
    """Replicas by stages; those that nobody is in are left out.

    Args:
        layout: Of at least one entry, all of which have micro-batches.

    Attributes:
        layout: The layout.
        num_stages: Stages.
        cells: Replica and stage of each entry, replica by replica.
        counts: Micro-batches of each entry.
        shares: One over the job's micro-batches for entries of the first stage and shard, each replica's work once;
            0 for all others. What these have of something, times this, is what a micro-batch has of it.
        rounds: Most micro-batches that a stage of each replica runs.
        borders: Borders between stages in each replica; 0 in one whose stages do not all run the same number.
        all_even: All stages of each replica run the same number.
        is_piped: Some replica has more than one stage.
    """

    __slots__ = ("all_even", "borders", "cells", "counts", "is_piped", "layout", "num_stages", "rounds", "shares")

    def __init__(self, layout: FrameLayout) -> None:
        self.layout = layout
        known_replicas, replica_of = np.unique(layout.replicas, return_inverse=True)
        known_stages, stage_of = np.unique(layout.stages, return_inverse=True)
        self.num_stages = len(known_stages)
        self.cells: Places = (replica_of * self.num_stages + stage_of).astype(np.int32)
        self.counts: Floats = layout.num_micro_batches.astype(np.float64)
        heads = (layout.stages == layout.stages.min()) & (layout.shards == layout.shards.min())
        self.shares: Floats = heads / max(float(self.counts[heads].sum()), 1.0)
        shape = len(known_replicas), self.num_stages
        most, fewest = np.zeros(shape), np.full(shape, np.inf)
        np.maximum.at(most.reshape(-1), self.cells, self.counts)
        np.minimum.at(fewest.reshape(-1), self.cells, self.counts)
        self.rounds: Floats = most.max(axis=1)
        even = fewest.min(axis=1) == self.rounds
        borders = (most > 0).sum(axis=1) - 1
        self.all_even, self.is_piped = bool(even.all()), bool(borders.any())
        self.borders: Floats = np.where(even, borders, 0.0)


@compiled
def between_ranks(
    seconds: Floats,
    exchange_waits: Floats,
    walls: Floats,
    cells: Places,
    num_stages: int,
    counts: Floats,
    rounds: Floats,
    borders: Floats,
    after_seconds: float,
) -> tuple[float, float, float]:
    """What an iteration took between ranks.

    Of a border: what neither compute nor tensor exchange explains, from the replica that leaves least. An upper bound:
    waits for stragglers that the rounds below do not catch are in it. A pipeline of S stages and M micro-batches takes
    at least M rounds of its slowest stage and one of each other; a micro-batch crosses the S - 1 borders twice.

    Args:
        seconds: Compute seconds; one an entry, as in the next three.
        exchange_waits: Seconds that waited for the tensor exchange.
        walls: Seconds of the whole iteration.
        cells: See :class:`PipelineGrid`.
        num_stages: Stages.
        counts: Micro-batches; one an entry.
        rounds: Most micro-batches that a stage runs; one a replica, as the next.
        borders: Borders between stages; none is looked at where there are 0.
        after_seconds: What comes after the pipelines.

    Returns:
        Seconds of the pipelines; seconds of a stage border (0 where no replica tells); seconds of a micro-batch's
        tensor exchange in all stages of a replica.
    """
    num_replicas = len(rounds)
    exchange, slowest = np.full((num_replicas, num_stages), np.inf), np.zeros((num_replicas, num_stages))
    begun_last = np.full(num_replicas, np.inf)
    for entry in range(len(seconds)):
        replica, stage = cells[entry] // num_stages, cells[entry] % num_stages
        # The shard that arrives last waits only for the exchange itself.
        exchange[replica, stage] = min(exchange[replica, stage], exchange_waits[entry] / counts[entry])
        slowest[replica, stage] = max(slowest[replica, stage], seconds[entry] / counts[entry])
        if stage == 0:
            begun_last[replica] = min(begun_last[replica], walls[entry])
    # Ranks end an iteration together, and whoever began it first waits for pipelines to begin: no transfer.
    pipeline_seconds = -math.inf
    for replica in range(num_replicas):
        pipeline_seconds = max(pipeline_seconds, begun_last[replica] if math.isfinite(begun_last[replica]) else 0.0)
    pipeline_seconds -= after_seconds
    exchanged, unexplained = 0.0, math.inf
    for replica in range(num_replicas):
        longest = shortest = 0.0
        for stage in range(num_stages):
            # Tensor exchange comes with every block, like compute: taken for the border, it would make a planner shun
            # borders.
            own = exchange[replica, stage] if math.isfinite(exchange[replica, stage]) else 0.0
            exchanged += own
            own += slowest[replica, stage]
            longest = max(longest, own)
            shortest += own
        if borders[replica] > 0.0:
            shortest += longest * (rounds[replica] - 1.0)
            unexplained = min(unexplained, (pipeline_seconds - shortest) / (2.0 * borders[replica]))
    transfer = max(unexplained, 0.0) if math.isfinite(unexplained) else 0.0
    return pipeline_seconds, transfer, exchanged / num_replicas
