"""The frames of one job that wait for ranks. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from evenkeel.services.telemetry.domain.frame_entries import FrameEntries

FrameKey = tuple[int, int]
"""(epoch, iteration): frames close in ascending order of it."""


@dataclass(slots=True, kw_only=True)
class OpenFrame:
    """A frame that is not closed.

    Attributes:
        settled: The members of its epoch are known.
        waiting: Ranks that it waits for; of one that is not settled, those in it that have not gone on.
        absent: Members whose samples are not in.
        first_at_seconds: When its first sample came, Unix seconds; later by what was excused since.
        last_at_seconds: When its newest one came, likewise.
        first_offset: Offset of the record that brought its first sample.
        entries: Its samples.
    """

    settled: bool
    waiting: set[int]
    absent: set[int]
    first_at_seconds: float
    last_at_seconds: float
    first_offset: int
    entries: FrameEntries = field(default_factory=FrameEntries)


class OpenFrames:
    """The open frames by key, and what one frame's samples say of the others."""

    def __init__(self) -> None:
        """Starts with none."""
        self._frames: dict[FrameKey, OpenFrame] = {}
        # None that was ever opened is newer: what is opened next has most often nothing beyond it.
        self._newest: FrameKey = (-1, -1)

    def __len__(self) -> int:
        return len(self._frames)

    def __iter__(self) -> Iterator[FrameKey]:
        return iter(self._frames)

    def __getitem__(self, key: FrameKey) -> OpenFrame:
        return self._frames[key]

    @property
    def oldest(self) -> FrameKey:
        """Key of the frame that closes next; there must be one."""
        return min(self._frames) if len(self._frames) > 1 else next(iter(self._frames))

    @property
    def oldest_offset(self) -> int | None:
        """Offset of the oldest record that a frame needs; None if there is no frame."""
        return min((frame.first_offset for frame in self._frames.values()), default=None)

    def get(self, key: FrameKey) -> OpenFrame | None:
        """A frame; None if it is not open."""
        return self._frames.get(key)

    def add(self, key: FrameKey, frame: OpenFrame) -> None:
        """Opens a frame; whoever is further on already will not bring it."""
        if key < self._newest:
            self._wait_for_nobody_beyond(key, frame)
        self._newest = max(self._newest, key)
        self._frames[key] = frame

    def pop(self, key: FrameKey) -> OpenFrame:
        """Takes a frame out."""
        return self._frames.pop(key)

    def drop_from(self, iteration: int) -> int:
        """Takes out the frames of an iteration and of all later ones; returns how many samples were in them."""
        dropped = [key for key in self._frames if key[1] >= iteration]
        return sum(len(self._frames.pop(key).entries) for key in dropped)

    def are_settled(self, epoch: int) -> bool:
        """Whether all are of an epoch, and settled."""
        return all(key[0] == epoch and frame.settled for key, frame in self._frames.items())

    def settle(self, epoch: int, members: Iterable[int]) -> None:
        """The members of an epoch are known: its frames wait for those that are not in them."""
        for key, frame in self._frames.items():
            if key[0] == epoch:
                frame.settled = True
                frame.absent = set(members).difference(frame.entries.ranks())
                frame.waiting = set(frame.absent)
                self._wait_for_nobody_beyond(key, frame)

    def brought(self, key: FrameKey, ranks: Iterable[int]) -> None:
        """Ranks brought a frame: they bring no older one any more."""
        for other, older in self._frames.items():
            if other < key and older.waiting:
                older.waiting.difference_update(ranks)

    def all_brought(self, brought: Mapping[FrameKey, Iterable[int]]) -> None:
        """Ranks brought frames, ranks by frame: they bring no older ones any more."""
        beyond: set[int] = set()
        for key in sorted(self._frames, reverse=True):
            waiting = self._frames[key].waiting
            if waiting:
                waiting.difference_update(beyond)
            beyond.update(brought.get(key, ()))

    def gone(self, rank: int) -> None:
        """A rank ended: no frame waits for it."""
        for frame in self._frames.values():
            frame.waiting.discard(rank)

    def wait_for_nobody(self) -> None:
        """All frames are as complete as they get."""
        for frame in self._frames.values():
            frame.waiting.clear()

    def excuse(self, seconds: float) -> None:
        """So long nothing could be heard: it does not count as waiting."""
        for frame in self._frames.values():
            frame.first_at_seconds += seconds
            frame.last_at_seconds += seconds

    def _wait_for_nobody_beyond(self, key: FrameKey, frame: OpenFrame) -> None:
        if frame.waiting:
            for other, newer in self._frames.items():
                if other > key:
                    frame.waiting.difference_update(newer.entries.ranks())
