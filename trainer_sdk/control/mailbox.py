"""Where plans wait for the training thread: a thread-safe state machine, without gRPC.

Handler threads call :meth:`~Mailbox.prepare`, :meth:`~Mailbox.commit`, :meth:`~Mailbox.abort`,
:meth:`~Mailbox.interrupt` and :meth:`~Mailbox.wait_for_change`; the training thread calls the rest. The rules:

- A rank promises itself to the newest epoch that it was asked about; anything older is stale.
- A commit is handed to the training thread once. The hand-over marks the rank RESHAPING in the same critical section,
  so that no Prepare can be answered with a state that the reshape is about to change.
- A commit in mode BOUNDARY leaves only at the boundary, or to a rank that is JOINING and has no boundary. A prepared
  RECOVER hides it; an Abort of that RECOVER shows it again, because it was decided and the RECOVER was not.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.rank_state import RankPhase, RankState
from evenkeel.trainer_sdk.control.probe import ProbeDesk
from evenkeel.trainer_sdk.control.state import ApplyMode, Commit, Reshape

_SAFE_PHASES = frozenset({RankPhase.PARKED, RankPhase.JOINING})
_MOST_EPOCHS_AHEAD = 1_000_000
"""An attempt at a plan uses one epoch up: nobody is so far ahead, and a rank that believed it would refuse the rest."""


class StalePlanError(Exception):
    """The call belongs to an epoch or plan that this rank has left behind; the message names both."""


def _key(reshape: Reshape) -> tuple[int, str]:
    return (reshape.epoch, reshape.plan_id)


class Mailbox:
    """Plans on their way from handler threads to the training thread, and states on their way back.

    Args:
        rank: This rank.
        incarnation: Which process of the rank this is.

    Attributes:
        probes: Where handlers ask for a probe; the training thread serves it at an iteration border.
    """

    def __init__(self, rank: int, incarnation: int = 0) -> None:
        self._changed = threading.Condition()
        self._state = RankState(rank=rank, incarnation=incarnation, phase=RankPhase.JOINING)
        self._version = 0
        self._epoch = -1
        self._taken: Commit | None = None  # handed over, not yet applied
        self._commit: Commit | None = None  # decided, not yet handed over
        self._prepared: Reshape | None = None  # asked about, not yet decided
        self._newest: tuple[int, str] = (-1, "")  # newest committed (epoch, plan)
        self._aborted: tuple[int, str] = (-1, "")
        self._prepare_answer: tuple[tuple[int, str], RankState] | None = None
        self._decided_answer: RankState | None = None  # to Prepare of the newest committed plan
        self._commit_answer: RankState | None = None
        self._interrupt_epoch = -2
        self._leaving = False
        self._interrupted = False  # derived; read without the lock on the training thread
        self._check: Callable[[Layout], None] | None = None
        self.probes = ProbeDesk()

    # ---- the training thread

    def require(self, check: Callable[[Layout], None]) -> None:
        """From now on a plan is refused whose layout ``check`` raises ValueError for. It runs on handler threads."""
        self._check = check

    def interrupted(self) -> bool:
        """True while the rank should stop waiting for peers and park. Lock-free, well under a microsecond."""
        return self._interrupted

    def leaving(self) -> bool:
        """True once the rank is evicted: the process should end."""
        return self._leaving

    def committed_epoch(self) -> int:
        """The epoch of the newest commit that is not yet applied, or the epoch in force. What a step vote carries."""
        with self._changed:
            if self._commit is not None and not self._hidden():
                return self._commit.reshape.epoch
            return self._position()

    def take_commit(self, *, mode: ApplyMode | None = None) -> Commit | None:
        """The commit to apply now, handed over once.

        Args:
            mode: BOUNDARY at the boundary, after a vote in which every rank carried the commit; otherwise only a
                commit in mode RECOVER is handed over.
        """
        with self._changed:
            wanted = {mode or ApplyMode.RECOVER}
            return self._take(wanted)

    def wait_for_commit(self, timeout_seconds: float) -> Commit | None:
        """The commit that a parked or joining rank should apply, or None after the timeout or on eviction.

        A PARKED rank gets RECOVER commits only: its boundary is lost with its peers. A JOINING rank gets both.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while True:
                wanted = {ApplyMode.RECOVER}
                if self._state.phase is RankPhase.JOINING:
                    wanted.add(ApplyMode.BOUNDARY)
                commit = self._take(wanted)
                remaining = deadline - time.monotonic()
                if commit is not None or self._leaving or remaining <= 0:
                    return commit
                self._changed.wait(remaining)

    def publish(self, state: RankState) -> None:
        """Report the rank's state; wakes Prepare handlers and Watch streams. A newer epoch in it counts as applied."""
        with self._changed:
            if state.epoch > self._epoch:
                self._apply(state.epoch)
            self._set_state(state)

    def applied(self, epoch: int) -> None:
        """The switch to ``epoch`` is done: everything at or below it is stale and its interrupts are over."""
        with self._changed:
            self._apply(epoch)

    # ---- handler threads

    def check(self, layout: Layout) -> None:
        """Returns when this rank can run the layout, or has said nothing about it.

        Raises:
            ValueError: It cannot; the message says why.
        """
        if self._check is not None:
            self._check(layout)

    @property
    def state(self) -> RankState:
        """The newest state, with the newest epoch that anybody asked about."""
        with self._changed:
            return self._told_state()

    def prepare(self, reshape: Reshape, timeout_seconds: float) -> RankState:
        """Take note of a plan and answer with the rank's state; in mode RECOVER once the rank is parked.

        A prepare for the same epoch with another plan id replaces an uncommitted one: the newest asker is right.

        Raises:
            StalePlanError: A newer epoch, or another plan for this epoch, is committed, prepared or in force; the plan
                was aborted; or the plan wants a boundary while a commit still waits for its own.
            TimeoutError: Mode RECOVER, and the training thread did not park in time; the plan stays prepared.
            ValueError: No plan can have that epoch.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            self._refuse_far(reshape.epoch)
            key = _key(reshape)
            if self._prepare_answer is not None and key == self._prepare_answer[0]:
                return self._prepare_answer[1]
            if key == self._newest and self._epoch <= reshape.epoch:
                if self._decided_answer is None:
                    self._decided_answer = self._state
                return self._decided_answer
            self._refuse_stale(reshape)
            waiting = self._commit or self._taken
            if reshape.mode is ApplyMode.BOUNDARY and waiting is not None:
                raise StalePlanError(
                    f"plan {reshape.plan_id} wants a boundary, but epoch {waiting.reshape.epoch} is committed and not "
                    f"applied: wait for it, or plan in mode RECOVER"
                )
            if self._state.phase is RankPhase.FINISHED:
                raise StalePlanError(f"rank {self._state.rank} has finished; no plan can include it")
            self._prepared = reshape
            self._prepare_answer = None
            self._refresh()
            if reshape.mode is ApplyMode.RECOVER:
                self._wait_until_safe(reshape, deadline)
            self._prepare_answer = (key, self._state)
            return self._state

    def commit(self, commit: Commit) -> RankState:
        """Enqueue a decision for the training thread and answer with the state at the time.

        No Prepare is needed before: a controller that restarted in between has all it needs in the commit.

        Raises:
            StalePlanError: As for :meth:`prepare`, or another plan is prepared for this epoch.
            ValueError: No plan can have that epoch.
        """
        reshape = commit.reshape
        with self._changed:
            self._refuse_far(reshape.epoch)
            key = _key(reshape)
            if key == self._newest and self._epoch <= reshape.epoch:
                return self._commit_answer or self._state
            self._refuse_stale(reshape)
            prepared = self._prepared
            if prepared is not None and prepared.epoch == reshape.epoch and prepared.plan_id != reshape.plan_id:
                raise StalePlanError(
                    f"plan {reshape.plan_id} for epoch {reshape.epoch} was replaced by plan {prepared.plan_id}"
                )
            waiting = self._commit or self._taken
            if reshape.mode is ApplyMode.BOUNDARY and waiting is not None:
                raise StalePlanError(
                    f"plan {reshape.plan_id} wants a boundary, but epoch {waiting.reshape.epoch} is not applied yet"
                )
            self._prepared = None
            self._commit = commit
            self._newest = key
            self._commit_answer = self._state
            answered = self._prepare_answer
            self._decided_answer = answered[1] if answered is not None and answered[0] == key else None
            self._prepare_answer = None
            self._refresh()
            return self._state

    def abort(self, plan_id: str, epoch: int) -> RankState:
        """Forget a plan that is prepared and not committed. A parked rank stays parked; an unknown plan is no error.

        Raises:
            StalePlanError: The plan is committed already: it can only be superseded.
            ValueError: No plan can have that epoch.
        """
        with self._changed:
            self._refuse_far(epoch)
            if (epoch, plan_id) == self._newest:
                raise StalePlanError(f"plan {plan_id} for epoch {epoch} is committed and cannot be aborted")
            if self._prepared is not None and _key(self._prepared) == (epoch, plan_id):
                self._prepared = None
                self._prepare_answer = None
            if epoch >= self._aborted[0]:
                self._aborted = (epoch, plan_id)
            self._refresh()
            return self._told_state()

    def interrupt(self, epoch: int, *, leave: bool) -> RankState:
        """Ask the training thread to stop waiting and park, or to end the process.

        An epoch that this rank has not heard of stands for the newest that it has: plans to come are not interrupted.

        Raises:
            StalePlanError: The rank is already beyond ``epoch``.
        """
        with self._changed:
            beyond = self._epoch if leave else self._position()
            if epoch < beyond:
                raise StalePlanError(f"interrupt for epoch {epoch}, but this rank is at epoch {beyond}")
            known = max(self._position(), self._newest[0])
            self._interrupt_epoch = max(self._interrupt_epoch, min(epoch, known))
            self._leaving = self._leaving or leave
            self._refresh()
            return self._state

    def wait_for_change(
        self, seen_version: int, timeout_seconds: float, is_over: Callable[[], bool] = lambda: False
    ) -> tuple[int, RankState]:
        """The state once its phase or epoch changed after ``seen_version``, with its version; or after the timeout.

        Args:
            seen_version: Version of the last state the caller saw; -1 to get the state at once.
            timeout_seconds: Longest wait.
            is_over: Checked whenever something happens; True ends the wait.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while self._version == seen_version and not is_over():
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                self._changed.wait(remaining)
            return self._version, self._state

    def wait_until_leaving(self, timeout_seconds: float) -> bool:
        """True once the rank is evicted, False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._leaving, timeout_seconds)

    def wake(self) -> None:
        """Wake every waiter so that it looks at its conditions again; the server calls it when it stops."""
        with self._changed:
            self._changed.notify_all()

    # ---- under the lock

    def _told_state(self) -> RankState:
        promised = max(self._newest[0], -1 if self._prepared is None else self._prepared.epoch)
        return replace(self._state, promised_epoch=promised if promised > self._epoch else 0)

    def _position(self) -> int:
        """The epoch in force, or the one that the training thread is moving to."""
        return self._epoch if self._taken is None else max(self._epoch, self._taken.reshape.epoch)

    def _hidden(self) -> bool:
        return self._prepared is not None and self._prepared.mode is ApplyMode.RECOVER and self._commit is not None

    def _take(self, wanted: set[ApplyMode]) -> Commit | None:
        commit = self._commit
        if commit is None or self._hidden() or commit.reshape.mode not in wanted:
            return None
        self._commit, self._taken = None, commit
        self._set_state(replace(self._state, phase=RankPhase.RESHAPING))
        self._refresh()
        return commit

    def _refuse_far(self, epoch: int) -> None:
        known = max(self._epoch, self._newest[0], 0)
        if epoch > known + _MOST_EPOCHS_AHEAD:
            raise ValueError(
                f"epoch {epoch} is more than {_MOST_EPOCHS_AHEAD} beyond epoch {known} of rank {self._state.rank}: "
                "use one that is above all that the job's plans have used"
            )

    def _refuse_stale(self, reshape: Reshape) -> None:
        prepared_epoch = -1 if self._prepared is None else self._prepared.epoch
        newest = max(self._epoch, self._newest[0], prepared_epoch - 1)
        if reshape.epoch <= newest:
            raise StalePlanError(
                f"plan {reshape.plan_id} leads to epoch {reshape.epoch}, but rank {self._state.rank} is at epoch "
                f"{self._epoch} and knows epoch {max(newest, prepared_epoch)} (plan {self._newest[1] or 'none'})"
            )
        if _key(reshape) == self._aborted:
            raise StalePlanError(f"plan {reshape.plan_id} for epoch {reshape.epoch} was aborted")

    def _wait_until_safe(self, reshape: Reshape, deadline: float) -> None:
        while self._state.phase not in _SAFE_PHASES and self._waits_for(reshape):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError(
                    f"rank {self._state.rank} is {self._state.phase} and did not park for plan {reshape.plan_id}"
                )
            self._changed.wait(remaining)
        if not self._waits_for(reshape):
            raise StalePlanError(f"plan {reshape.plan_id} for epoch {reshape.epoch} was superseded while it waited")

    def _waits_for(self, reshape: Reshape) -> bool:
        prepared = self._prepared
        return prepared is not None and _key(prepared) == _key(reshape) and self._state.phase is not RankPhase.FINISHED

    def _apply(self, epoch: int) -> None:
        if epoch < self._epoch:
            raise ValueError(f"epoch {epoch} cannot follow epoch {self._epoch}")
        self._epoch = epoch
        if self._taken is not None and self._taken.reshape.epoch <= epoch:
            self._taken = None
        if self._commit is not None and self._commit.reshape.epoch <= epoch:
            self._commit = None
        if self._prepared is not None and self._prepared.epoch <= epoch:
            self._prepared = None
        if self._prepare_answer is not None and self._prepare_answer[0][0] < epoch:
            self._prepare_answer = None
        self._refresh()

    def _set_state(self, state: RankState) -> None:
        if (state.phase, state.epoch) != (self._state.phase, self._state.epoch):
            self._version += 1
        self._state = state
        self._changed.notify_all()

    def _refresh(self) -> None:
        asked = self._prepared is not None and self._prepared.mode is ApplyMode.RECOVER
        decided = self._commit is not None and self._commit.reshape.mode is ApplyMode.RECOVER
        told = self._interrupt_epoch >= self._position()
        self._interrupted = asked or decided or told or self._leaving
        self._changed.notify_all()
