"""What a job's frames have in common as long as its layout stands: compared once a frame, worked out once a layout."""

from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats, Ints
from evenkeel.services.detector.domain.frames.observation import FrameObservation

Made = TypeVar("Made")


class FrameLayout:
    """Who holds which part of the model and how much of the work: the columns that seldom change.

    Frames of the same layout get the same object, which keeps what is worked out from it.

    Args:
        frame: A frame with at least one entry.
        entries: Those of its entries that count; None for all.

    Attributes:
        epoch: Epoch of its frames.
        replicas: Data-parallel replica of each entry.
        stages: Its pipeline stage.
        shards: Its tensor shard.
        num_micro_batches: Micro-batches that it works on.
        work_keys: What share of the model each entry holds.
        has_flops: Whether it knows what that costs.
        alike: All have the same number of micro-batches.
    """

    replicas: Ints
    stages: Ints
    shards: Ints
    num_micro_batches: Ints

    def __init__(self, frame: FrameObservation, entries: Bools | None = None) -> None:
        # Copies: a frame's column may be a view that keeps all of its frame alive.
        self.epoch = frame.epoch
        some = slice(None) if entries is None else entries
        self._columns: Ints = np.stack([column[some] for column in _columns_of(frame)])
        self.replicas, self.stages, self.shards, self.num_micro_batches = self._columns
        self.work_keys: Floats = np.array(frame.work_keys[some])
        self.has_flops: Bools = np.array(frame.has_flops[some])
        self.alike = bool(np.ptp(self.num_micro_batches) == 0)
        self._made: dict[Callable[[FrameLayout], object], object] = {}

    def once(self, make: "Callable[[FrameLayout], Made]") -> "Made":
        """What ``make`` makes of this layout, which is done once."""
        if make not in self._made:
            self._made[make] = make(self)
        return cast("Made", self._made[make])

    def is_of(self, frame: FrameObservation) -> bool:
        """Whether everybody in a frame holds what this layout says."""
        return (
            self.epoch == frame.epoch
            and len(self.work_keys) == len(frame)
            and bool((self._columns == np.stack(_columns_of(frame))).all())
            and np.array_equal(self.work_keys, frame.work_keys)
            and np.array_equal(self.has_flops, frame.has_flops)
        )


def _columns_of(frame: FrameObservation) -> tuple[Ints, ...]:
    return frame.replicas, frame.stages, frame.shards, frame.num_micro_batches
