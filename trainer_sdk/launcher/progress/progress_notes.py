"""Leaves a note of a rank's newest iteration on the launcher's board now and then."""

import logging
import math
import threading
import time
from collections.abc import Callable

from evenkeel.trainer_sdk.emit.emitter import Emitter
from evenkeel.trainer_sdk.emit.left_value import number
from evenkeel.trainer_sdk.emit.measured import Measured
from evenkeel.trainer_sdk.launcher.progress.progress_board import Note, ProgressBoard

_logger = logging.getLogger("evenkeel.emit")


class ProgressNotes:
    """The notes of one rank, whether or not Kafka is there to hear of it.

    A thread of their own writes them: a sample that is not built yet costs 0.1 ms, or a wait for the GPU.

    Args:
        emitter: Is told of iterations.
        board: Where notes go.
        rank: Whose they are.
        interval_seconds: Between two notes.
    """

    def __init__(self, emitter: Emitter, board: ProgressBoard, rank: int, *, interval_seconds: float = 0.5) -> None:
        self._emitter = emitter
        self._board = board
        self._rank = rank
        self._interval_seconds = interval_seconds
        self._noted: Callable[[], Measured] | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evenkeel-notes", daemon=True)
        self._thread.start()

    def close(self, timeout_seconds: float = 1.0) -> None:
        """The last iteration is noted."""
        self._closing.set()
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while not self._closing.wait(self._interval_seconds):
            self._note()
        self._note()

    def _note(self) -> None:
        build = self._emitter.newest
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
