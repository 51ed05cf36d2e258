"""Between which plan and which a rank is, and what it answers when it does not take part in one."""

from dataclasses import dataclass, replace

from evenkeel.layouts.rank_state import Ballot
from evenkeel.trainer_sdk.control.state import ApplyMode, Commit, Reshape


class StaleBallotError(Exception):
    """This rank is promised to a greater ballot, or to another plan of the same one.

    Attributes:
        promised: Propose beyond it.
    """

    def __init__(self, promised: Ballot, message: str) -> None:
        super().__init__(message)
        self.promised = promised


class FinishedError(Exception):
    """This rank has finished: no plan can include it."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Nobody has asked for anything that is not over."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Asked about a plan that is not decided."""

    plan: Reshape


@dataclass(frozen=True, slots=True)
class Committed:
    """A plan is decided and waits to be handed over; perhaps a newer one was asked about."""

    commit: Commit
    newer: Reshape | None = None


@dataclass(frozen=True, slots=True)
class Switching:
    """The training thread moves to an epoch.

    Attributes:
        epoch: To which.
        plan_id: By which plan; empty for the job's first epoch.
        newer: What has been asked meanwhile.
        failure: Why it cannot; empty while it tries. The rank has not said yet where that leaves it.
    """

    epoch: int
    plan_id: str
    newer: Idle | Prepared | Committed = Idle()
    failure: str = ""


Standing = Idle | Prepared | Committed | Switching


def without_switch(standing: Standing) -> Idle | Prepared | Committed:
    """What has been asked beside the switch, if there is one."""
    return standing.newer if isinstance(standing, Switching) else standing


def without_asked(rest: Idle | Prepared | Committed) -> Idle | Committed:
    """What stays once the plan that was asked about last is off."""
    return replace(rest, newer=None) if isinstance(rest, Committed) else Idle()


def asked_plan(standing: Standing) -> Reshape | None:
    """The plan that was asked about last and is not decided."""
    rest = without_switch(standing)
    if isinstance(rest, Prepared):
        return rest.plan
    return rest.newer if isinstance(rest, Committed) else None


def visible_commit(standing: Standing) -> Commit | None:
    """The commit that waits, unless a recovery that is being prepared hides it."""
    rest = without_switch(standing)
    if not isinstance(rest, Committed):
        return None
    hidden = rest.newer is not None and rest.newer.mode is ApplyMode.RECOVER
    return None if hidden else rest.commit


def moving_to(standing: Standing) -> int:
    """The epoch that the training thread tries to reach; 0 = none."""
    return standing.epoch if isinstance(standing, Switching) and not standing.failure else 0


def pending_epoch(standing: Standing) -> int:
    """The epoch of the newest plan that is committed and not applied; 0 = none."""
    rest = without_switch(standing)
    return rest.commit.reshape.epoch if isinstance(rest, Committed) else moving_to(standing)
