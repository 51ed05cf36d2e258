"""When a step of the scenario is over: conditions on what was seen since the step began. Pure.

Conditions wait for evidence instead of for time: the scenario is as fast as the machine allows and passes by no luck.
"""

from dataclasses import dataclass
from typing import Protocol

from evenkeel.demo.observed.run_log import RunLog
from evenkeel.history.vocabulary import PlanState, VerdictKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Where the job stood when a step began: Unix seconds, iteration in progress, epoch in force."""

    at: float
    iteration: int
    epoch: int


class Condition(Protocol):
    """One thing to wait for."""

    def holds(self, log: RunLog, since: Moment) -> bool:
        """True when it was seen."""
        ...

    def describe(self) -> str:
        """What is waited for, in words."""
        ...


@dataclass(frozen=True, slots=True)
class IterationReached:
    """The job committed iteration ``iteration``."""

    iteration: int

    def holds(self, log: RunLog, since: Moment) -> bool:
        """See :class:`Condition`."""
        del since
        return log.last_iteration >= self.iteration

    def describe(self) -> str:
        """See :class:`Condition`."""
        return f"iteration {self.iteration} is committed"


@dataclass(frozen=True, slots=True)
class IterationsPassed:
    """The job committed ``count`` more iterations."""

    count: int

    def holds(self, log: RunLog, since: Moment) -> bool:
        """See :class:`Condition`."""
        return log.last_iteration >= since.iteration + self.count

    def describe(self) -> str:
        """See :class:`Condition`."""
        return f"{self.count} more iterations"


@dataclass(frozen=True, slots=True)
class VerdictGiven:
    """A verdict of a kind about a rank, decided after the step began."""

    kind: VerdictKind
    rank: int

    def holds(self, log: RunLog, since: Moment) -> bool:
        """See :class:`Condition`."""
        return any(
            verdict.kind == self.kind and verdict.names(self.rank) and verdict.decided_at >= since.at
            for verdict in log.verdicts
        )

    def describe(self) -> str:
        """See :class:`Condition`."""
        return f"a verdict that rank {self.rank} is {self.kind.value.replace('_', ' ')}"


@dataclass(frozen=True, slots=True)
class PlanReached:
    """A plan proposed after the step began reached a state."""

    state: PlanState

    def holds(self, log: RunLog, since: Moment) -> bool:
        """See :class:`Condition`."""
        return any(plan.state == self.state and plan.epoch > since.epoch for plan in log.plans)

    def describe(self) -> str:
        """See :class:`Condition`."""
        return f"a plan that is {self.state.value}"


@dataclass(frozen=True, slots=True)
class IterationsUnderNewEpoch:
    """``count`` iterations were committed under an epoch that began after the step."""

    count: int

    def holds(self, log: RunLog, since: Moment) -> bool:
        """See :class:`Condition`."""
        newest = range(log.last_iteration, max(log.last_iteration - self.count, -1), -1)
        return len(newest) == self.count and all(
            any(sample.epoch > since.epoch for sample in log.samples_of(iteration)) for iteration in newest
        )

    def describe(self) -> str:
        """See :class:`Condition`."""
        return f"{self.count} iterations under a new layout"


@dataclass(frozen=True, slots=True)
class ShapeReached:
    """The newest iteration but one was committed by exactly these many ranks: late samples do not matter."""

    num_ranks: int

    def holds(self, log: RunLog, since: Moment) -> bool:
        """See :class:`Condition`."""
        iteration = log.last_iteration - 1
        if iteration <= since.iteration:
            return False
        samples = log.samples_of(iteration)
        epoch = max((sample.epoch for sample in samples), default=-1)
        return len({sample.rank for sample in samples if sample.epoch == epoch}) == self.num_ranks

    def describe(self) -> str:
        """See :class:`Condition`."""
        return f"{self.num_ranks} ranks train"


@dataclass(frozen=True, slots=True)
class DetectorCaughtUp:
    """The detector published a profile of an iteration after the step began: it is back and has caught up."""

    def holds(self, log: RunLog, since: Moment) -> bool:
        """See :class:`Condition`."""
        return any(profile.iteration > since.iteration for profile in reversed(log.profiles))

    def describe(self) -> str:
        """See :class:`Condition`."""
        return "the detector has caught up"
