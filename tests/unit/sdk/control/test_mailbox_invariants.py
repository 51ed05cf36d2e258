"""Any order of calls: never two epochs, never a stale plan, and a greater ballot is always answered."""

import contextlib

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.rank_state import Ballot, RankPhase, RankState
from evenkeel.trainer_sdk.control.acceptor import SAFE_PHASES, Acceptor, Switching
from evenkeel.trainer_sdk.control.refusals import StaleBallotError
from evenkeel.trainer_sdk.control.state import ApplyMode, Commit, Reshape

LAYOUT = uniform_layout(num_blocks=1, tensor=1, pipeline=1, data=1, num_micro_batches=1)
TERMS = st.integers(min_value=0, max_value=1)
EPOCHS = st.integers(min_value=1, max_value=6)
PLANS = st.sampled_from(["a", "b"])
MODES = st.sampled_from(list(ApplyMode))


class AcceptorMachine(RuleBasedStateMachine):
    """Schedulers ask in any order while the training thread trains, parks, takes, applies, fails."""

    def __init__(self) -> None:
        super().__init__()
        self.box = Acceptor(rank=0)
        self.steps = 0
        self.epoch = 0
        self.taken_epochs: list[int] = []
        self.committed: dict[int, str] = {}
        self.modes: dict[tuple[int, str], ApplyMode] = {}
        self.say(RankPhase.TRAINING)

    @property
    def switch(self) -> Switching | None:
        return self.box.switching

    def say(self, phase: RankPhase) -> None:
        said = RankState(rank=0, incarnation=0, phase=phase, epoch=self.epoch, steps_applied=self.steps)
        self.box.publish(said)

    def plan(self, term: int, epoch: int, plan_id: str, mode: ApplyMode) -> Reshape:
        mode = self.modes.setdefault((epoch, plan_id), mode)
        return Reshape(job_id="job", plan_id=plan_id, epoch=epoch, mode=mode, to_layout=LAYOUT, term=term)

    @rule(term=TERMS, epoch=EPOCHS, plan_id=PLANS, mode=MODES)
    def prepare(self, term: int, epoch: int, plan_id: str, mode: ApplyMode) -> None:
        plan = self.plan(term, epoch, plan_id, mode)
        promised = self.box.promised
        may_refuse = (term, epoch) <= promised or epoch <= max([self.epoch, *self.committed])
        try:
            self.box.prepare(plan)
        except StaleBallotError:
            assert may_refuse, "a greater ballot was refused"
            assert self.box.promised == promised, "a refusal changes nothing"
            return
        answer = self.box.answer(plan)
        if answer is None:
            assert plan.mode is ApplyMode.RECOVER
            assert self.box.state.phase not in SAFE_PHASES
            assert self.switch or self.box.interrupted, "somebody waits until this rank parks, and it is not told"
        elif plan.mode is ApplyMode.RECOVER and self.committed.get(epoch) != plan_id:
            assert answer.phase in SAFE_PHASES

    @rule(term=TERMS, epoch=EPOCHS, plan_id=PLANS, mode=MODES)
    def commit(self, term: int, epoch: int, plan_id: str, mode: ApplyMode) -> None:
        plan = self.plan(term, epoch, plan_id, mode)
        decision = Commit(
            reshape=plan, from_epoch=self.epoch, from_layout=LAYOUT, sources=(0,), steps_applied=self.steps
        )
        promised = self.box.promised
        try:
            self.box.commit(decision)
        except StaleBallotError:
            assert (term, epoch) <= promised or epoch <= max([self.epoch, *self.committed])
            return
        if self.committed.get(epoch) == plan_id:
            return
        assert (term, epoch) >= promised
        assert epoch > max([self.epoch, *self.committed]), "two plans for one epoch, or one that is over"
        self.committed[epoch] = plan_id
        assert self.box.state.pending_epoch == epoch

    @rule(term=TERMS, epoch=EPOCHS, plan_id=PLANS)
    def abort(self, term: int, epoch: int, plan_id: str) -> None:
        pending = self.box.state.pending_epoch
        self.box.abort(plan_id, Ballot(term, epoch))
        assert self.box.state.pending_epoch == pending, "what is decided stays"

    @rule(term=TERMS)
    def follow(self, term: int) -> None:
        pending, promised = self.box.state.pending_epoch, self.box.promised
        try:
            self.box.follow(term)
        except StaleBallotError:
            assert term < promised.term
            return
        asked = self.box.asked
        assert asked is None or asked.term >= term, "what an earlier scheduler asked about is off"
        assert self.box.state.pending_epoch == pending, "what is decided stays"

    @rule(epoch=st.integers(min_value=0, max_value=6))
    def interrupt(self, epoch: int) -> None:
        with contextlib.suppress(StaleBallotError):
            self.box.interrupt(epoch, leave=False)
            assert self.box.interrupted

    @precondition(lambda self: self.switch is None and self.box.state.phase is RankPhase.TRAINING)
    @rule()
    def step(self) -> None:
        if self.box.interrupted:
            self.say(RankPhase.PARKED)
            return
        self.steps += 1
        self.say(RankPhase.TRAINING)
        carried = self.box.committed_epoch
        commit = self.box.take(carried)
        assert (commit is not None) == (carried > self.epoch), "the rank switches to what its vote carried"
        if commit is not None:
            self.took(commit)

    @precondition(lambda self: self.switch is None and self.box.state.phase is RankPhase.PARKED)
    @rule()
    def look_while_parked(self) -> None:
        commit = self.box.take()
        if commit is not None:
            is_left_behind = commit.from_epoch != self.epoch
            assert commit.reshape.mode is ApplyMode.RECOVER or is_left_behind, "its boundary is lost with its peers"
            self.took(commit)

    def took(self, commit: Commit) -> None:
        epoch = commit.reshape.epoch
        assert epoch > self.epoch, "a stale plan was taken"
        assert epoch not in self.taken_epochs, "a commit was taken twice"
        assert self.committed[epoch] == commit.reshape.plan_id
        self.taken_epochs.append(epoch)

    @precondition(lambda self: self.switch is not None)
    @rule(fails=st.booleans())
    def arrive(self, fails: bool) -> None:
        assert self.switch is not None
        epoch = self.switch.epoch
        if fails or self.box.interrupted:
            self.box.fail("it broke")
            assert self.box.state.failed_epoch == epoch
            self.say(RankPhase.PARKED)
        else:
            self.epoch = epoch
            self.say(RankPhase.TRAINING)
        assert self.switch is None, "a hand-over has an end"
        assert self.box.state.pending_epoch != epoch

    @invariant()
    def holds(self) -> None:
        assert self.taken_epochs == sorted(self.taken_epochs)
        assert self.box.committed_epoch >= self.epoch
        assert (self.box.state.phase is RankPhase.RESHAPING) == (self.switch is not None)
        assert self.box.promised.epoch >= max([self.epoch, *self.committed])


AcceptorMachine.TestCase.settings = settings(
    max_examples=200, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_the_acceptor_keeps_its_invariants_in_any_order_of_calls = AcceptorMachine.TestCase
