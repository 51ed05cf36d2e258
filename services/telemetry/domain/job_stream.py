"""One job's stream of observations: frames, pictures and events, numbered in the order in which they were made."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from evenkeel.numeric.arrays import Ints
from evenkeel.services.telemetry.domain.frame_rules import FrameRules
from evenkeel.services.telemetry.domain.frames import FrameJoiner
from evenkeel.services.telemetry.domain.observed import (
    ArrivedEvent,
    ArrivedProgress,
    ArrivedSample,
    ClosedFrame,
    EventKind,
    Numbered,
    Observed,
)
from evenkeel.services.telemetry.domain.progress import ProgressWatcher, WatchRules
from evenkeel.services.telemetry.domain.sample_block import SampleBlock

RETURN_SECONDS = 12.0
"""After a long cut every rank has so long to come back; a client's longest pause and attempt are in it."""
_MAX_REMEMBERED_EVENTS = 4096


class JobStream:
    """What is known of one job. Pure; belongs to whoever owns the job's partition."""

    def __init__(
        self,
        job_id: str,
        *,
        first_sequence: int = 0,
        frame_rules: FrameRules | None = None,
        watch_rules: WatchRules | None = None,
    ) -> None:
        """Starts knowing nothing of the job.

        Args:
            job_id: The job.
            first_sequence: Number of the first observation.
            frame_rules: When frames close.
            watch_rules: When pictures are taken.
        """
        self.job_id = job_id
        self.frames = FrameJoiner(frame_rules)
        self.watcher = ProgressWatcher(watch_rules)
        self.heard_at_seconds = 0.0
        self._all_back_at_seconds = 0.0
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
            if kind in (EventKind.DIED, EventKind.FINISHED):
                stream._apply(ArrivedEvent(at_seconds, kind, rank, incarnation, None), now_seconds)
        return stream

    def resume(
        self,
        *,
        next_sequence: int,
        last_frame: ClosedFrame | None,
        events: Iterable[ArrivedEvent],
        until_offset: int,
        now_seconds: float,
    ) -> None:
        """Goes on where an earlier process of this service stopped.

        Args:
            next_sequence: Number of the next observation.
            last_frame: The last frame that was closed, payloads not needed; None if there was none.
            events: Events that were passed on already, in order.
            until_offset: Records up to this offset may come again.
            now_seconds: Unix seconds; from here on silence counts.
        """
        self._next_sequence = next_sequence
        self.heard_at_seconds = now_seconds
        if last_frame is not None:
            self.frames.resume(last_frame, until_offset=until_offset)
            for entry in last_frame.entries:
                self.watcher.finished_iteration(entry.rank, entry.incarnation, now_seconds)
        for event in events:
            self._remember(event)
            self._apply(event, now_seconds)

    def excuse_silence(self, now_seconds: float) -> None:
        """Nothing was heard since the last record came: that time counts for nothing, and ranks are back one by one."""
        gap_seconds = max(0.0, now_seconds - self.heard_at_seconds)
        self.frames.excuse(gap_seconds)
        self.watcher.excuse(gap_seconds)
        self.heard_at_seconds = now_seconds
        # Clients' pauses grow with what they have waited for.
        self.wait_for_all(now_seconds + min(gap_seconds, RETURN_SECONDS))

    def wait_for_all(self, until_seconds: float) -> None:
        """Up to this time, or a later one that was told before, ranks come back one by one after a cut."""
        self._all_back_at_seconds = max(self._all_back_at_seconds, until_seconds)
        self.frames.wait_for_all(self._all_back_at_seconds)
        self.watcher.wait_for_all(self._all_back_at_seconds)

    def heard(self, rank: int, incarnation: int, now_seconds: float) -> None:
        """A record of a rank's process came."""
        if self.watcher.cut_off(now_seconds):
            self.excuse_silence(now_seconds)
        self.heard_at_seconds = now_seconds
        self.watcher.heard(rank, incarnation, now_seconds)

    def sample(self, sample: ArrivedSample, now_seconds: float) -> list[Numbered]:
        """Takes in a sample."""
        self.watcher.finished_iteration(sample.rank, sample.incarnation, now_seconds)
        closed = self.frames.add(sample, now_seconds)
        return self._number(closed) if closed else []

    def records(
        self,
        processes: Ints,
        num_samples: Ints,
        progress: Sequence[tuple[int, ArrivedProgress]],
        block: SampleBlock,
        first: int,
        stop: int,
        now_seconds: float,
    ) -> list[Numbered]:
        """Takes in records that came together: as sample by sample and report by report, but faster.

        Args:
            processes: One row a record: rank and incarnation.
            num_samples: Samples of each record.
            progress: Newest progress of the records that have any, with the record's row, ascending.
            block: Where their samples are.
            first: Row of the first sample.
            stop: Behind the row of the last one.
            now_seconds: Unix seconds.
        """
        if self.watcher.cut_off(now_seconds):
            self.excuse_silence(now_seconds)
        if stop > first or progress:
            self.heard_at_seconds = now_seconds
        begin = 0
        for row, report in progress:
            self.watcher.finished_iterations(processes[begin : row + 1], num_samples[begin : row + 1], now_seconds)
            self.watcher.add(report, now_seconds)
            begin = row + 1
        self.watcher.finished_iterations(processes[begin:], num_samples[begin:], now_seconds)
        closed = self.frames.add_rows(block, first, stop, now_seconds) if stop > first else []
        return self._number(closed) if closed else []

    def progress(self, progress: ArrivedProgress, now_seconds: float) -> None:
        """Takes in a progress report; pictures are taken by :meth:`tick`."""
        self.watcher.add(progress, now_seconds)

    def event(self, event: ArrivedEvent, now_seconds: float) -> list[Numbered]:
        """Passes an event on, once."""
        if not self._remember(event):
            return []
        return self._number([event, *self._apply(event, now_seconds)])

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

    def _apply(self, event: ArrivedEvent, now_seconds: float) -> list[ClosedFrame]:
        self.watcher.event(event, now_seconds)
        # Whoever finished has sent all its samples, though they may arrive after the news: only death ends the wait.
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
            numbered.append(Numbered(sequence=self._next_sequence, observed=each))
            self._next_sequence += 1
        return numbered


def _key_of(event: ArrivedEvent) -> tuple[float, EventKind, int, int]:
    return event.at_seconds, event.kind, event.rank, event.incarnation
