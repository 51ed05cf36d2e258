"""One iteration of a plain training loop, measured: what ``with run.iteration(...)`` gives."""

import resource
import sys
import time
from typing import Any, Protocol, Self

from evenkeel.telemetry.v1 import telemetry_pb2 as pb

from trainer_sdk.devices.device import ComputeKind, Device
from trainer_sdk.emit.progress import ProgressMark

_MARKS = {"": pb.MARK_UNSPECIFIED, "evaluation": pb.MARK_EVALUATION, "checkpoint": pb.MARK_CHECKPOINT}
_MAX_RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


class _Finished(Protocol):
    def __call__(self, iteration: "Iteration", /) -> None: ...


class Iteration:
    """Measures from entering to leaving; a body that raises is no finished iteration and is not reported.

    The training thread only reads clocks and stores values; :meth:`sample` builds the message on another thread.

    Args:
        index: Iteration, counted from 0.
        tokens: Tokens N of this rank's batch.
        sum_of_squares: Sum of squared document lengths; 0 when not known.
        mark: ``evaluation`` or ``checkpoint`` when such a pause falls into the iteration, else empty.
        device: Measures compute segments.
        progress: Where the operation reached is noted.
        segments: Made once per run by :func:`make_segments`.
        finished: Called on leaving, on the training thread.

    Raises:
        ValueError: Unknown mark.

    Attributes:
        loss: Set it to the iteration's loss: a number or a tensor. A tensor is read later, on another thread.
        gradient_norm: Likewise, if measured.
    """

    __slots__ = (
        "_compute_seconds",
        "_device",
        "_finished",
        "_mark",
        "_progress",
        "_segments",
        "_started_seconds",
        "_started_unix_seconds",
        "_sum_of_squares",
        "_tokens",
        "_wall_seconds",
        "gradient_norm",
        "index",
        "loss",
    )

    def __init__(
        self,
        index: int,
        *,
        tokens: int,
        sum_of_squares: float,
        mark: str,
        device: Device,
        progress: ProgressMark,
        segments: "Segments",
        finished: _Finished,
    ) -> None:
        if mark not in _MARKS:
            raise ValueError(f"mark {mark!r}: use one of {', '.join(repr(known) for known in _MARKS)}")
        self.index = index
        self.loss: Any = None
        self.gradient_norm: Any = None
        self._tokens = tokens
        self._sum_of_squares = sum_of_squares
        self._mark = mark
        self._device = device
        self._progress = progress
        self._segments = segments
        self._finished = finished
        self._started_seconds = 0.0
        self._started_unix_seconds = 0.0
        self._wall_seconds = 0.0
        self._compute_seconds: dict[ComputeKind, float] = {}

    def __enter__(self) -> Self:
        self._progress.begin_iteration(self.index, 0)
        self._progress.enter("iteration")
        self._started_unix_seconds = time.time()
        self._started_seconds = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._wall_seconds = time.perf_counter() - self._started_seconds
        self._progress.enter("between iterations")
        if kind is not None:
            return
        if hasattr(self.loss, "detach"):  # keep the number, not the graph behind it
            self.loss = self.loss.detach()
        if hasattr(self.gradient_norm, "detach"):
            self.gradient_norm = self.gradient_norm.detach()
        self._compute_seconds = self._device.take_seconds()
        self._finished(self)

    def compute(self, kind: str) -> "Segment":
        """A context for one compute segment: ``forward``, ``backward``, ``optimizer`` or ``data``.

        Raises:
            ValueError: Unknown kind.
        """
        segment = self._segments.get(kind)
        if segment is None:
            raise ValueError(f"compute kind {kind!r}: use one of {', '.join(self._segments)}")
        return segment

    def sample(self) -> pb.Sample:
        """The message; reads tensors, so it may wait for a GPU: never call it on the training thread."""
        seconds = self._compute_seconds
        sample = pb.Sample(
            iteration=self.index,
            started_at_unix_seconds=self._started_unix_seconds,
            wall_seconds=self._wall_seconds,
            compute=pb.ComputeSeconds(
                forward=seconds.get(ComputeKind.FORWARD, 0.0),
                backward=seconds.get(ComputeKind.BACKWARD, 0.0),
                optimizer=seconds.get(ComputeKind.OPTIMIZER, 0.0),
                data=seconds.get(ComputeKind.DATA, 0.0),
            ),
            micro_batches=[pb.MicroBatch(index=0, tokens=self._tokens, sum_of_squares=self._sum_of_squares)],
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAX_RSS_UNIT_BYTES,
            mark=_MARKS[self._mark],
        )
        if self.loss is not None:
            sample.loss = float(self.loss)
        if self.gradient_norm is not None:
            sample.gradient_norm = float(self.gradient_norm)
        return sample


class Segment:
    """A context around one compute segment; the same object serves every iteration, one segment at a time."""

    __slots__ = ("_device", "_kind", "_progress")

    def __init__(self, kind: ComputeKind, device: Device, progress: ProgressMark) -> None:
        self._kind = kind
        self._device = device
        self._progress = progress

    def __enter__(self) -> None:
        self._progress.enter(self._kind)
        self._device.begin()

    def __exit__(self, *_: object) -> None:
        self._device.end(0.0, self._kind)


Segments = dict[str, Segment]


def make_segments(device: Device, progress: ProgressMark) -> Segments:
    """The segments of a run, by kind."""
    kinds = (ComputeKind.FORWARD, ComputeKind.BACKWARD, ComputeKind.OPTIMIZER, ComputeKind.DATA)
    return {kind.value: Segment(kind, device, progress) for kind in kinds}
