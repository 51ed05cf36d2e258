"""Joins the samples of one job into frames. Pure: samples, deaths and the time go in, closed frames come out.

What is relied on: a rank's own samples arrive in the order in which it made them (one producer, one key), samples of
different ranks in any order; anything may come twice or not at all.

When a frame closes, oldest first and never out of order:

- *Settled* (the members of its epoch are known): as soon as nobody is waited for. A rank is no longer waited for when
  its sample is in, when it brought a later iteration (the earlier sample is lost for good), or when it is gone.
- *Unsettled* (the first frame of an epoch: layouts shrink and grow): as soon as every rank that is in it has gone on to
  a later iteration. Who is in it then are the epoch's members. A layout that shrank waits for nobody from before.
- Either: when its time is over, which follows the job's own iteration time; after a grace, when a newer epoch has
  begun; at once, when too many frames are open.

A frame of an older epoch whose iteration a newer epoch runs again is dropped: the newer one supersedes it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from services.telemetry.domain.frame_rules import FrameRules
from services.telemetry.domain.laggards import Laggards
from services.telemetry.domain.observed import ArrivedSample, ClosedFrame

FrameKey = tuple[int, int]
"""(epoch, iteration): frames close in ascending order of it."""


class Outcome(StrEnum):
    """What became of a sample."""

    JOINED = "joined"
    DUPLICATE = "duplicate"
    LATE = "late"
    STALE = "stale"
    REPLAYED = "replayed"


@dataclass(slots=True)
class _OpenFrame:
    settled: bool
    waiting: set[int]
    absent: set[int]
    first_at_seconds: float
    last_at_seconds: float
    first_offset: int
    entries: dict[int, ArrivedSample] = field(default_factory=dict)


@dataclass(slots=True)
class _Member:
    """A rank that reported in the newest settled epoch or since."""

    incarnation: int
    newest_iteration: int
    num_missed: int = 0


class FrameJoiner:
    """The frames of one job."""

    def __init__(self, rules: FrameRules | None = None) -> None:
        """Starts knowing nothing; see :meth:`resume`."""
        self._rules = rules or FrameRules()
        self._open: dict[FrameKey, _OpenFrame] = {}
        self._members: dict[int, _Member] = {}
        self._settled_epoch = -1
        self._newest_epoch = -1
        self._newest_epoch_since_seconds = 0.0
        self._newest_epoch_from_iteration = 0
        self._gone: dict[int, int] = {}
        self._closed: FrameKey = (-1, -1)
        self._replay_until_offset = -1
        self._iteration_seconds = 0.0
        self._num_lost_iterations = 0
        self._lost_key: FrameKey = (-1, -1)
        self._joined_at_seconds = 0.0
        self.laggards = Laggards()
        self.outcomes: Counter[Outcome] = Counter()
        self.num_superseded = 0
        self.num_restarts = 0

    def resume(self, frame: ClosedFrame, *, until_offset: int) -> None:
        """Goes on after ``frame``, the last one that an earlier process of this service closed.

        Args:
            frame: Its members are expected in the next frames.
            until_offset: Records up to this offset had been taken in when it closed: they may come again.
        """
        self._closed = (frame.epoch, frame.iteration)
        self._settled_epoch = self._newest_epoch = frame.epoch
        self._newest_epoch_from_iteration = frame.iteration
        self._members = {entry.rank: _Member(entry.incarnation, frame.iteration) for entry in frame.entries}
        self._replay_until_offset = until_offset
        if frame.entries:
            self._iteration_seconds = max(entry.wall_seconds for entry in frame.entries)

    @property
    def iteration_seconds(self) -> float:
        """What an iteration of this job takes lately; 0 before the first frame."""
        return self._iteration_seconds

    @property
    def oldest_offset(self) -> int | None:
        """Offset of the oldest record that an open frame needs; None if no frame is open."""
        return min((frame.first_offset for frame in self._open.values()), default=None)

    def add(self, sample: ArrivedSample, now_seconds: float) -> list[ClosedFrame]:
        """Takes in one sample; returns the frames that it closes, in order."""
        key = (sample.epoch, sample.iteration)
        if key <= self._closed:
            return self._add_closed(sample, now_seconds)
        if self._gone.get(sample.rank, -1) > sample.incarnation or self._superseded(key):
            self.outcomes[Outcome.STALE] += 1
            return []
        self._num_lost_iterations = 0
        self._lost_key = (-1, -1)
        self._joined_at_seconds = now_seconds
        if sample.epoch > self._newest_epoch:
            self._begin_epoch(key, now_seconds)
        frame = self._open.get(key)
        if frame is None:
            frame = self._open_frame(key, sample, now_seconds)
        known = frame.entries.get(sample.rank)
        if known is not None and known.incarnation >= sample.incarnation:
            self.outcomes[Outcome.DUPLICATE] += 1
            return []
        self.outcomes[Outcome.JOINED] += 1
        if sample.rank in self.laggards:
            self.laggards.joined(sample.rank)
        frame.entries[sample.rank] = sample
        frame.last_at_seconds = now_seconds
        frame.absent.discard(sample.rank)
        if frame.settled:
            frame.waiting.discard(sample.rank)
        else:
            frame.waiting.add(sample.rank)
        self._note_member(sample)
        if len(self._open) > 1:
            for other, older in self._open.items():
                if other < key:
                    older.waiting.discard(sample.rank)
            if len(self._open) > self._rules.max_open_frames:
                self._open[min(self._open)].waiting.clear()
        elif frame.waiting:
            return []
        return self._close_ready(now_seconds)

    def add_all(self, samples: Sequence[ArrivedSample], now_seconds: float) -> list[ClosedFrame]:
        """Takes in samples that came together: the frames are those of adding one after the other."""
        closed: list[ClosedFrame] = []
        first, size = 0, len(samples)
        while first < size:
            first = self._add_waited_for(samples, first, now_seconds)
            if first < size:  # it opens a frame, or closes one, or is odd
                closed.extend(self.add(samples[first], now_seconds))
                first += 1
        return closed

    def _add_waited_for(self, samples: Sequence[ArrivedSample], first: int, now_seconds: float) -> int:
        """Adds samples from ``first`` on while each is what an open frame waits for and closes nothing.

        Returns:
            Index of the first one that is not; the number of samples if all are.
        """
        epoch = self._settled_epoch
        if self._gone or epoch != self._newest_epoch or not 0 < len(self._open) <= self._rules.max_open_frames:
            return first
        keys = sorted(self._open)
        frames = {key[1]: self._open[key] for key in keys if key[0] == epoch and self._open[key].settled}
        if len(frames) < len(keys):
            return first
        in_order = list(frames.values())
        older = {iteration: in_order[:place] for place, iteration in enumerate(frames)}
        last_wanted, members, index = in_order[0].waiting, self._members, first
        for index in range(first, len(samples)):
            sample = samples[index]
            rank, incarnation, _, _, epoch_of, iteration, _, _, _ = sample
            frame, member = frames.get(iteration), members.get(rank)
            if frame is None or member is None or epoch_of != epoch or member.incarnation != incarnation:
                break
            if rank not in frame.waiting or (len(last_wanted) == 1 and rank in last_wanted):
                break
            frame.waiting.remove(rank)
            frame.absent.discard(rank)
            frame.entries[rank] = sample
            frame.last_at_seconds = now_seconds
            for each in older[iteration]:
                each.waiting.discard(rank)
            member.num_missed = 0
            if iteration > member.newest_iteration:
                member.newest_iteration = iteration
        else:
            index = len(samples)
        if index > first:
            self.outcomes[Outcome.JOINED] += index - first
            self._num_lost_iterations = 0
            self._lost_key = (-1, -1)
            self._joined_at_seconds = now_seconds
        return index

    def gone(self, rank: int, incarnation: int, now_seconds: float) -> list[ClosedFrame]:
        """A process ended: nobody waits for it any more. Returns the frames that this closes."""
        self._gone[rank] = max(self._gone.get(rank, -1), incarnation)
        member = self._members.get(rank)
        if member is None or member.incarnation > incarnation:
            return []
        del self._members[rank]
        for frame in self._open.values():
            frame.waiting.discard(rank)
        return self._close_ready(now_seconds)

    def tick(self, now_seconds: float, *, known_seconds: float | None = None) -> list[ClosedFrame]:
        """Closes the frames whose time is over.

        Args:
            now_seconds: Unix seconds.
            known_seconds: Up to when anything was heard of the job: silence since is nobody's delay. None: up to now.
        """
        known_seconds = now_seconds if known_seconds is None else known_seconds
        closed: list[ClosedFrame] = []
        while self._open:
            key = min(self._open)
            if not self._overdue(key, known_seconds):
                break
            self._open[key].waiting.clear()
            closed.extend(self._close_ready(now_seconds))
        return closed

    def excuse(self, seconds: float) -> None:
        """So long nothing could be heard from the job at all: it does not count as waiting."""
        self._newest_epoch_since_seconds += seconds
        for frame in self._open.values():
            frame.first_at_seconds += seconds
            frame.last_at_seconds += seconds

    @property
    def patience_seconds(self) -> float:
        """How long a frame is open at most."""
        rules = self._rules
        patience = max(rules.least_patience_seconds, rules.patience_iterations * self._iteration_seconds)
        return min(patience, rules.most_patience_seconds)

    def _overdue(self, key: FrameKey, now_seconds: float) -> bool:
        frame = self._open[key]
        if key[0] < self._newest_epoch:
            begun = max(frame.last_at_seconds, self._newest_epoch_since_seconds)
            if now_seconds - begun >= self._rules.grace_seconds:
                return True
        patience = self.patience_seconds
        if not frame.settled and self._iteration_seconds == 0:
            # The first frame of a job waits for the second one, and nobody knows yet how long that takes.
            longest = max((entry.wall_seconds for entry in frame.entries.values()), default=0.0)
            patience = max(patience, self._rules.patience_iterations * longest)
        return now_seconds - frame.first_at_seconds >= min(patience, self._rules.most_patience_seconds)

    def _add_closed(self, sample: ArrivedSample, now_seconds: float) -> list[ClosedFrame]:
        if sample.offset <= self._replay_until_offset:
            self.outcomes[Outcome.REPLAYED] += 1
            return []
        self.outcomes[Outcome.LATE] += 1
        key = (sample.epoch, sample.iteration)
        member = self._members.get(sample.rank)
        later = member is not None and member.incarnation < sample.incarnation
        self.laggards.late(sample, started_over=later, behind_iteration=self._closed[1], now_seconds=now_seconds)
        if self._is_within_patience(key):
            self._note_member(sample)
        if key > self._lost_key:  # the same one over and over is a repetition, not a job that goes on
            self._lost_key = key
            self._num_lost_iterations += 1
        rules = self._rules
        lost = self._num_lost_iterations >= rules.lost_iterations
        lost = lost and now_seconds - self._joined_at_seconds >= rules.lost_seconds
        if not lost and not self.laggards.all_started_over(self._members):
            return []
        self.num_restarts += 1
        closed = self._flush(now_seconds)
        self._closed = (-1, -1)
        self._newest_epoch = self._settled_epoch = -1
        self._members.clear()
        self._gone.clear()
        self.laggards.clear()
        return closed + self.add(sample, now_seconds)

    def _is_within_patience(self, key: FrameKey) -> bool:
        """Would a frame that waited have had this sample? Then the next ones wait for its rank: it is not silent.

        Else a rank that was given up once stays out for as long as it is always a little later than the others.
        """
        behind = self._closed[1] - key[1]
        return key[0] == self._closed[0] and (behind + 1) * self._iteration_seconds <= self.patience_seconds

    def _flush(self, now_seconds: float) -> list[ClosedFrame]:
        for frame in self._open.values():
            frame.waiting.clear()
        return self._close_ready(now_seconds)

    def _superseded(self, key: FrameKey) -> bool:
        return key[0] < self._newest_epoch and key[1] >= self._newest_epoch_from_iteration

    def _begin_epoch(self, key: FrameKey, now_seconds: float) -> None:
        self._newest_epoch = key[0]
        self._newest_epoch_since_seconds = now_seconds
        self._newest_epoch_from_iteration = key[1]
        for other in [other for other in self._open if other[1] >= key[1]]:
            self.num_superseded += len(self._open.pop(other).entries)

    def _open_frame(self, key: FrameKey, sample: ArrivedSample, now_seconds: float) -> _OpenFrame:
        settled = key[0] == self._settled_epoch
        waiting: set[int] = set()
        if settled:
            max_missed = self._rules.max_missed
            waiting = {rank for rank, member in self._members.items() if member.num_missed < max_missed}
        frame = _OpenFrame(
            settled=settled,
            waiting=waiting,
            absent=set(self._members) if settled else set(),
            first_at_seconds=now_seconds,
            last_at_seconds=now_seconds,
            first_offset=sample.offset,
        )
        if settled:  # whoever is further on already will not bring this one
            for other, newer in self._open.items():
                if other > key:
                    frame.waiting.difference_update(newer.entries)
        self._open[key] = frame
        return frame

    def _note_member(self, sample: ArrivedSample) -> None:
        if sample.epoch != self._settled_epoch or self._gone.get(sample.rank, -1) >= sample.incarnation:
            return
        member = self._members.get(sample.rank)
        if member is None or member.incarnation < sample.incarnation:
            self._members[sample.rank] = _Member(sample.incarnation, sample.iteration)
        else:
            member.num_missed = 0
            member.newest_iteration = max(member.newest_iteration, sample.iteration)

    def _close_ready(self, now_seconds: float) -> list[ClosedFrame]:
        closed: list[ClosedFrame] = []
        while self._open:
            key = min(self._open) if len(self._open) > 1 else next(iter(self._open))
            frame = self._open[key]
            if frame.waiting:
                break
            del self._open[key]
            self._closed = key
            self._settle(key, frame)
            closed.append(
                ClosedFrame(
                    epoch=key[0],
                    iteration=key[1],
                    entries=tuple([frame.entries[rank] for rank in sorted(frame.entries)]),
                    missing_ranks=tuple(sorted(frame.absent)),
                    closed_at_seconds=now_seconds,
                    last_sample_at_seconds=frame.last_at_seconds,
                )
            )
            self._learn_pace(frame)
        return closed

    def _settle(self, key: FrameKey, frame: _OpenFrame) -> None:
        """The first closed frame of an epoch says who its members are; later ones who misses out."""
        if not frame.settled and key[0] > self._settled_epoch:
            self._settled_epoch = key[0]
            ranks = dict(frame.entries)
            for other, newer in self._open.items():
                if other[0] == key[0]:
                    ranks.update(newer.entries)
            self._members = {
                rank: _Member(sample.incarnation, sample.iteration)
                for rank, sample in ranks.items()
                if self._gone.get(rank, -1) < sample.incarnation
            }
            for other, newer in self._open.items():
                if other[0] == key[0]:
                    newer.settled = True
                    newer.absent = set(self._members).difference(newer.entries)
                    newer.waiting = set(newer.absent)
                    for later, newest in self._open.items():
                        if later > other:
                            newer.waiting.difference_update(newest.entries)
        else:
            for rank in frame.absent:
                member = self._members.get(rank)
                if member is not None and member.newest_iteration < key[1]:
                    member.num_missed += 1

    def _learn_pace(self, frame: _OpenFrame) -> None:
        longest = max(entry.wall_seconds for entry in frame.entries.values())
        if self._iteration_seconds == 0:
            self._iteration_seconds = longest
        else:  # follows within a few iterations; one long pause counts for four at most
            clipped = min(longest, 4 * self._iteration_seconds)
            self._iteration_seconds += 0.2 * (clipped - self._iteration_seconds)
