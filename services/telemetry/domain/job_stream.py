"""One job's stream of observations: frames, pictures and events, numbered in the order in which they were made."""

from collections import OrderedDict
from collections.abc import Iterable

from evenkeel.contracts.frames import Frames
from evenkeel.services.telemetry.domain.joiner import FrameJoiner
from evenkeel.services.telemetry.domain.observed import (
    ENDS,
    Arrived,
    ArrivedEvent,
    EventKind,
    JobMemory,
    Numbered,
    Observed,
)
from evenkeel.services.telemetry.domain.progress import ProgressWatcher

RETURN_SECONDS = 12.0
"""After a long cut every rank has so long to come back; a client's longest pause and attempt are in it."""
# A reporter's clock that is further off, as by a time zone, is not believed: what it tells of happens as it comes.
_MOST_OFF_SECONDS = 600.0
_MAX_REMEMBERED_EVENTS = 4096


class JobStream:
    """What is known of one job. Pure; belongs to whoever owns the job's partition."""

    def __init__(self, job_id: str, *, first_sequence: int = 0) -> None:
        """Starts knowing nothing of the job.

        Args:
            job_id: The job.
            first_sequence: Number of the first observation.
        """
        self.job_id = job_id
        self.frames = FrameJoiner()
        self.watcher = ProgressWatcher()
        self.heard_at_seconds = 0.0
        self._next_sequence = first_sequence
        self._seen_events: OrderedDict[tuple[float, EventKind, int, int], None] = OrderedDict()

    def begun_anew(self, untold: Iterable[ArrivedEvent], now_seconds: float) -> "JobStream":
        """A stream that knows only what was said: its numbers go on, and whose process has ended.

        Args:
            untold: Events that were taken in, but not told to anybody: they may come once more.
            now_seconds: Unix seconds.
        """
        stream = JobStream(self.job_id, first_sequence=self._next_sequence)
        stream.heard_at_seconds = self.heard_at_seconds
        stream._seen_events = self._seen_events
        for event in untold:
            stream._seen_events.pop(_key_of(event), None)
        for at_seconds, kind, rank, incarnation in stream._seen_events:
            if kind in ENDS:
                stream._apply(ArrivedEvent(at_seconds, kind, rank, incarnation, None), now_seconds)
        return stream

    def resume(self, said: JobMemory, *, until_offset: int, now_seconds: float) -> None:
        """Goes on where an earlier process of this service stopped.

        Args:
            said: What that said.
            until_offset: Records up to this offset may come again.
            now_seconds: Unix seconds; from here on silence counts.
        """
        self._next_sequence = said.next_sequence
        self.heard_at_seconds = now_seconds
        if said.last_frames is not None:
            self.frames.resume(said.last_frames, until_offset=until_offset)
            members = said.last_frames.members
            self.watcher.finished_iterations(members.rank, members.incarnation, now_seconds)
        for event in said.events:
            self._remember(event)
            self._apply(event, now_seconds)

    def after_a_cut(self, seconds: float, *, until_seconds: float) -> None:
        """Nothing could be heard for so long: that time counts for nothing, and ranks are back one by one."""
        self.frames.excuse(seconds)
        self.watcher.excuse(seconds)
        self.heard_at_seconds = until_seconds
        # Clients' pauses grow with what they have waited for.
        self.wait_for_all(until_seconds + min(seconds, RETURN_SECONDS))

    def is_over(self, now_seconds: float, *, idle_seconds: float) -> bool:
        """Whether all processes have ended, or nothing came for so long that this is believed."""
        silent_seconds = now_seconds - self.heard_at_seconds
        ended = self.watcher.all_ended and silent_seconds > RETURN_SECONDS
        return ended or silent_seconds > idle_seconds

    def wait_for_all(self, until_seconds: float) -> None:
        """Up to this time, or a later one that was told before, ranks come back one by one after a cut."""
        all_back_at_seconds = max(self.frames.all_back_at_seconds, until_seconds)
        self.frames.all_back_at_seconds = self.watcher.all_back_at_seconds = all_back_at_seconds

    def take(self, arrived: Arrived, now_seconds: float, first_seconds: float | None = None) -> list[Numbered]:
        """Takes in what came together.

        What a process measured comes before the news of its end, however the two came: it was there before.

        Args:
            arrived: It.
            now_seconds: When the last of it came, Unix seconds.
            first_seconds: When the first of it came; None: all at once.
        """
        batches = arrived.batches
        if len(batches.iteration) or arrived.progress:
            first_seconds = now_seconds if first_seconds is None else first_seconds
            if self.watcher.cut_off(first_seconds):
                self.after_a_cut(first_seconds - self.heard_at_seconds, until_seconds=first_seconds)
            self.heard_at_seconds = now_seconds
        with_iterations = batches.num_iterations > 0
        self.watcher.finished_iterations(
            batches.rank[with_iterations], batches.incarnation[with_iterations], now_seconds
        )
        for report in arrived.progress:
            self.watcher.add(report, now_seconds)
        numbered = self._number(self.frames.add(batches, arrived.offsets, now_seconds))
        for event in arrived.events:
            if self._remember(event):
                numbered += self._number([_dated(event, now_seconds), *self._apply(event, now_seconds)])
        return numbered

    def tick(self, now_seconds: float) -> list[Numbered]:
        """What the passing of time alone brings."""
        observed: list[Observed] = []
        if not self.watcher.cut_off(now_seconds):
            known_seconds = self.watcher.known_until_seconds(now_seconds)
            observed.extend(self.frames.tick(now_seconds, known_seconds=known_seconds))
        picture = self.watcher.tick(now_seconds, iteration_seconds=self.frames.iteration_seconds)
        if picture is not None:
            observed.append(picture)
        return self._number(observed)

    def _apply(self, event: ArrivedEvent, now_seconds: float) -> list[Frames]:
        self.watcher.event(event, now_seconds)
        # Whoever finished has sent all that it measured, though it may arrive after the news: only death ends the wait.
        if event.kind is EventKind.DIED:
            return self.frames.gone(event.rank, event.incarnation, now_seconds)
        return []

    def _remember(self, event: ArrivedEvent) -> bool:
        key = _key_of(event)
        if key in self._seen_events:
            return False
        self._seen_events[key] = None
        if len(self._seen_events) > _MAX_REMEMBERED_EVENTS:
            self._seen_events.popitem(last=False)
        return True

    def _number(self, observed: Iterable[Observed]) -> list[Numbered]:
        numbered = []
        for each in observed:
            numbered.append(Numbered(self._next_sequence, each))
            self._next_sequence += len(each) if isinstance(each, Frames) else 1
        return numbered


def _dated(event: ArrivedEvent, now_seconds: float) -> ArrivedEvent:
    return event if abs(now_seconds - event.at_seconds) <= _MOST_OFF_SECONDS else event._replace(at_seconds=now_seconds)


def _key_of(event: ArrivedEvent) -> tuple[float, EventKind, int, int]:
    return event.at_seconds, event.kind, event.rank, event.incarnation
