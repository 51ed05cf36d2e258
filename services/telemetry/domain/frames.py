"""Joins the samples of one job into frames. Pure: samples, deaths and the time go in, closed frames come out.

What is relied on: a rank's own samples arrive in the order in which it made them (one producer, one key), samples of
different ranks in any order; anything may come twice or not at all.

When a frame closes, oldest first and never out of order:

- *Settled* (the members of its epoch are known): as soon as nobody is waited for. A rank is no longer waited for when
  its sample is in, when it brought a later iteration (the earlier sample is lost for good), or when it is gone.
- *Unsettled* (the first frame of an epoch: layouts shrink and grow): as soon as every rank that is in it has gone on to
  a later iteration. Who is in it then are the epoch's members. A layout that shrank waits for nobody from before.
- Either: when its time is over, which follows the job's own iteration time; after a grace, when a newer epoch has
  begun; at once, when too many frames are open. While ranks come back one by one after a cut, no time is over, and
  frames of a new epoch wait for the members of the one before, too.

A frame of an older epoch whose iteration a newer epoch runs again is dropped: the newer one supersedes it.
"""

from collections import Counter
from enum import StrEnum

from evenkeel.services.telemetry.domain.crowd import Crowd
from evenkeel.services.telemetry.domain.frame_entries import FrameEntries
from evenkeel.services.telemetry.domain.frame_rules import FrameRules
from evenkeel.services.telemetry.domain.laggards import Laggards
from evenkeel.services.telemetry.domain.late_run import LateRun
from evenkeel.services.telemetry.domain.members import Members
from evenkeel.services.telemetry.domain.observed import ArrivedSample, ClosedFrame
from evenkeel.services.telemetry.domain.open_frames import FrameKey, OpenFrame, OpenFrames
from evenkeel.services.telemetry.domain.sample_block import SampleBlock

# Fewer samples are added faster one by one.
_LEAST_CROWD = 4


class Outcome(StrEnum):
    """What became of a sample."""

    JOINED = "joined"
    DUPLICATE = "duplicate"
    LATE = "late"
    STALE = "stale"
    REPLAYED = "replayed"


class FrameJoiner:
    """The frames of one job."""

    def __init__(self, rules: FrameRules | None = None) -> None:
        """Starts knowing nothing; see :meth:`resume`."""
        self._rules = rules or FrameRules()
        self._open = OpenFrames()
        self._members = Members()
        self._settled_epoch = -1
        self._newest_epoch = -1
        self._newest_epoch_since_seconds = 0.0
        self._newest_epoch_from_iteration = 0
        self._gone: dict[int, int] = {}
        self._closed: FrameKey = (-1, -1)
        self._replay_until_offset = -1
        self._iteration_seconds = 0.0
        self._late_run = LateRun()
        self._all_back_at_seconds = 0.0
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
        self._members.clear()
        for entry in frame.entries:
            self._members.note(entry.rank, entry.incarnation, frame.iteration)
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
        return self._open.oldest_offset

    def add(self, sample: ArrivedSample, now_seconds: float) -> list[ClosedFrame]:
        """Takes in one sample; returns the frames that it closes, in order."""
        key = (sample.epoch, sample.iteration)
        if key <= self._closed:
            return self._add_closed(sample, now_seconds)
        if self._gone.get(sample.rank, -1) > sample.incarnation or self._superseded(key):
            self.outcomes[Outcome.STALE] += 1
            return []
        self._late_run.joined(now_seconds)
        if sample.epoch > self._newest_epoch:
            self._begin_epoch(key, now_seconds)
        frame = self._open.get(key)
        if frame is None:
            frame = self._open_frame(key, sample.offset, now_seconds)
        known = frame.entries.get(sample.rank)
        if known is not None and known.incarnation >= sample.incarnation:
            self.outcomes[Outcome.DUPLICATE] += 1
            return []
        self.outcomes[Outcome.JOINED] += 1
        if sample.rank in self.laggards:
            self.laggards.joined(sample.rank)
        frame.entries.put(sample)
        frame.last_at_seconds = now_seconds
        frame.absent.discard(sample.rank)
        if frame.settled:
            frame.waiting.discard(sample.rank)
        else:
            frame.waiting.add(sample.rank)
        self._note_member(sample)
        if len(self._open) > 1:
            self._open.brought(key, (sample.rank,))
            if len(self._open) > self._most_open:
                self._open[self._open.oldest].waiting.clear()
        elif frame.waiting:
            return []
        return self._close_ready(now_seconds)

    def add_rows(self, block: SampleBlock, first: int, stop: int, now_seconds: float) -> list[ClosedFrame]:
        """Takes in consecutive rows of a block: the frames are those of adding one sample after the other."""
        closed: list[ClosedFrame] = []
        num_alone = 1
        while first < stop:
            crowd = self._crowd_from(block, first, stop)
            if crowd is not None:
                closed.extend(self._add_crowd(crowd, now_seconds))
                first, num_alone = crowd.stop, 1
                continue
            for sample in block.samples(first, min(first + num_alone, stop)):
                closed.extend(self.add(sample, now_seconds))
            # What is odd seldom comes alone, and looking for the end of it must not cost more than it does.
            first, num_alone = first + num_alone, 2 * num_alone
        return closed

    def _crowd_from(self, block: SampleBlock, first: int, stop: int) -> Crowd | None:
        """The rows from ``first`` on of which each is what a frame waits for, however it comes between the others."""
        epoch, lowest = self._closed[0], self._closed[1] + 1
        if epoch != self._settled_epoch or epoch != self._newest_epoch or not len(self._members):
            return None
        if not self._open.are_settled(epoch):
            return None
        most = self._most_open
        crowd = Crowd.of(
            block, first, min(stop, first + most * len(self._members)), epoch=epoch, lowest=lowest, most=most
        )
        crowd = crowd.cut(self._members.num_known(crowd.ranks, crowd.incarnations))
        if len(crowd) < _LEAST_CROWD or not crowd.in_order() or not self.laggards.isdisjoint(crowd.ranks):
            return None
        if len({key[1] for key in self._open}.union(crowd.iterations)) > most:
            return None
        for iteration, ranks in crowd.iterations.items():
            frame = self._open.get((epoch, iteration))
            if not (self._members.are_before(ranks, iteration) if frame is None else frame.waiting.issuperset(ranks)):
                return None
        return crowd

    def _add_crowd(self, crowd: Crowd, now_seconds: float) -> list[ClosedFrame]:
        self.outcomes[Outcome.JOINED] += len(crowd)
        self._late_run.joined(now_seconds)
        self._members.note_all(crowd.newest)
        closed: list[ClosedFrame] = []
        brought: dict[FrameKey, list[int]] = {}
        num_members = len(self._members)
        for iteration, ranks in crowd.iterations.items():
            key, rows = (self._settled_epoch, iteration), crowd.rows[iteration]
            if not self._open and len(ranks) == num_members:  # nobody waits for it, nor for one before it
                closed.append(self._closed_at_once(key, crowd, now_seconds))
                continue
            frame = self._open.get(key)
            if frame is None:
                frame = self._open_frame(
                    key, int(crowd.block.offsets[rows[0]]), now_seconds, waits=len(ranks) < num_members
                )
            frame.entries.put_crowd(crowd.block, rows, crowd.longest_seconds[iteration])
            frame.last_at_seconds = now_seconds
            frame.absent.difference_update(ranks)
            frame.waiting.difference_update(ranks)
            brought[key] = ranks
            if not frame.waiting and key == self._open.oldest:  # those behind it need not be opened then
                closed += self._close_ready(now_seconds)
        if self._open:
            self._open.all_brought(brought)
            closed += self._close_ready(now_seconds)
        return closed

    def _closed_at_once(self, key: FrameKey, crowd: Crowd, now_seconds: float) -> ClosedFrame:
        """A frame that is whole in a crowd, all members in it."""
        entries = FrameEntries()
        entries.put_crowd(crowd.block, crowd.rows[key[1]], crowd.longest_seconds[key[1]])
        self._closed = key
        self._learn_pace(entries)
        return ClosedFrame(
            epoch=key[0],
            iteration=key[1],
            entries=entries,
            missing_ranks=(),
            closed_at_seconds=now_seconds,
            last_sample_at_seconds=now_seconds,
        )

    def gone(self, rank: int, incarnation: int, now_seconds: float) -> list[ClosedFrame]:
        """A process ended: nobody waits for it any more. Returns the frames that this closes."""
        self._gone[rank] = max(self._gone.get(rank, -1), incarnation)
        member = self._members.incarnation(rank)
        if member is None or member > incarnation:
            return []
        self._members.remove(rank)
        self._open.gone(rank)
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
            key = self._open.oldest
            if not self._overdue(key, known_seconds):
                break
            self._open[key].waiting.clear()
            closed.extend(self._close_ready(now_seconds))
        return closed

    def excuse(self, seconds: float) -> None:
        """So long nothing could be heard from the job at all: it does not count as waiting."""
        self._newest_epoch_since_seconds += seconds
        self._open.excuse(seconds)

    def wait_for_all(self, until_seconds: float) -> None:
        """Ranks come back one by one: up to this time frames wait for all of them."""
        self._all_back_at_seconds = until_seconds

    @property
    def patience_seconds(self) -> float:
        """How long a frame is open at most."""
        rules = self._rules
        patience = max(rules.least_patience_seconds, rules.patience_iterations * self._iteration_seconds)
        return min(patience, rules.most_patience_seconds)

    @property
    def _most_open(self) -> int:
        rules, num_members = self._rules, len(self._members)
        return max(rules.max_open_frames, rules.max_open_samples // num_members if num_members else 0)

    def _overdue(self, key: FrameKey, now_seconds: float) -> bool:
        frame = self._open[key]
        if now_seconds < self._all_back_at_seconds:
            return False
        if key[0] < self._newest_epoch:
            begun = max(frame.last_at_seconds, self._newest_epoch_since_seconds)
            if now_seconds - begun >= self._rules.grace_seconds:
                return True
        patience = self.patience_seconds
        if not frame.settled and self._iteration_seconds == 0:
            # The first frame of a job waits for the second one, and nobody knows yet how long that takes.
            patience = max(patience, self._rules.patience_iterations * frame.entries.longest_seconds())
        return now_seconds - frame.first_at_seconds >= min(patience, self._rules.most_patience_seconds)

    def _add_closed(self, sample: ArrivedSample, now_seconds: float) -> list[ClosedFrame]:
        if sample.offset <= self._replay_until_offset:
            self.outcomes[Outcome.REPLAYED] += 1
            return []
        self.outcomes[Outcome.LATE] += 1
        key = (sample.epoch, sample.iteration)
        member = self._members.incarnation(sample.rank)
        later = member is not None and member < sample.incarnation
        self.laggards.late(sample, started_over=later, behind_iteration=self._closed[1], now_seconds=now_seconds)
        if self._is_within_patience(key):
            self._note_member(sample)
        self._late_run.late(key)
        if not self._late_run.is_lost(self._rules, now_seconds) and not self.laggards.all_started_over(self._members):
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
        self._open.wait_for_nobody()
        return self._close_ready(now_seconds)

    def _superseded(self, key: FrameKey) -> bool:
        return key[0] < self._newest_epoch and key[1] >= self._newest_epoch_from_iteration

    def _begin_epoch(self, key: FrameKey, now_seconds: float) -> None:
        self._newest_epoch = key[0]
        self._newest_epoch_since_seconds = now_seconds
        self._newest_epoch_from_iteration = key[1]
        self.num_superseded += self._open.drop_from(key[1])

    def _open_frame(self, key: FrameKey, first_offset: int, now_seconds: float, *, waits: bool = True) -> OpenFrame:
        """A new frame; where it waits for nobody, all members are about to be put into it."""
        settled = key[0] == self._settled_epoch
        for_members = waits and (settled or now_seconds < self._all_back_at_seconds)
        frame = OpenFrame(
            settled=settled,
            waiting=self._members.waited_for(self._rules.max_missed) if for_members else set(),
            absent=set(self._members) if waits and settled else set(),
            first_at_seconds=now_seconds,
            last_at_seconds=now_seconds,
            first_offset=first_offset,
        )
        self._open.add(key, frame)
        return frame

    def _note_member(self, sample: ArrivedSample) -> None:
        if sample.epoch != self._settled_epoch or self._gone.get(sample.rank, -1) >= sample.incarnation:
            return
        self._members.note(sample.rank, sample.incarnation, sample.iteration)

    def _close_ready(self, now_seconds: float) -> list[ClosedFrame]:
        closed: list[ClosedFrame] = []
        if not self._open or self._open[self._open.oldest].waiting:
            return closed
        for key in sorted(self._open):
            if self._open[key].waiting:
                break
            frame = self._open.pop(key)
            self._closed = key
            self._settle(key, frame)
            closed.append(
                ClosedFrame(
                    epoch=key[0],
                    iteration=key[1],
                    entries=frame.entries,
                    missing_ranks=tuple(sorted(frame.absent)),
                    closed_at_seconds=now_seconds,
                    last_sample_at_seconds=frame.last_at_seconds,
                )
            )
            self._learn_pace(frame.entries)
        return closed

    def _settle(self, key: FrameKey, frame: OpenFrame) -> None:
        """The first closed frame of an epoch says who its members are; later ones who misses out."""
        if not frame.settled and key[0] > self._settled_epoch:
            self._settled_epoch = key[0]
            same = [self._open[other] for other in self._open if other[0] == key[0]]
            newest: dict[int, ArrivedSample] = {}
            for each in (frame, *same):
                newest.update((sample.rank, sample) for sample in each.entries)
            self._members.clear()
            for rank, sample in newest.items():
                if self._gone.get(rank, -1) < sample.incarnation:
                    self._members.note(rank, sample.incarnation, sample.iteration)
            self._open.settle(key[0], self._members)
        else:
            self._members.miss(frame.absent, key[1])

    def _learn_pace(self, entries: FrameEntries) -> None:
        longest = entries.longest_seconds()
        if self._iteration_seconds == 0:
            self._iteration_seconds = longest
        else:  # follows within a few iterations; one long pause counts for four at most
            clipped = min(longest, 4 * self._iteration_seconds)
            self._iteration_seconds += 0.2 * (clipped - self._iteration_seconds)
