"""Which entries of a frame share a replica and a stage, and what pipelines they make: worked out once for a layout."""

import numpy as np
import numpy.typing as npt

from services.detector.domain.frame_layout import FrameLayout

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def same_numbers(one: Ints, other: Ints) -> bool:
    """Whether two arrays hold the same numbers; at once where they are one."""
    return one is other or (len(one) == len(other) and np.count_nonzero(one == other) == len(one))


class PipelineGrid:
    """Replicas by stages; those that nobody is in are left out.

    Args:
        layout: Of at least one entry, all of which have micro-batches.

    Attributes:
        layout: The layout.
        shape: Replicas, stages.
        each_counts: Micro-batches of each entry; one number where it is the same for all.
        shares: One over the job's micro-batches for entries of the first stage and shard, each replica's work once;
            0 for all others. What these have of something, times this, is what a micro-batch has of it.
        taken: Whether somebody is in each replica and stage.
        rounds: Most micro-batches that a stage of each replica runs.
        borders: Borders between stages in each replica.
        all_taken: Somebody is everywhere.
        piped: Replicas of more than one stage.
        evenly_piped: Those of them whose stages all run the same number.
        all_even: The stages of each replica do.
    """

    def __init__(self, layout: FrameLayout) -> None:
        self.layout = layout
        known_replicas, replica_of = np.unique(layout.replicas, return_inverse=True)
        known_stages, stage_of = np.unique(layout.stages, return_inverse=True)
        self.shape = len(known_replicas), len(known_stages)
        cells = replica_of * self.shape[1] + stage_of
        order = np.argsort(cells, kind="stable")
        self._order = None if np.array_equal(order, np.arange(len(order))) else order
        taken, firsts, sizes = np.unique(cells[order], return_index=True, return_counts=True)
        full = len(taken) == self.shape[0] * self.shape[1] and np.ptp(sizes) == 0
        self._shards = int(sizes[0]) if full else 0
        # Where each cell that somebody is in begins; where all have as many shards, that need not be known.
        self._begins = None if full else (taken, firsts)
        counts = layout.num_micro_batches.astype(np.float64)
        self.each_counts = float(counts[0]) if layout.alike else counts
        heads = (layout.stages == layout.stages.min()) & (layout.shards == layout.shards.min())
        self.shares: Floats = heads / max(float(counts[heads].sum()), 1.0)
        self._ones = np.ones(self.shape[1])
        most = self.highest(counts)
        self.taken = most > 0
        self.rounds = most.max(axis=1)
        self.borders = self.taken.sum(axis=1) - 1
        even = self.lowest(counts).min(axis=1) == self.rounds
        self.all_taken, self.all_even = bool(self.taken.all()), bool(even.all())
        self.piped = np.flatnonzero(self.borders > 0)
        self.evenly_piped = self.piped if self.all_even else np.flatnonzero((self.borders > 0) & even)

    def highest(self, values: Floats) -> Floats:
        """The highest value of each replica and stage; 0 where nobody is. Entries are the last axis."""
        return self._reduced(np.maximum, values, 0.0)

    def lowest(self, values: Floats) -> Floats:
        """The lowest value of each replica and stage; infinite where nobody is. Entries are the last axis."""
        return self._reduced(np.minimum, values, np.inf)

    def over_stages(self, values: Floats) -> Floats:
        """The sum of each replica's stages; replicas and stages are the last axes."""
        found: Floats = np.dot(values, self._ones)
        return found

    def _reduced(self, which: np.ufunc, values: Floats, nobody: float) -> Floats:
        before = values.shape[:-1]
        if self._order is not None:
            values = values[..., self._order]
        if self._shards == 1:
            return values.reshape(*before, *self.shape)
        if self._begins is None:
            return np.asarray(which.reduce(values.reshape(*before, *self.shape, self._shards), axis=-1))
        found = np.full((*before, self.shape[0] * self.shape[1]), nobody)
        cells, firsts = self._begins
        found[..., cells] = which.reduceat(values, firsts, axis=-1)
        return found.reshape(*before, *self.shape)
