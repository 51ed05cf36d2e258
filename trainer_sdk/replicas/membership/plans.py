"""The scheduler's plans, where replicas take them: they say who runs how many micro-batches, and nothing else.

Who is there, replicas find out themselves, at once, and with no service at hand. A plan that is committed to any
goes into their log, and all follow it from the end of the same step.
"""

from contextlib import ExitStack
from dataclasses import replace

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.rank_state import RankPhase
from evenkeel.trainer_sdk.control.mailbox import Mailbox
from evenkeel.trainer_sdk.replicas.membership.roster import Quotas


class Plans:
    """Between a replica's rank controller and its loop. Training thread, except :meth:`check`.

    Args:
        mailbox: Of the rank controller.
        num_micro_batches: Of a step, over all replicas.
    """

    def __init__(self, mailbox: Mailbox, num_micro_batches: int) -> None:
        self._mailbox = mailbox
        self._num_micro_batches = num_micro_batches
        self._switch = ExitStack()
        mailbox.require(self.check)

    @property
    def asked_to_leave(self) -> bool:
        """The scheduler has evicted this replica."""
        return self._mailbox.leaving()

    def check(self, layout: Layout) -> None:
        """Whether replicas can follow a layout. Any thread.

        Raises:
            ValueError: They cannot.
        """
        if layout.num_micro_batches != self._num_micro_batches:
            raise ValueError(
                f"the layout has {layout.num_micro_batches} micro-batches a step, run.replicate() was told "
                f"{self._num_micro_batches}: register the job with as many"
            )
        if not layout.whole or any(len(each.ranks) != 1 for each in layout.replicas):
            raise ValueError("this job is one of replicas, each of which is one rank to the scheduler")

    def committed(self) -> Quotas | None:
        """What was committed here since the last call, to be told to all replicas."""
        state = self._mailbox.state
        if state.phase is RankPhase.RESHAPING or self._mailbox.committed_epoch() <= state.epoch:
            return None
        commit = self._switch.enter_context(self._mailbox.switching())
        if commit is None:
            self._switch.close()
            return None
        plan = commit.reshape
        weights = tuple((each.ranks[0], each.num_micro_batches) for each in plan.to_layout.replicas)
        return Quotas(plan=plan.epoch, weights=weights)

    def entered(self, plan: int, step: int) -> None:
        """This replica trains in an epoch that follows a plan."""
        state = self._mailbox.state
        if plan > state.epoch:
            said = replace(state, phase=RankPhase.TRAINING, epoch=plan, iteration=step, steps_applied=step)
            self._mailbox.publish(said)
            self._switch.close()
