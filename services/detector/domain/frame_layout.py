"""What a job's frames have in common as long as its layout stands: compared once a frame, worked out once a layout."""

import math

import numpy as np
import numpy.typing as npt

from numeric.compiled import compiled
from services.detector.domain.observation import FrameObservation

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


_COLUMNS = ("replicas", "stages", "shards", "num_micro_batches", "work_keys", "has_flops", "epochs")


class FrameLayout:
    """Who holds which part of the model and how much of the work: the columns that seldom change.

    Frames of the same layout get the same object, so whoever keeps something worked out from it asks by identity.

    Args:
        frame: A frame with at least one entry.
        entries: Those of its entries that count; None for all.

    Attributes:
        replicas: Data-parallel replica of each entry.
        stages: Its pipeline stage.
        shards: Its tensor shard.
        num_micro_batches: Micro-batches that it works on.
        work_keys: What share of the model it holds.
        has_flops: Whether it knows what that costs.
        all_at_work: Every entry had micro-batches, under the epoch of the frame.
        all_priced: Every entry knows its flops.
        alike: All have the same number of micro-batches.
        everybody: True for every entry; the same object for all frames of the layout.
    """

    __slots__ = (
        "_known",
        "alike",
        "all_at_work",
        "all_priced",
        "everybody",
        "has_flops",
        "num_micro_batches",
        "replicas",
        "shards",
        "stages",
        "work_keys",
    )

    def __init__(self, frame: FrameObservation, entries: Bools | None = None) -> None:
        self._known = frame.epoch, _columns(frame)
        # Over the bytes that are kept anyway: a frame's column may be a view that keeps all of its frame alive.
        column = {
            name: np.frombuffer(raw, dtype=getattr(frame, name).dtype)
            for name, raw in zip(_COLUMNS, self._known[1], strict=True)
        }
        if entries is not None:
            column = {name: values[entries] for name, values in column.items()}
        self.replicas, self.stages, self.shards = column["replicas"], column["stages"], column["shards"]
        self.num_micro_batches, self.work_keys = column["num_micro_batches"], column["work_keys"]
        self.has_flops = column["has_flops"]
        at_work = (self.num_micro_batches > 0) & (column["epochs"] == frame.epoch)
        self.all_at_work = bool(np.count_nonzero(at_work) == len(at_work))
        self.all_priced = bool(np.count_nonzero(self.has_flops) == len(at_work))
        self.alike = bool(np.ptp(self.num_micro_batches) == 0)
        self.everybody: Bools = np.ones(len(at_work), dtype=np.bool_)

    @classmethod
    def of(cls, frame: FrameObservation, known: "FrameLayout | None") -> "FrameLayout":
        """The layout of a frame; ``known`` itself where that is the same."""
        if known is not None and known._known == (frame.epoch, _columns(frame)):
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


def _columns(frame: FrameObservation) -> tuple[bytes, ...]:
    """The bytes of ``_COLUMNS``."""
    return (
        frame.replicas.tobytes(),
        frame.stages.tobytes(),
        frame.shards.tobytes(),
        frame.num_micro_batches.tobytes(),
        frame.work_keys.tobytes(),
        frame.has_flops.tobytes(),
        frame.epochs.tobytes(),
    )
