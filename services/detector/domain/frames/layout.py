"""What a job's frames have in common as long as its layout stands: compared once a frame, worked out once a layout."""

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.frames.observation import FrameObservation

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class FrameLayout:
    """Who holds which part of the model and how much of the work: the columns that seldom change.

    Frames of the same layout get the same object, so whoever keeps something worked out from it asks by identity.

    Args:
        frame: A frame with at least one entry.
        entries: Those of its entries that count; None for all.

    Attributes:
        epoch: Epoch of its frames.
        columns: Replica, stage, shard, micro-batches and epoch by entries.
        work_keys: What share of the model each entry holds.
        has_flops: Whether it knows what that costs.
        all_at_work: Every entry had micro-batches, under the epoch of the frame.
        all_priced: Every entry knows its flops.
        alike: All have the same number of micro-batches.
        everybody: True for every entry; the same object for all frames of the layout.
    """

    __slots__ = ("alike", "all_at_work", "all_priced", "columns", "epoch", "everybody", "has_flops", "work_keys")

    def __init__(self, frame: FrameObservation, entries: Bools | None = None) -> None:
        # Copies: a frame's column may be a view that keeps all of its frame alive.
        self.epoch = frame.epoch
        some = slice(None) if entries is None else entries
        self.columns: Ints = np.stack([column[some] for column in _columns_of(frame)])
        self.work_keys: Floats = np.array(frame.work_keys[some])
        self.has_flops: Bools = np.array(frame.has_flops[some])
        at_work = (self.num_micro_batches > 0) & (self.columns[4] == frame.epoch)
        self.all_at_work = bool(np.count_nonzero(at_work) == len(at_work))
        self.all_priced = bool(np.count_nonzero(self.has_flops) == len(at_work))
        self.alike = bool(np.ptp(self.num_micro_batches) == 0)
        self.everybody: Bools = np.ones(len(at_work), dtype=np.bool_)

    def is_of(self, frame: FrameObservation) -> bool:
        """Whether everybody in a frame holds what this layout says."""
        return (
            self.epoch == frame.epoch
            and len(self.work_keys) == len(frame)
            and bool((self.columns == np.stack(_columns_of(frame))).all())
            and np.array_equal(self.work_keys, frame.work_keys)
            and np.array_equal(self.has_flops, frame.has_flops)
        )

    @property
    def replicas(self) -> Ints:
        """Data-parallel replica of each entry."""
        column: Ints = self.columns[0]
        return column

    @property
    def stages(self) -> Ints:
        """Its pipeline stage."""
        column: Ints = self.columns[1]
        return column

    @property
    def shards(self) -> Ints:
        """Its tensor shard."""
        column: Ints = self.columns[2]
        return column

    @property
    def num_micro_batches(self) -> Ints:
        """Micro-batches that it works on."""
        column: Ints = self.columns[3]
        return column

    def usable(self, frame: FrameObservation, *, is_measured: bool) -> Bools:
        """Entries of a frame of this layout whose times count; ``everybody`` itself where all do.

        Args:
            frame: The frame.
            is_measured: All times are numbers, compute seconds above 0.
        """
        if self.all_at_work and is_measured:
            return self.everybody
        seconds = frame.compute_seconds
        usable: Bools = (seconds > 0) & np.isfinite(seconds + frame.other_seconds + frame.wall_seconds)
        usable &= np.isfinite(frame.wait_seconds).all(axis=1)
        usable &= (frame.num_micro_batches > 0) & (frame.epochs == frame.epoch)
        return usable


def _columns_of(frame: FrameObservation) -> tuple[Ints, ...]:
    return frame.replicas, frame.stages, frame.shards, frame.num_micro_batches, frame.epochs
