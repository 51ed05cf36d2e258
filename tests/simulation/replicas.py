"""Processes of whole replicas: the real roster, passage, plans and shares; the job's log and sums are simulated."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.rank_state import RankPhase
from evenkeel.trainer_sdk.control.mailbox import Mailbox
from evenkeel.trainer_sdk.replicas.membership.passage import Passage
from evenkeel.trainer_sdk.replicas.membership.plans import Plans
from evenkeel.trainer_sdk.replicas.membership.roster import Again, Entry, Epoch, Gone, Ready, Roster
from evenkeel.trainer_sdk.replicas.shares import Standing, StateLostError, settle, share_out
from tests.simulation.ranks import SimulatedRank

if TYPE_CHECKING:
    from tests.simulation.job import SimulatedJob

_BROKEN_SECONDS = 1.0
_HANG_SECONDS = 5.0
_LINE_SECONDS = 0.5


class SimulatedReplica(SimulatedRank):
    """A replica of one process; see :class:`~evenkeel.trainer_sdk.replicas.loop.Replicas`."""

    def __init__(self, job: "SimulatedJob", rank: int, incarnation: int) -> None:
        super().__init__(job, rank, incarnation)
        self.token = f"{rank}.{incarnation}"
        self.mailbox = Mailbox(rank, incarnation)
        self.acceptor, self.check = self.mailbox._acceptor, self.mailbox.check
        self.plans = Plans(self.mailbox, job.home.num_micro_batches)
        self.roster, self.passage = Roster(len(job.home.replicas)), Passage()
        self.epoch = Epoch(number=0, members=())
        self.has_begun = self.is_complete = False
        self._num_read = 0
        self._complete: tuple[int, ...] = ()
        self._done: tuple[int, ...] = ()
        self._todo: tuple[int, ...] | None = None

    def start(self, layout: Layout | None) -> None:
        self.mailbox.publish(replace(self.acceptor.state, phase=RankPhase.TRAINING, epoch=0))
        self.changed()
        self.aside(0.05, self.read)
        self.say(Ready(replica=self.rank, token=self.token, lines=()))
        self.seek()

    @property
    def weights(self) -> dict[int, int]:
        return {one.replica: one.weight for one in self.epoch.members}

    # ---- the log

    def say(self, entry: Entry) -> None:
        def write() -> None:
            if self.roster.is_due(entry):
                self.job.log.append(entry)
                for process in self.job.ranks.values():
                    process.aside(0.05, process.read)

        self.aside(0.05, write)

    def read(self) -> None:
        for entry in self.job.log[self._num_read :]:
            self.roster.apply(entry)
        self._num_read = len(self.job.log)
        if self.token in self.roster.gone:
            self.job.leaves(self)
        elif self.waits_for is not None and self.waits_for[0] == "plan":
            self.seek()
        else:
            self.heed()

    def die(self) -> None:
        super().die()
        for process in self.job.ranks.values():
            process.notice(self)

    def notice(self, other: SimulatedRank) -> None:
        """The line to somebody whom this replica trains with has ended."""
        if any(f"{other.rank}.{other.incarnation}" == one.token for one in self.epoch.members):
            self._count_out(other.rank, f"{other.rank}.{other.incarnation}", _LINE_SECONDS)

    def _count_out(self, replica: int, token: str, most_seconds: float = 0.0) -> None:
        self.aside(most_seconds, lambda: self.say(Gone(replica=replica, token=token, why="")))

    # ---- epochs

    def heed(self) -> None:
        waits = self.waits_for is not None and self.waits_for[0] in ("build", "vote")
        if waits and self.roster.newest_abrupt > self.passage.entered:
            self.later(0.05, self.lose_peers)

    def lose_peers(self) -> None:
        self.passage.fail("PeerLost")
        self.seek()

    def seek(self) -> None:
        """Go over to the next epoch, once there is one."""
        self.turn()
        self.waits_for = ("plan", 0, 0)
        epoch = self.passage.next_epoch(self.roster, self.token)
        if epoch is not None:
            self.passage.enter(epoch.number)
            self.epoch = epoch
            for process in list(self.job.processes.values()):
                if not process.alive:
                    self.notice(process)
            self._await("build", 0, self.standing, self.met)
        elif self.passage.is_broken:
            self.later(_BROKEN_SECONDS, lambda: self.say(self.passage.complaint()), least_seconds=_BROKEN_SECONDS)

    def _await(self, what: str, number: int, brings: Any, met: Callable[[dict[int, Any]], None]) -> None:
        """Wait for all members; who does not come for long hangs."""
        members = {one.replica: one.token for one in self.epoch.members}
        key = what, self.epoch.number, number

        def look() -> None:
            for replica in members.keys() - self.job.meetings[key].brought.keys():
                self._count_out(replica, members[replica])

        self.later(_HANG_SECONDS, look, least_seconds=_HANG_SECONDS)
        self.meet(*key, members, brings, met)

    @property
    def standing(self) -> Standing:
        founds = any(one.founds and one.token == self.token for one in self.epoch.members)
        steps = self.cycle.steps_applied
        return Standing(
            replica=self.rank,
            step=steps,
            done=self._done,
            complete=self.is_complete or founds,
            synced=self.has_begun,
            last_vote=(float(steps),) if steps else (),
        )

    def met(self, standings: dict[int, Standing]) -> None:
        """Everybody has said how far it is."""
        self.job.happened("moved", self)
        if not self.alive:
            return
        try:
            settlement = settle(standings.values(), self.job.home.num_micro_batches)
        except StateLostError:
            if self.has_begun:
                self.job.leaves(self)
                return
            self.say(Again(epoch=self.epoch.number, why="", anew=True))
            self.seek()
            return
        steps = self.cycle.steps_applied
        if not self.has_begun:
            self.has_begun, self.is_complete = True, self.rank in settlement.complete
            if self.is_complete:
                self.job.begins()
            self.held = {0: 0} if self.is_complete else {}
            steps = steps if self.is_complete else settlement.step
        self._complete = settlement.complete
        self._todo = self._share(settlement.missing)
        self.cycle.enter(self.epoch.number, steps)
        before = self.acceptor.state.epoch
        self.plans.entered(self.epoch.plan, steps)
        if self.acceptor.state.epoch > before:
            self.job.entered(self, self.epoch.plan, steps)
        self.changed()
        if settlement.step == steps:
            self.compute()
        elif settlement.last_vote != (float(settlement.step),) or settlement.step != steps + 1:
            self.job.breaks(f"steps_agree: rank {self.rank} is at step {steps}, others are at {settlement}")
        else:
            self.step()
            self.iterate()

    # ---- steps

    def iterate(self) -> None:
        if self.plans.asked_to_leave:
            self.job.leaves(self)
            return
        quotas = self.plans.committed()
        if quotas is not None:
            self.job.note(f"rank {self.rank}.{self.incarnation} tells all of plan {quotas.plan}")
            self.job.happened("taken", self)
            self.say(quotas)
            self.changed()
        if self.passage.is_due:
            self.seek()
            return
        if self._todo is None:
            self._todo = self._share(range(self.job.home.num_micro_batches))
        self.compute()

    def compute(self) -> None:
        self.waits_for = ("compute", self.epoch.number, self.cycle.steps_applied)
        seconds = self.job.shape.iteration_seconds if self._todo else 0.0
        self.later(1.2 * seconds, self.exchange, least_seconds=0.6 * seconds)

    def exchange(self) -> None:
        self._done, self._todo = (*self._done, *(self._todo or ())), None
        self.job.happened("voted", self)
        newest = self.epoch if self.roster.epoch is None else self.roster.epoch
        if self.alive:
            self._await("vote", self.cycle.steps_applied, (newest.number, self.is_complete, self._done), self.heard)

    def heard(self, said: dict[int, tuple[int, bool, tuple[int, ...]]]) -> None:
        self.job.happened("heard", self)
        if not self.alive:
            return
        summed = sorted(chain.from_iterable(done for _, _, done in said.values()))
        if summed != [*range(self.job.home.num_micro_batches)]:
            self.job.breaks(f"samples_once: step {self.cycle.steps_applied} of epoch {self.epoch.number} sums {summed}")
        self.passage.agree(min(newest for newest, _, _ in said.values()))
        self._complete = tuple(sorted(replica for replica, (_, is_complete, _) in said.items() if is_complete))
        self.step()
        self.iterate()

    def step(self) -> None:
        self.job.stepped(self)
        self.cycle.vote()
        self.cycle.stepped()
        self._done = ()
        self.is_complete = self.is_complete or self.job.random.random() < 0.5
        self.held = {0: self.cycle.steps_applied} if self.is_complete else {}

    def _share(self, micro_batches: Sequence[int]) -> tuple[int, ...]:
        weights = {one.replica: one.weight for one in self.epoch.members if one.replica in self._complete}
        if not any(weights.values()):
            weights = dict.fromkeys(weights, 1)
        return share_out(micro_batches, weights).get(self.rank, ())
