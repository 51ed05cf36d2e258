"""Processes of ranks: the real acceptor, cycle and copies rule; what they train and move are numbers of steps."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from evenkeel.layouts.copies import Placement
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.rank_state import EarlierState, KeptCopy, RankPhase, RankState
from evenkeel.services.scheduler.dispatch.protocol import RankAwayError
from evenkeel.services.scheduler.dispatch.restore import uncovered_blocks
from evenkeel.trainer_sdk.control.acceptor import Acceptor
from evenkeel.trainer_sdk.control.cycle import RankCycle, Way
from evenkeel.trainer_sdk.control.state import ApplyMode, Commit

if TYPE_CHECKING:
    from tests.simulation.job import SimulatedJob

_TICK_SECONDS = 0.25
ENDLESS = 1_000_000


@dataclass
class Meeting:
    """Where ranks wait for one another: a vote, or the groups of an epoch. What somebody has brought stays."""

    members: tuple[int, ...]
    brought: dict[int, tuple["SimulatedRank", Any]] = field(default_factory=dict)


class SimulatedRank:
    """One process of a rank, between the messages that reach it. It dies by ``alive`` becoming False."""

    def __init__(self, job: "SimulatedJob", rank: int, incarnation: int) -> None:
        self.job, self.rank, self.incarnation = job, rank, incarnation
        self.acceptor = Acceptor(rank, incarnation)
        self.cycle = RankCycle(rank, incarnation, ENDLESS)
        self.layout: Layout | None = None
        self.held: dict[int, int] = {}
        self.kept: set[tuple[int, int, int]] = set()
        self.safe: tuple[int, int] | None = None
        self.last: tuple[int, int] | None = None
        self.alive = True
        self.is_stopped = False
        self.is_given_up = False
        self.waits_for: tuple[str, int, int] | None = None
        self.watchers: list[Callable[[], None]] = []
        self.callers: list[Callable[[RankState | Exception], None]] = []
        self._streams: list[Callable[[RankState | Exception], None]] = []
        self._due: list[Callable[[], None]] = []
        self._met: Callable[[], None] = lambda: None
        self._placements: tuple[Placement, ...] = ()
        self._turn = 0
        self.check: Callable[[Layout], None] = lambda layout: None
        self._told: tuple[object, ...] = ()

    # ---- time

    def later(self, most_seconds: float, do: Callable[[], None], least_seconds: float = 0.0) -> None:
        """Do something, unless this rank has turned to something else by then."""
        turn = self._turn
        self.aside(most_seconds, lambda: do() if turn == self._turn else None, least_seconds)

    def aside(self, most_seconds: float, do: Callable[[], None], least_seconds: float = 0.0) -> None:
        """Do something, as another thread of the process does, whatever the training thread has turned to."""

        def due() -> None:
            if self.is_stopped:
                self._due.append(due)
            elif self.alive:
                do()

        self.job.world.after(self.job.random.uniform(least_seconds, most_seconds), due)

    def when_it_runs(self, do: Callable[[], None]) -> None:
        """Do something once it goes on: what reaches a stopped process waits there."""
        self._due.append(do)

    def go_on(self) -> None:
        """As after SIGCONT."""
        self.is_stopped, due = False, self._due
        self._due = []
        self.job.random.shuffle(due)
        for do in due:
            self.job.world.after(0.0, do)

    def die(self) -> None:
        """Its sockets close: whoever listens or waits for an answer hears that."""
        self.alive = self.is_stopped = False
        away = RankAwayError(f"rank {self.rank}.{self.incarnation} died")
        for told in (*self._streams, *self.callers):
            told(away)
        for do in self._due:
            do()

    def stream_to(self, reply: Callable[[RankState | Exception], None]) -> None:
        """From now on somebody hears of its states, in their order; those of two processes have none."""
        heard_at = 0.0

        def said(state: RankState | Exception) -> None:
            nonlocal heard_at
            now, delay = self.job.world.loop.now, self.job.random.uniform(0.001, self.job.world.slowness())
            heard_at = max(heard_at, now + delay, self.job.cut_until.get((self.rank, self.incarnation), 0.0))
            self.job.world.after(heard_at - now, lambda: reply(state))

        self._streams.append(said)
        said(self.acceptor.state)

    def turn(self) -> None:
        """Whatever was about to happen does not."""
        self._turn += 1
        self.waits_for = None

    def changed(self) -> None:
        """Somebody has told the acceptor something."""
        state = self.acceptor.state
        if (told := (state.phase, state.epoch, state.failed_epoch)) != self._told:
            self._told = told
            self.job.watched(self)
            for said in self._streams:
                said(state)
        for wake in list(self.watchers):
            wake()
        self.heed()

    def heed(self) -> None:
        """What it was told may be a reason not to wait any longer."""
        if self.waits_for is not None and self.waits_for[0] != "plan" and self.acceptor.interrupted:
            self.later(0.05, self.lose_peers)
        if self.waits_for is not None and self.waits_for[0] == "plan":
            self.later(0.01, self.look_for_plan)

    # ---- life

    def start(self, layout: Layout | None) -> None:
        if layout is None:
            self.publish()
            self.wait_for_plan()
            return
        self.layout, self.held = layout, {0: 0}
        self.cycle.enter(0, 0)
        self.acceptor.begin()
        self.meet("build", 0, 0, layout.ranks, 0, lambda brought: self.enter(0, 0))

    def publish(self) -> None:
        self.acceptor.publish(self.described())
        self.changed()

    def described(self) -> RankState:
        state = self.cycle.state(tuple(sorted(self.held)))
        copies = tuple(KeptCopy(owner=o, epoch=e, steps_applied=s) for o, e, s in sorted(self.kept))
        earlier = tuple(
            EarlierState(epoch=epoch, steps_applied=steps)
            for epoch in state.held_epochs
            for steps in sorted(self.earlier(epoch))
        )
        return replace(state, copies=copies, earlier=earlier) if copies or earlier else state

    @property
    def owes(self) -> str:
        """What it was asked and has heard no end of; empty when there is nothing."""
        asked, pending = self.acceptor.asked, self.acceptor.state.pending_epoch
        return f"epoch {pending} pending" if pending else f"plan {asked.plan_id} prepared" if asked else ""

    def earlier(self, epoch: int) -> set[int]:
        return {one[1] for one in (self.safe, self.last) if one is not None and one[0] == epoch}

    def meet(
        self,
        what: str,
        epoch: int,
        number: int,
        members: Iterable[int],
        brings: Any,
        met: Callable[[dict[int, Any]], None],
    ) -> None:
        """Wait until all members are there; some hear of it, others lose somebody before they do."""
        key = (what, epoch, number)
        meeting = self.job.meetings.setdefault(key, Meeting(tuple(members)))
        meeting.brought[self.rank] = self, brings
        self.waits_for = key
        self._met = lambda: met({rank: value for rank, (_, value) in meeting.brought.items()})
        if len(meeting.brought) == len(meeting.members):
            for rank, _ in meeting.brought.values():
                if rank.alive and rank.waits_for == key:
                    rank.later(0.02, rank.proceed)
        else:
            for member in meeting.members:
                if member not in meeting.brought and not self.job.is_expected(member, what):
                    self.later(0.5, self.lose_peers)
        self.heed()

    def proceed(self) -> None:
        met = self._met
        self.turn()
        met()

    def lose_peers(self) -> None:
        """Park, and so does whoever waits for this rank and notices."""
        key = self.waits_for
        if self.acceptor.state.phase is RankPhase.RESHAPING:
            self.acceptor.fail("PeerLost")
        self.turn()
        self.cycle.park(holds_anything=bool(self.held))
        self.publish()
        self.job.missed(self, key)
        self.wait_for_plan()

    # ---- iterations

    def iterate(self) -> None:
        self.waits_for = ("compute", self.cycle.epoch, self.cycle.steps_applied)
        seconds = self.job.shape.iteration_seconds
        self.later(1.2 * seconds, self.finish_round, least_seconds=0.6 * seconds)
        self.heed()

    def finish_round(self) -> None:
        now = self.cycle.epoch, self.cycle.steps_applied
        for place in self._placements:
            if place.keeper == self.rank:
                if (place.owner, *now) not in self.job.sent:
                    self.lose_peers()
                    return
                self.kept.add((place.owner, *now))
        if self._placements:
            self.last = now
        self.cycle.vote()
        self.job.happened("voted", self)
        if self.alive:
            assert self.layout is not None
            carried = self.acceptor.committed_epoch
            self.meet("vote", *now, self.layout.ranks, carried, lambda brought: self.hear(min(brought.values())))

    def hear(self, agreed: int) -> None:
        self.job.happened("heard", self)
        if not self.alive:
            return
        self.step()
        following = self.cycle.epoch_after(agreed)
        if following is None:
            self.send()
            self.publish()
            self.iterate()
            return
        commit = self.acceptor.take(following)
        if commit is None:
            self.lose_peers()
        else:
            self.switch(commit)

    def step(self) -> None:
        self.job.stepped(self)
        self.cycle.stepped()
        epoch = self.cycle.epoch
        self.held[epoch] = self.cycle.steps_applied
        if not self._placements:
            self.forget_copies()
        elif self.last is not None:
            self.safe, self.last = self.last, None
            self.kept = {one for one in self.kept if one[1:] == self.safe}
        if len(self.held) > 1:
            self.held = {epoch: self.held[epoch]}
        self.job.voted.add(epoch)

    def send(self) -> None:
        if self._placements:
            self.job.sent.add((self.rank, self.cycle.epoch, self.cycle.steps_applied))

    def forget_copies(self) -> None:
        self.kept, self.safe, self.last = set(), None, None

    # ---- plans

    def wait_for_plan(self) -> None:
        self.waits_for = ("plan", 0, 0)
        self.later(_TICK_SECONDS, self.look_for_plan, least_seconds=_TICK_SECONDS)

    def look_for_plan(self) -> None:
        if (commit := self.acceptor.take()) is not None:
            self.switch(commit)
            return
        if self.cycle.phase is RankPhase.JOINING and self.held and self.cycle.left_for in self.job.voted:
            self.held = {}
            self.forget_copies()
            self.publish()
        self.turn()
        self.wait_for_plan()

    def switch(self, commit: Commit) -> None:
        self.turn()
        self.changed()
        self.job.taken(self, commit)
        if not self.alive:
            return
        match self.cycle.way_to(commit, self.held, self.earlier(commit.from_epoch)):
            case Way.STEP:
                self.step()
            case Way.BACK:
                if not commit.stand_ins:
                    self.job.breaks(
                        f"samples_once: rank {self.rank} goes back to {commit.steps_applied}, and no copy is read"
                    )
                self.held = {commit.from_epoch: commit.steps_applied}
                self.cycle.steps_applied = commit.steps_applied
            case Way.UNFIT:
                self.lose_peers()
                return
        epoch, layout = commit.reshape.epoch, commit.reshape.to_layout
        wanted = {(s.owner, commit.from_epoch, commit.steps_applied) for s in commit.stand_ins if s.keeper == self.rank}
        if not wanted <= self.kept:
            self.lose_peers()
            return
        is_source = self.rank in commit.sources and commit.from_epoch in self.held
        members = {*layout.ranks, *commit.sources, *(one.keeper for one in commit.stand_ins)}
        if commit.reshape.mode is ApplyMode.BOUNDARY:
            members = {*layout.ranks, *(rank for rank in commit.sources)}
        if self.rank not in members:
            self.stand_by(epoch, layout)
            return
        brings = self.held[commit.from_epoch] if is_source else -1
        self.meet("build", epoch, 0, sorted(members), brings, lambda brought: self.arrive(commit, brought))

    def arrive(self, commit: Commit, brought: dict[int, int]) -> None:
        self.job.happened("moved", self)
        if not self.alive:
            return
        known = {steps for steps in brought.values() if steps >= 0}
        if commit.stand_ins or commit.from_checkpoint:
            known.add(commit.steps_applied)
        readable = {rank for rank, steps in brought.items() if steps >= 0} | {one.owner for one in commit.stand_ins}
        lost = uncovered_blocks(self.job.model, commit.from_layout, readable & set(commit.from_layout.ranks))
        if len(known) != 1 or (lost and not commit.from_checkpoint):
            self.job.breaks(f"steps_agree: epoch {commit.reshape.epoch} is made of steps {known}, lost {lost}")
            return
        epoch, layout, steps = commit.reshape.epoch, commit.reshape.to_layout, known.pop()
        if layout.position_of(self.rank) is None:
            self.stand_by(epoch, layout)
            return
        source = {commit.from_epoch: steps} if commit.from_epoch in self.held and self.rank in commit.sources else {}
        self.held = {**source, epoch: steps}
        self.layout = layout
        self.cycle.enter(epoch, steps)
        self.enter(epoch, steps)

    def enter(self, epoch: int, steps: int) -> None:
        assert self.layout is not None
        self._placements = self.job.placements_of(self.layout)
        self.job.entered(self, epoch, steps)
        self.send()
        self.publish()
        self.iterate()

    def stand_by(self, epoch: int, layout: Layout) -> None:
        self.layout, self._placements = layout, ()
        self.cycle.stand_by(epoch)
        self.publish()
        self.wait_for_plan()
