"""What holds for all jobs: when a plan pays, what transitions cost, and how long things are waited for."""

from dataclasses import dataclass, field

from evenkeel.planning.costs.price import TransitionCosts
from evenkeel.services.scheduler.plans.decision import DecisionRule


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rules:
    """What holds for all jobs; all times in seconds.

    Attributes:
        rule: When a plan pays.
        transition: What transitions cost.
        second_look_seconds: After a layout was kept with somebody ill, until that is weighed again; each time longer.
        registration_seconds: How long a recovery waits for ranks that have not registered yet; they are coming up.
        profile_seconds: How long anything but a recovery waits for a job's first profile: after a restart it is on its
            way, and without it only the ratios of predictions mean anything.
        ended_seconds: After all processes of a job that nobody can reshape are done, until the job counts as finished.
        start_deadline_seconds: How long the first of a job's processes may take to register; then it is stuck.
        verdict_seconds: How long a verdict on a process may take whose stream broke; an idle machine needs a tenth of
            that, a busy one sometimes half of it.
        unheard_seconds: How long nothing may be heard of a job whose processes all do not answer; then it is stuck.
        standstill_seconds: How long ranks may be parked with nobody gone; a death that made them park is told within
            half of that.
    """

    rule: DecisionRule = field(default_factory=DecisionRule)
    transition: TransitionCosts = field(default_factory=TransitionCosts)
    second_look_seconds: float = 30.0
    registration_seconds: float = 30.0
    profile_seconds: float = 15.0
    ended_seconds: float = 60.0
    start_deadline_seconds: float = 120.0
    verdict_seconds: float = 1.5
    unheard_seconds: float = 60.0
    standstill_seconds: float = 3.0
