"""Any order of calls: never two epochs, never a stale plan, the same question gets the same answer."""

import contextlib

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from evenkeel.layouts.layout import uniform_layout
from evenkeel.layouts.rank_state import RankPhase, RankState
from evenkeel.trainer_sdk.control.mailbox import Mailbox, StalePlanError
from evenkeel.trainer_sdk.control.state import ApplyMode, Commit, Reshape

LAYOUT = uniform_layout(num_blocks=1, tensor=1, pipeline=1, data=1, num_micro_batches=1)
EPOCHS = st.integers(min_value=1, max_value=6)
PLANS = st.sampled_from(["a", "b"])
MODES = st.sampled_from(list(ApplyMode))


class MailboxMachine(RuleBasedStateMachine):
    """Handlers ask in any order while the training thread trains, parks, takes, applies."""

    def __init__(self) -> None:
        super().__init__()
        self.box = Mailbox(rank=0)
        self.steps = 0
        self.epoch = 0
        self.taken: Commit | None = None
        self.taken_epochs: list[int] = []
        self.prepared: dict[tuple[int, str], RankState] = {}
        self.committed: dict[tuple[int, str], RankState] = {}
        self.modes: dict[tuple[int, str], ApplyMode] = {}
        self.aborted: set[tuple[int, str]] = set()
        self.publish(RankPhase.TRAINING)

    def publish(self, phase: RankPhase) -> None:
        self.box.publish(
            RankState(
                rank=0, incarnation=0, phase=phase, epoch=self.epoch, iteration=self.steps, steps_applied=self.steps
            )
        )

    def plan(self, epoch: int, plan_id: str, mode: ApplyMode) -> Reshape:
        mode = self.modes.setdefault((epoch, plan_id), mode)
        return Reshape(job_id="job", plan_id=plan_id, epoch=epoch, mode=mode, to_layout=LAYOUT)

    @rule(epoch=EPOCHS, plan_id=PLANS, mode=MODES)
    def prepare(self, epoch: int, plan_id: str, mode: ApplyMode) -> None:
        key = (epoch, plan_id)
        reshape = self.plan(epoch, plan_id, mode)
        try:
            answer = self.box.prepare(reshape, timeout_seconds=0)
        except StalePlanError:
            return
        except TimeoutError:
            assert reshape.mode is ApplyMode.RECOVER
            assert self.box.interrupted()
            self.prepared = {}  # Unanswered, but asked last: it has replaced whatever was prepared.
            return
        assert epoch >= self.epoch, "a stale plan was prepared"
        assert all(other == key or other[0] < epoch for other in self.committed), "two plans for one epoch"
        if key in self.prepared and key not in self.aborted:
            assert answer == self.prepared[key]
        if reshape.mode is ApplyMode.RECOVER and key not in self.committed:
            assert answer.phase in (RankPhase.PARKED, RankPhase.JOINING)
        self.prepared = {key: answer}

    @rule(epoch=EPOCHS, plan_id=PLANS, mode=MODES)
    def commit(self, epoch: int, plan_id: str, mode: ApplyMode) -> None:
        key = (epoch, plan_id)
        reshape = self.plan(epoch, plan_id, mode)
        decision = Commit(reshape=reshape, from_epoch=0, from_layout=LAYOUT, sources=(0,), steps_applied=self.steps)
        try:
            answer = self.box.commit(decision)
        except StalePlanError:
            assert key not in self.committed or key[0] < max(self.epoch, max(self.committed)[0])
            return
        assert epoch >= self.epoch
        if key in self.committed:
            assert answer == self.committed[key]
        assert all(other == key or other[0] < epoch for other in self.committed), "two plans for one epoch"
        self.committed[key] = answer

    @rule(epoch=EPOCHS, plan_id=PLANS)
    def abort(self, epoch: int, plan_id: str) -> None:
        try:
            self.box.abort(plan_id, epoch)
        except StalePlanError:
            assert (epoch, plan_id) in self.committed, "only a committed plan resists its abort"
            return
        self.aborted.add((epoch, plan_id))
        self.prepared.pop((epoch, plan_id), None)

    @rule(epoch=st.integers(min_value=0, max_value=6))
    def interrupt(self, epoch: int) -> None:
        with contextlib.suppress(StalePlanError):
            self.box.interrupt(epoch, leave=False)
            assert self.box.interrupted()

    @precondition(lambda self: self.taken is None and self.box.state.phase is RankPhase.TRAINING)
    @rule()
    def step(self) -> None:
        if self.box.interrupted():
            self.publish(RankPhase.PARKED)
            return
        self.steps += 1
        self.publish(RankPhase.TRAINING)
        carried = self.box.committed_epoch()
        commit = self.box.take_commit(mode=ApplyMode.BOUNDARY)
        if commit is not None:
            assert commit.reshape.epoch == carried, "the rank switches to another epoch than its vote carried"
            self.took(commit)

    @precondition(lambda self: self.taken is None and self.box.state.phase is RankPhase.PARKED)
    @rule()
    def look_while_parked(self) -> None:
        commit = self.box.wait_for_commit(0)
        if commit is not None:
            assert commit.reshape.mode is ApplyMode.RECOVER
            self.took(commit)

    def took(self, commit: Commit) -> None:
        assert commit.reshape.epoch > self.epoch, "a stale plan was taken"
        assert commit.reshape.epoch not in self.taken_epochs, "a commit was taken twice"
        key = (commit.reshape.epoch, commit.reshape.plan_id)
        assert key in self.committed
        self.taken_epochs.append(commit.reshape.epoch)
        self.taken = commit
        assert self.box.state.phase is RankPhase.RESHAPING

    @precondition(lambda self: self.taken is not None)
    @rule(fails=st.booleans())
    def reshape(self, fails: bool) -> None:
        assert self.taken is not None
        if fails or self.box.interrupted():
            self.publish(RankPhase.PARKED)
        else:
            self.epoch = self.taken.reshape.epoch
            self.box.applied(self.epoch)
            self.publish(RankPhase.TRAINING)
        self.taken = None

    @invariant()
    def epochs_only_grow(self) -> None:
        assert self.taken_epochs == sorted(self.taken_epochs)
        assert self.box.committed_epoch() >= self.epoch


MailboxMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_the_mailbox_keeps_its_invariants_in_any_order_of_calls = MailboxMachine.TestCase
