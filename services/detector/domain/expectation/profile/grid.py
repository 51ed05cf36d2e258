"""Which entries of a frame share a replica and a stage, and what pipelines they make: worked out once for a layout."""

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.arrays import Bools, Floats
from evenkeel.services.detector.domain.frames.layout import FrameLayout

Places = npt.NDArray[np.int32]


class PipelineGrid:
    """Replicas by stages; those that nobody is in are left out.

    Args:
        layout: Of at least one entry, all of which have micro-batches.

    Attributes:
        num_stages: Stages.
        cells: Replica and stage of each entry, replica by replica.
        is_first: Entries of the first stage.
        counts: Micro-batches of each entry.
        shares: One over the job's micro-batches for entries of the first stage and shard, each replica's work once;
            0 for all others. What these have of something, times this, is what a micro-batch has of it.
        rounds: Most micro-batches that a stage of each replica runs.
        borders: Borders between stages in each replica; 0 in one whose stages do not all run the same number.
        all_even: All stages of each replica run the same number.
        is_piped: Some replica has more than one stage.
    """

    __slots__ = (*("all_even", "borders", "cells", "counts", "is_first", "is_piped", "num_stages", "rounds", "shares"),)

    def __init__(self, layout: FrameLayout) -> None:
        known_replicas, replica_of = np.unique(layout.replicas, return_inverse=True)
        known_stages, stage_of = np.unique(layout.stages, return_inverse=True)
        self.num_stages = len(known_stages)
        self.cells: Places = (replica_of * self.num_stages + stage_of).astype(np.int32)
        self.is_first: Bools = stage_of == 0
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

    def between_ranks(
        self, seconds: Floats, exchange_waits: Floats, walls: Floats, after_seconds: float
    ) -> tuple[float, float, float]:
        """What an iteration took between ranks.

        Of a border: what neither compute nor tensor exchange explains, from the replica that leaves least. An upper
        bound: waits for stragglers that the rounds below do not catch are in it. A pipeline of S stages and M
        micro-batches takes at least M rounds of its slowest stage and one of each other; a micro-batch crosses the
        S - 1 borders twice.

        Args:
            seconds: Compute seconds; one an entry, as in the next two.
            exchange_waits: Seconds that waited for the tensor exchange.
            walls: Seconds of the whole iteration.
            after_seconds: What comes after the pipelines.

        Returns:
            Seconds of the pipelines; seconds of a stage border (0 where no replica tells); seconds of a micro-batch's
            tensor exchange in all stages of a replica.
        """
        shape = len(self.rounds), self.num_stages
        exchange, slowest, begun = np.full(shape, np.inf), np.zeros(shape), np.full(shape, np.inf)
        # The shard that arrives last waits only for the exchange itself.
        np.minimum.at(exchange.reshape(-1), self.cells, exchange_waits / self.counts)
        np.maximum.at(slowest.reshape(-1), self.cells, seconds / self.counts)
        np.minimum.at(begun.reshape(-1), self.cells, walls)
        exchange[np.isinf(exchange)] = 0.0
        # Ranks end an iteration together, and whoever began it first waits for pipelines to begin: no transfer.
        pipeline_seconds = float(np.where(np.isinf(begun[:, 0]), 0.0, begun[:, 0]).max()) - after_seconds
        # Tensor exchange comes with every block, like compute: taken for the border, it would make a planner shun
        # borders.
        rounds = slowest + exchange
        shortest = rounds.sum(axis=1) + rounds.max(axis=1) * (self.rounds - 1)
        piped = self.borders > 0
        unexplained = (pipeline_seconds - shortest[piped]) / (2 * self.borders[piped])
        transfer = max(float(unexplained.min()), 0.0) if len(unexplained) else 0.0
        return pipeline_seconds, transfer, float(exchange.sum()) / len(exchange)
