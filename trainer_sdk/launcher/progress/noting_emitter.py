"""An emitter that also leaves a note on the launcher's board now and then; everything else goes on to another one."""

import logging
import math
import threading
import time
from collections.abc import Callable

from evenkeel.telemetry.v2 import process_pb2
from evenkeel.trainer_sdk.emit.emitter import Emitter
from evenkeel.trainer_sdk.emit.left_value import number
from evenkeel.trainer_sdk.emit.measured import Measured
from evenkeel.trainer_sdk.launcher.progress.progress_board import Note, ProgressBoard

_logger = logging.getLogger("evenkeel.emit")


class NotingEmitter(Emitter):
    """See :class:`~evenkeel.trainer_sdk.emit.emitter.Emitter`.

    Notes are written by a thread of their own: a sample that is not built yet costs 0.1 ms, or a wait for the GPU, and
    the emitter behind this one builds nothing while Kafka is away.

    Args:
        inner: Gets everything.
        board: Where notes go.
        rank: Whose they are.
        interval_seconds: Between two notes.
    """

    def __init__(self, inner: Emitter, board: ProgressBoard, rank: int, *, interval_seconds: float = 0.5) -> None:
        self._inner, self.progress = inner, inner.progress
        self._board = board
        self._rank = rank
        self._interval_seconds = interval_seconds
        self._newest: Callable[[], Measured] | None = None
        self._noted: Callable[[], Measured] | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evenkeel-notes", daemon=True)
        self._thread.start()

    def emit_later(self, build: Callable[[], Measured]) -> None:
        """See the port."""
        self._newest = build
        self._inner.emit_later(build)

    def emit_event(self, event: process_pb2.ProcessEvent) -> None:
        """See the port."""
        self._inner.emit_event(event)

    def close(self, timeout_seconds: float = 1.0) -> None:
        """See the port; the last iteration is noted."""
        self._closing.set()
        self._inner.close(timeout_seconds)
        self._thread.join(timeout_seconds)

    # ---- the thread of the notes

    def _run(self) -> None:
        while not self._closing.wait(self._interval_seconds):
            self._note()
        self._note()

    def _note(self) -> None:
        # Only the training thread writes the newest one: taking it away here could take away one that just came.
        build = self._newest
        if build is None or build is self._noted:
            return
        self._noted = build
        try:
            measured = build()
            loss = number(measured.loss)
        except Exception:
            _logger.exception("an iteration could not be noted for the launcher")
            return
        note = Note(measured.iteration, measured.place.epoch, math.nan if loss is None else loss, time.time())
        self._board.write(self._rank, note)
