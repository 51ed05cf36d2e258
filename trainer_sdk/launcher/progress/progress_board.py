"""A small file that all ranks of a job map: how far each has got, for the launcher to show. No rank waits for it."""

import math
import struct
from typing import NamedTuple

from evenkeel.trainer_sdk.devices.rank_table import RankTable

_NOTE = struct.Struct("dddd")
# Ranks end their iterations together, and leave a note of each; a busy machine lets them wait for long.
_SAME_TIME_SECONDS = 10.0


class Note(NamedTuple):
    """What a rank last said; ``loss`` is NaN where it has none."""

    iteration: int
    epoch: int
    loss: float
    at_unix_seconds: float


class ProgressBoard(RankTable):
    """One note per rank, shared between processes through a file; each rank writes its own."""

    WHAT = "progress board"
    PER_RANK = 4

    def write(self, rank: int, note: Note) -> None:
        """Replaces a rank's note."""
        _NOTE.pack_into(self._map, rank * _NOTE.size, *note)

    def newest(self) -> Note | None:
        """The note of whoever got furthest, a loss preferred; None while nobody has said anything.

        A note that is being written meanwhile may be half old: good enough for the eye.
        """
        notes = self._notes().values()
        return max(notes, key=lambda note: (note.epoch, note.iteration, not math.isnan(note.loss)), default=None)

    def training(self) -> tuple[int, ...]:
        """Ranks that keep up with whoever got furthest: of the same epoch, and heard of at about the same time."""
        notes, newest = self._notes(), self.newest()
        if newest is None:
            return ()
        last_seconds = max(note.at_unix_seconds for note in notes.values()) - _SAME_TIME_SECONDS
        return tuple(
            rank for rank, note in notes.items() if note.epoch == newest.epoch and note.at_unix_seconds >= last_seconds
        )

    def _notes(self) -> dict[int, Note]:
        return {
            rank: Note(int(iteration), int(epoch), loss, at)
            for rank, (iteration, epoch, loss, at) in enumerate(_NOTE.iter_unpack(self._map[:]))
            if at > 0.0
        }
