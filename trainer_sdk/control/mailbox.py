"""Where plans wait for the training thread: :class:`~evenkeel.trainer_sdk.control.acceptor.Acceptor` behind a lock.

Handler threads call :meth:`~Mailbox.prepare`, :meth:`~Mailbox.commit`, :meth:`~Mailbox.abort`,
:meth:`~Mailbox.interrupt` and :meth:`~Mailbox.wait_for_change`; the training thread calls the rest. All that is decided
is decided by the acceptor; here it is locked, waited for, and told to whoever waits.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.rank_state import Ballot, RankState
from evenkeel.trainer_sdk.control.acceptor import Acceptor
from evenkeel.trainer_sdk.control.probe import ProbeDesk
from evenkeel.trainer_sdk.control.state import Commit, Reshape


class Mailbox:
    """Plans on their way from handler threads to the training thread, and states on their way back.

    An engine publishes its state when it changes, moves inside :meth:`switching`, and looks at :meth:`interrupted`
    between the slices of its waits.

    Args:
        rank: This rank.
        incarnation: Which process of the rank this is.

    Attributes:
        probes: Where handlers ask for a probe; the training thread serves it at an iteration border.
    """

    def __init__(self, rank: int, incarnation: int = 0) -> None:
        self._changed = threading.Condition()
        self._acceptor = Acceptor(rank, incarnation)
        self._version = 0
        self._told = self._acceptor.state
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
        return self._acceptor.leaving

    def committed_epoch(self) -> int:
        """The epoch of the newest commit that is not yet applied, or the epoch in force. What a step vote carries."""
        with self._changed:
            return self._acceptor.committed_epoch

    def publish(self, state: RankState) -> None:
        """Report where the rank is; wakes Prepare handlers and Watch streams. A newer epoch in it counts as applied.

        Inside :meth:`switching` and :meth:`beginning` this is how a switch ends well: publish a state of the new epoch.

        Raises:
            ValueError: The epoch is older than the one before, or the phase is RESHAPING, which follows from the plans.
        """
        with self._acting() as acceptor:
            acceptor.publish(state)

    @contextmanager
    def switching(self, epoch: int | None = None, timeout_seconds: float = 0.0) -> Iterator[Commit | None]:
        """Around a move to the epoch of a committed plan; the rank is RESHAPING in it.

        What is handed over, once, follows from the phase that was published last: TRAINING, at its boundary, takes
        plans in mode BOUNDARY; PARKED those in mode RECOVER, as its boundary is lost with its peers; JOINING both. The
        block is left with a state of the plan's epoch published, or the plan has failed here and the scheduler is told
        why; then the next state that is published says where that leaves the rank.

        Args:
            epoch: The plan that a step vote agreed on; None = whichever there is.
            timeout_seconds: How long to wait for a commit; the wait ends on eviction too.

        Yields:
            The plan to move by; None when there was none in time.
        """
        with self._changed:
            commit = self._changed.wait_for(lambda: self._take(epoch) or self.leaving(), timeout_seconds)
        if not isinstance(commit, Commit):
            yield None
            return
        with self._obliged():
            yield commit

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Around the way into the job's first epoch, which no plan leads to; ends as :meth:`switching` does."""
        with self._acting() as acceptor:
            acceptor.begin()
        with self._obliged():
            yield

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
        """All that the rank has."""
        with self._changed:
            return self._acceptor.state

    def follow(self, term: int) -> None:
        """See :meth:`Acceptor.follow`."""
        with self._acting() as acceptor:
            acceptor.follow(term)

    def prepare(self, plan: Reshape, timeout_seconds: float) -> RankState:
        """Take note of a plan and answer with the rank's state; in mode RECOVER once the rank is parked.

        Raises:
            StaleBallotError: See :meth:`Acceptor.prepare` and :meth:`Acceptor.answer`.
            FinishedError: The rank is done.
            TimeoutError: Mode RECOVER, and the training thread did not park in time; the plan stays prepared.
            ValueError: No plan can have that epoch.
        """
        with self._changed:
            with self._acting() as acceptor:
                acceptor.prepare(plan)
            answer = self._changed.wait_for(lambda: acceptor.answer(plan), timeout_seconds)
            if answer is None:
                state = acceptor.state
                raise TimeoutError(f"rank {state.rank} is {state.phase} and did not park for plan {plan.plan_id}")
            return answer

    def commit(self, commit: Commit) -> RankState:
        """See :meth:`Acceptor.commit`; answers with the state at the time, and so do the next two."""
        with self._acting() as acceptor:
            acceptor.commit(commit)
            return acceptor.state

    def abort(self, plan_id: str, ballot: Ballot) -> RankState:
        """See :meth:`Acceptor.abort`."""
        with self._acting() as acceptor:
            acceptor.abort(plan_id, ballot)
            return acceptor.state

    def interrupt(self, epoch: int, *, leave: bool) -> RankState:
        """See :meth:`Acceptor.interrupt`."""
        with self._acting() as acceptor:
            acceptor.interrupt(epoch, leave=leave)
            return acceptor.state

    def wait_for_change(
        self, seen_version: int, timeout_seconds: float, is_over: Callable[[], bool] = lambda: False
    ) -> tuple[int, RankState]:
        """The state once its phase, epoch or failure changed after ``seen_version``, with its version; or at a timeout.

        Args:
            seen_version: Version of the last state the caller saw; -1 to get the state at once.
            timeout_seconds: Longest wait.
            is_over: Checked whenever something happens; True ends the wait.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._version != seen_version or is_over(), timeout_seconds)
            return self._version, self._acceptor.state

    def wait_until_leaving(self, timeout_seconds: float) -> bool:
        """True once the rank is evicted, False after the timeout."""
        with self._changed:
            return self._changed.wait_for(self.leaving, timeout_seconds)

    def wake(self) -> None:
        """Wake every waiter so that it looks at its conditions again; the server calls it when it stops."""
        with self._changed:
            self._changed.notify_all()

    # ---- inside

    @contextmanager
    def _acting(self) -> Iterator[Acceptor]:
        """The acceptor, under the lock; what follows from a change is told at the end, also after a refusal."""
        with self._changed:
            try:
                yield self._acceptor
            finally:
                state = self._acceptor.state
                if _watched(state) != _watched(self._told):
                    self._version += 1
                self._told, self._interrupted = state, self._acceptor.interrupted
                self._changed.notify_all()

    def _take(self, epoch: int | None) -> Commit | None:
        with self._acting() as acceptor:
            return acceptor.take(epoch)

    @contextmanager
    def _obliged(self) -> Iterator[None]:
        """A hand-over ends as applied or as failed, however its block is left."""
        reason = "the training thread left it without having applied it"
        try:
            yield
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
            raise
        finally:
            with self._acting() as acceptor:
                acceptor.fail(reason)


def _watched(state: RankState) -> tuple[object, ...]:
    return state.phase, state.epoch, state.failed_epoch
