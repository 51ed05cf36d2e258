"""An emitter that also leaves a note on the launcher's board now and then; everything else goes on to another one."""

import math
import time
from collections.abc import Callable

from evenkeel.telemetry.v1 import telemetry_pb2

from trainer_sdk.emit.emitter import Emitter
from trainer_sdk.emit.progress import ProgressMark
from trainer_sdk.launcher.progress_board import Note, ProgressBoard

# A note costs the training thread 0.1 ms when its sample is not built yet.
_INTERVAL_SECONDS = 0.5


class NotingEmitter:
    """See :class:`~trainer_sdk.emit.emitter.Emitter`.

    Args:
        inner: Gets everything.
        board: Where notes go.
        rank: Whose they are.
    """

    def __init__(self, inner: Emitter, board: ProgressBoard, rank: int) -> None:
        self._inner = inner
        self._board = board
        self._rank = rank
        self._next_seconds = 0.0

    @property
    def progress(self) -> ProgressMark:
        """See the port."""
        return self._inner.progress

    def emit_sample(self, sample: telemetry_pb2.Sample) -> None:
        """See the port."""
        if time.monotonic() >= self._next_seconds:
            self._note(sample)
        self._inner.emit_sample(sample)

    def emit_later(self, build: Callable[[], telemetry_pb2.Sample]) -> None:
        """See the port."""
        if time.monotonic() >= self._next_seconds:
            self.emit_sample(build())
        else:
            self._inner.emit_later(build)

    def emit_event(self, event: telemetry_pb2.ProcessEvent) -> None:
        """See the port."""
        self._inner.emit_event(event)

    def close(self, timeout_seconds: float = 1.0) -> None:
        """See the port."""
        self._inner.close(timeout_seconds)

    def _note(self, sample: telemetry_pb2.Sample) -> None:
        self._next_seconds = time.monotonic() + _INTERVAL_SECONDS
        loss = sample.loss if sample.HasField("loss") else math.nan
        self._board.write(self._rank, Note(sample.iteration, sample.epoch, loss, time.time()))
