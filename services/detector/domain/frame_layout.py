"""What a job's frames have in common as long as its layout stands: compared once a frame, worked out once a layout."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from numeric.compiled import compiled
from services.detector.domain.observation import FrameObservation

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


_COLUMNS = ("replicas", "stages", "shards", "num_micro_batches", "work_keys", "epochs", "has_flops")


class FrameLayout:
    """Who holds which part of the model and how much of the work: the columns that seldom change.

    Frames of the same layout get the same object, so whoever keeps something worked out from it asks by identity.

    Args:
        frame: A frame with at least one entry.
        entries: Those of its entries that count; None for all.

    Attributes:
        work_keys: What share of the model each entry holds.
        has_flops: Whether it knows what that costs.
        all_at_work: Every entry had micro-batches, under the epoch of the frame.
        all_priced: Every entry knows its flops.
        alike: All have the same number of micro-batches.
        everybody: True for every entry; the same object for all frames of the layout.
    """

    __slots__ = ("_columns", "_epoch", "alike", "all_at_work", "all_priced", "everybody", "has_flops", "work_keys")

    def __init__(self, frame: FrameObservation, entries: Bools | None = None) -> None:
        # As bytes: a frame's column may be a view that keeps all of its frame alive.
        self._epoch, self._columns = frame.epoch, _columns(frame)
        if entries is not None:
            self._columns = b"".join([getattr(frame, name)[entries].tobytes() for name in _COLUMNS])
        self.work_keys: Floats = self._column("work_keys", np.float64)
        self.has_flops: Bools = self._column("has_flops", np.bool_)
        at_work = (self.num_micro_batches > 0) & (self._column("epochs", np.int64) == frame.epoch)
        self.all_at_work = bool(np.count_nonzero(at_work) == len(at_work))
        self.all_priced = bool(np.count_nonzero(self.has_flops) == len(at_work))
        self.alike = bool(np.ptp(self.num_micro_batches) == 0)
        self.everybody: Bools = np.ones(len(at_work), dtype=np.bool_)

    @property
    def replicas(self) -> Ints:
        """Data-parallel replica of each entry."""
        return self._column("replicas", np.int64)

    @property
    def stages(self) -> Ints:
        """Its pipeline stage."""
        return self._column("stages", np.int64)

    @property
    def shards(self) -> Ints:
        """Its tensor shard."""
        return self._column("shards", np.int64)

    @property
    def num_micro_batches(self) -> Ints:
        """Micro-batches that it works on."""
        return self._column("num_micro_batches", np.int64)

    def _column(self, name: str, kind: type[np.generic]) -> npt.NDArray[Any]:
        # All but the last column have numbers of eight bytes, that one has bytes.
        count, place = len(self._columns) // (8 * (len(_COLUMNS) - 1) + 1), _COLUMNS.index(name)
        return np.frombuffer(self._columns, dtype=kind, count=count, offset=8 * count * place)

    @classmethod
    def of(cls, frame: FrameObservation, known: "FrameLayout | None") -> "FrameLayout":
        """The layout of a frame; ``known`` itself where that is the same."""
        if known is not None and known._epoch == frame.epoch and known._columns == _columns(frame):
            return known
        return cls(frame)

    def usable(self, frame: FrameObservation) -> Bools:
        """Entries of a frame of this layout whose times count; ``everybody`` itself where all do."""
        seconds, waits = frame.compute_seconds, frame.wait_seconds
        if self.all_at_work and _all_measured(seconds, frame.other_seconds, frame.wall_seconds, waits):
            return self.everybody
        usable: Bools = (seconds > 0) & np.isfinite(seconds + frame.other_seconds + frame.wall_seconds)
        usable &= np.isfinite(waits).all(axis=1)
        usable &= (frame.num_micro_batches > 0) & (frame.epochs == frame.epoch)
        return usable


@compiled
def _all_measured(seconds: Floats, others: Floats, walls: Floats, waits: Floats) -> bool:
    """Whether all times are numbers, ``seconds`` above 0; one entry or row a rank."""
    for entry in range(len(seconds)):
        total = seconds[entry] + others[entry] + walls[entry]
        for place in range(waits.shape[1]):
            total += waits[entry, place]
        if not (seconds[entry] > 0.0 and math.isfinite(total)):
            return False
    return True


def _columns(frame: FrameObservation) -> bytes:
    """The bytes of ``_COLUMNS``, one behind the other."""
    return b"".join(
        (
            frame.replicas.tobytes(),
            frame.stages.tobytes(),
            frame.shards.tobytes(),
            frame.num_micro_batches.tobytes(),
            frame.work_keys.tobytes(),
            frame.epochs.tobytes(),
            frame.has_flops.tobytes(),
        )
    )
