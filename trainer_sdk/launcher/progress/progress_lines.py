"""What a person at the terminal wants to know of a running job, as one line now and then."""

import math
import time
from collections.abc import Callable, Collection

from evenkeel.trainer_sdk.launcher.progress.progress_board import Note, ProgressBoard

_NOTHING_YET_SECONDS = 1.0
"""From one look to the next while nothing is known."""


class ProgressLines:
    """Makes the lines; does no output.

    Args:
        board: What ranks say.
        interval_seconds: Shortest time between two lines; 0 = no lines.
        clock: Unix seconds.
    """

    def __init__(
        self, board: ProgressBoard, interval_seconds: float, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._board = board
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._next_seconds = clock() + interval_seconds
        self._last: Note | None = None

    def line(self, alive: Collection[int], num_ranks: int, ask_standing: Callable[[], str] = lambda: "") -> str | None:
        """The line that is due; None when none is, or nothing is known yet.

        Args:
            alive: Ranks that have a process.
            num_ranks: Ranks of the job.
            ask_standing: What the ranks do, as the scheduler sees it; empty = nobody but the ranks says so. Called when
                a line is due.
        """
        now = self._clock()
        if not self._interval_seconds or now < self._next_seconds:
            return None
        note, standing = self._board.newest(), ask_standing()
        self._next_seconds = now + (self._interval_seconds if note or standing else _NOTHING_YET_SECONDS)
        if note is None:
            return f"no iteration yet  {standing}" if standing else None
        last, self._last = self._last, note
        words = [f"iteration {note.iteration}"]
        if not math.isnan(note.loss):
            words.append(f"loss {note.loss:.4f}")
        if last is not None and note.iteration > last.iteration:
            seconds = (note.at_unix_seconds - last.at_unix_seconds) / (note.iteration - last.iteration)
            words.append(f"{seconds:.3f} s/iteration")
        elif last is not None:
            words.append(f"standing still for {now - note.at_unix_seconds:.0f} s")
        words.append(f"epoch {note.epoch}")
        training = [rank for rank in self._board.training() if rank in alive]
        words.append(standing or f"training {len(training)} of {num_ranks}")
        return "  ".join(words)
