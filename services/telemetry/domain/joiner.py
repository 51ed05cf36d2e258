"""Joins what the ranks of one job measured into frames. Pure: batches, deaths and the time go in, frames come out.

What is relied on: a rank's own iterations arrive in the order in which it made them (one producer, one key), those of
different ranks in any order; anything may come twice or not at all.

When a frame closes, oldest first and never out of order:

- *Settled* (the members of its epoch are known): as soon as nobody is waited for. A rank is no longer waited for when
  it is in, when it brought a later iteration (the earlier one is lost for good), or when it is gone.
- *Unsettled* (the first frame of an epoch: layouts shrink and grow): as soon as every rank that is in it has gone on to
  a later iteration. Who is in it then are the epoch's members. A layout that shrank waits for nobody from before.
- Either: when its time is over, which follows the job's own iteration time; after a grace, when a newer epoch has
  begun; at once, when too many frames are open. While ranks come back one by one after a cut, no time is over, and
  frames of a new epoch wait for the members of the one before, too.

A frame of an older epoch whose iteration a newer epoch runs again is dropped: the newer one supersedes it.
"""

from collections import Counter
from enum import StrEnum

import numpy as np

from evenkeel.contracts.batches import Batches
from evenkeel.contracts.frames import Frames
from evenkeel.numeric.arrays import Ints
from evenkeel.services.telemetry.domain.frame_builder import FrameBuilder
from evenkeel.services.telemetry.domain.laggards import Laggard, Laggards
from evenkeel.services.telemetry.domain.open_table import ROW, OpenTable, Rows
from evenkeel.services.telemetry.domain.patience import Patience

# So long a frame of an older epoch stays open once a newer epoch has begun.
_GRACE_SECONDS = 0.25
MAX_OPEN_FRAMES, MAX_OPEN_ROWS = 8, 4096
"""More than so many frames are not open, but as many as hold so many rows when they are whole: after an outage ranks
send what they kept one after the other."""


class Outcome(StrEnum):
    """What became of an iteration of a rank."""

    JOINED = "joined"
    DUPLICATE = "duplicate"
    LATE = "late"
    STALE = "stale"
    REPLAYED = "replayed"


class FrameJoiner:
    """The frames of one job.

    Attributes:
        all_back_at_seconds: Ranks come back one by one: up to this time frames wait for all of them.
    """

    def __init__(self) -> None:
        """Starts knowing nothing; see :meth:`resume`."""
        self._patience = Patience()
        self._builder = FrameBuilder()
        # Ascending by epoch; the settled one, if any, is the first.
        self._tables: list[OpenTable] = []
        self._newest_epoch_since_seconds = 0.0
        self._newest_epoch_from_iteration = 0
        self._gone: dict[int, int] = {}
        self._closed = (-1, -1)
        self._replay_until_offset = -1
        self.all_back_at_seconds = 0.0
        self.laggards = Laggards()
        self.outcomes: Counter[Outcome] = Counter()
        self.num_superseded = 0
        self.num_restarts = 0

    def resume(self, frames: Frames, *, until_offset: int) -> None:
        """Goes on after the last frame that an earlier process of this service closed.

        Args:
            frames: It, with others before it; its members are expected in the next frames.
            until_offset: Records up to this offset had been taken in when it closed: they may come again.
        """
        newest = int(frames.iteration[-1])
        self._closed = (frames.epoch, newest)
        self._newest_epoch_from_iteration = newest
        self._replay_until_offset = until_offset
        table, rows = self._table(frames.epoch), np.zeros(len(frames.members), dtype=ROW)
        rows["who"], rows["iteration"] = self._builder.who(frames.members), newest
        table.note(rows)
        table.settled = True
        table.ranks["is_member"] = True
        self._patience.iteration_seconds = float(frames.wall_seconds[-1].max())

    @property
    def iteration_seconds(self) -> float:
        """What an iteration of this job takes lately; 0 before the first frame."""
        return self._patience.iteration_seconds

    @property
    def patience_seconds(self) -> float:
        """How long a frame is open at most."""
        return self._patience.seconds

    @property
    def oldest_offset(self) -> int | None:
        """Offset of the oldest record that an open frame needs; None if no frame is open."""
        return min(
            (int(table.cells["offset"][table.is_in].min()) for table in self._tables if len(table)), default=None
        )

    def add(self, batches: Batches, offsets: Ints, now_seconds: float) -> list[Frames]:
        """Takes in what came together.

        Args:
            batches: Of this job, checked.
            offsets: Offset of the record of each.
            now_seconds: Unix seconds.

        Returns:
            The frames that it closes, in order.
        """
        rows = self._builder.add(batches, offsets, now_seconds)
        if not len(rows):
            return []
        epochs, closed_epoch, closed_iteration = rows["epoch"], *self._closed
        is_late = (epochs < closed_epoch) | ((epochs == closed_epoch) & (rows["iteration"] <= closed_iteration))
        closed: list[Frames] = []
        stays = ~is_late
        if is_late.any():
            again = self._late(rows.compress(is_late), now_seconds)
            if again is not None:  # it started over: what seemed late is its beginning
                closed += again
                stays = is_late & (rows["offset"] > self._replay_until_offset)
        for epoch in np.unique(epochs[stays]).tolist():
            self._put(epoch, rows.compress(stays & (epochs == epoch)), now_seconds)
        closed += self._close_ready(now_seconds)
        while self._num_open > self._most_open:
            closed += self._close(self._oldest, 1, now_seconds) + self._close_ready(now_seconds)
        self._builder.forget(self._tables)
        return closed

    def gone(self, rank: int, incarnation: int, now_seconds: float) -> list[Frames]:
        """A process ended: nobody waits for it any more. Returns the frames that this closes."""
        self._gone[rank] = max(self._gone.get(rank, -1), incarnation)
        changes = [table.end(rank, incarnation) for table in self._tables]
        return self._close_ready(now_seconds) if any(changes) else []

    def tick(self, now_seconds: float, *, known_seconds: float | None = None) -> list[Frames]:
        """Closes the frames whose time is over.

        Args:
            now_seconds: Unix seconds.
            known_seconds: Up to when anything was heard of the job: silence since is nobody's delay. None: up to now.
        """
        known_seconds = now_seconds if known_seconds is None else known_seconds
        closed: list[Frames] = []
        while self._num_open and self._overdue(self._oldest, known_seconds):
            closed += self._close(self._oldest, 1, now_seconds) + self._close_ready(now_seconds)
        self._builder.forget(self._tables)
        return closed

    def excuse(self, seconds: float) -> None:
        """So long nothing could be heard from the job at all: it does not count as waiting."""
        self._newest_epoch_since_seconds += seconds
        for table in self._tables:
            table.cells["at_seconds"] += seconds

    @property
    def _num_open(self) -> int:
        return sum(map(len, self._tables))

    @property
    def _oldest(self) -> OpenTable:
        """The table of the frame that closes next; there must be one."""
        return next(table for table in self._tables if len(table))

    @property
    def _most_open(self) -> int:
        num_members = int(self._tables[0].ranks["is_member"].sum()) if self._tables else 0
        return max(MAX_OPEN_FRAMES, MAX_OPEN_ROWS // num_members if num_members else 0)

    @property
    def _newest_epoch(self) -> int:
        return self._tables[-1].epoch if self._tables else -1

    def _table(self, epoch: int) -> OpenTable:
        """The table of an epoch; a new one where there is none."""
        for known in self._tables:
            if known.epoch == epoch:
                return known
        table = OpenTable(epoch)
        for rank, incarnation in self._gone.items():
            table.end(rank, incarnation)
        self._tables = sorted((*self._tables, table), key=lambda each: each.epoch)
        return table

    def _put(self, epoch: int, rows: Rows, now_seconds: float) -> None:
        """Rows of one epoch, none of them of a closed frame."""
        if epoch > self._newest_epoch:
            from_iteration = int(rows["iteration"].min())
            self.num_superseded += sum(table.drop_from(from_iteration) for table in self._tables)
            self._newest_epoch_since_seconds, self._newest_epoch_from_iteration = now_seconds, from_iteration
        table = self._table(epoch)
        stale = np.zeros(len(rows), dtype=np.bool_)
        if self._gone:
            stale = rows["who"]["incarnation"] < table.of(rows["who"]["rank"])["gone"]
        if epoch < self._newest_epoch:
            stale |= rows["iteration"] >= self._newest_epoch_from_iteration
        self.outcomes[Outcome.STALE] += int(stale.sum())
        rows = rows.compress(~stale)
        if not len(rows):
            return
        if not table.settled and now_seconds < self.all_back_at_seconds and self._tables[0].settled:
            table.expect(self._tables[0])
        new = table.put(rows)
        self.outcomes[Outcome.JOINED] += len(new)
        self.outcomes[Outcome.DUPLICATE] += len(rows) - len(new)
        if len(new):
            self._patience.joined(now_seconds)
        self.laggards.joined(new["who"]["rank"])
        for older in self._tables:
            if older.epoch < epoch:
                older.gone_on(rows["who"]["rank"])

    def _late(self, rows: Rows, now_seconds: float) -> list[Frames] | None:
        """Rows whose frames are closed; if that means that the job started over, the frames that this closes."""
        is_new = rows["offset"] > self._replay_until_offset
        self.outcomes[Outcome.REPLAYED] += len(rows) - int(is_new.sum())
        rows = rows.compress(is_new)
        if not len(rows):
            return None
        self.outcomes[Outcome.LATE] += len(rows)
        settled, who, iterations = self._tables[0], rows["who"], rows["iteration"]
        known = settled.of(who["rank"])["who"]["incarnation"]
        started_over = (known >= 0) & (who["incarnation"] > known)
        columns = (who["rank"].tolist(), who["incarnation"].tolist(), started_over.tolist(), iterations.tolist())
        for rank, incarnation, is_later, iteration in zip(*columns, strict=True):
            self.laggards.late(Laggard(rank, incarnation, is_later, iteration, self._closed[1], now_seconds))
        # Would a frame that waited have had it? Then the next ones wait for its rank: it is not silent. Else a rank
        # that was given up once stays out for as long as it is always a little later than the others.
        behind_seconds = (self._closed[1] - iterations + 1) * self.iteration_seconds
        settled.note(rows.compress((rows["epoch"] == self._closed[0]) & (behind_seconds <= self.patience_seconds)))
        self._patience.late(sorted(set(zip(rows["epoch"].tolist(), iterations.tolist(), strict=True))))
        members = settled.rank[settled.ranks["is_member"]].tolist()
        if not self._patience.is_lost(now_seconds) and not self.laggards.all_started_over(members):
            return None
        self.num_restarts += 1
        closed: list[Frames] = []
        while self._num_open:
            closed += self._close(self._oldest, len(self._oldest), now_seconds)
        self._closed = (-1, -1)
        self._tables = []
        self._gone.clear()
        self.laggards.clear()
        return closed

    def _overdue(self, table: OpenTable, now_seconds: float) -> bool:
        if now_seconds < self.all_back_at_seconds:
            return False
        oldest, patience = table.oldest, self._patience.seconds
        if table.epoch < self._newest_epoch:
            begun = max(float(oldest["at_seconds"].max()), self._newest_epoch_since_seconds)
            if now_seconds - begun >= _GRACE_SECONDS:
                return True
        if not table.settled and self.iteration_seconds == 0:
            # The first frame of a job waits for the second one, and nobody knows yet how long that takes.
            patience = self._patience.seconds_at(float(oldest["wall_seconds"].max()))
        return bool(now_seconds - oldest["at_seconds"].min() >= patience)

    def _close_ready(self, now_seconds: float) -> list[Frames]:
        closed: list[Frames] = []
        while self._num_open:
            table = self._oldest
            waits = table.waiting().any(axis=1)
            # Its first frame settles an epoch: whom the next ones wait for is another question then.
            count = len(table) if not waits.any() else int(waits.argmax())
            if not count:
                break
            closed += self._close(table, count if table.settled else 1, now_seconds)
        return closed

    def _close(self, table: OpenTable, count: int, now_seconds: float) -> list[Frames]:
        """Closes the oldest frames of a table, whoever is missing in them."""
        if not table.settled:
            table.settle()
            self._tables = [each for each in self._tables if each.epoch >= table.epoch]
        closed = list(self._builder.frames(table, count, now_seconds))
        longest_seconds = table.cells["wall_seconds"][:count].max(axis=1, where=table.is_in[:count], initial=0.0)
        self._patience.learn(longest_seconds.tolist())
        self._closed = (table.epoch, int(table.iteration[count - 1]))
        table.close(count)
        return closed
