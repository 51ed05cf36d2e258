"""Plans as the history keeps them, from what the planner and the ranks answered."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from evenkeel.history.records import ActionRecord, AlternativeRecord, PlanRecord
from evenkeel.history.vocabulary import PlanMode
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.rank_state import StandIn
from evenkeel.planning.solution import Solution
from evenkeel.services.scheduler.dispatch.protocol import Decision
from evenkeel.services.scheduler.domain.job_state import JobKnowledge


def plan_record(
    job: JobKnowledge,
    solution: Solution,
    mode: PlanMode,
    ids: tuple[str, str | None],
    why: str,
    solve_seconds: float,
    at: datetime,
) -> PlanRecord:
    """A plan that is proposed now, for the next epoch that was never used.

    Predicted seconds are 0 for a job without a profile: nothing is known of its speed.

    Args:
        job: The job.
        solution: What the solver found.
        mode: How it is to be applied.
        ids: The plan's, and that of the incident that it answers.
        why: Why it pays.
        solve_seconds: Seconds that the solver took.
        at: Now.
    """
    plan_id, incident_id = ids
    known = 1.0 if job.workload is not None else 0.0
    return PlanRecord(
        plan_id=plan_id,
        job_id=job.job_id,
        incident_id=incident_id,
        mode=mode,
        epoch=job.top_epoch + 1,
        layout=solution.layout,
        actions=tuple(
            ActionRecord(lever=a.lever, description=a.description, gain_seconds=a.gain_seconds * known)
            for a in solution.actions
        ),
        alternatives=tuple(
            AlternativeRecord(name=a.name, predicted_seconds=a.predicted_seconds * known, reason=a.reason)
            for a in solution.alternatives
        ),
        idle_seconds=solution.idle_seconds * known,
        predicted_seconds=solution.predicted_seconds * known,
        cost_seconds=solution.price.pause_seconds,
        proportional_bound=solution.proportional_bound,
        reason=f"{solution.reason} {why}",
        solve_seconds=solve_seconds,
        proposed_at=at,
        throughputs=job.usable,
    )


def decision_to_document(decision: Decision) -> dict[str, Any]:
    """All that is needed to send the same commits again after a restart; the layout is found by its epoch."""
    return {
        "from_epoch": decision.from_epoch,
        "sources": list(decision.sources),
        "steps_applied": decision.steps_applied,
        "stand_ins": [[one.owner, one.keeper] for one in decision.stand_ins],
        "from_checkpoint": decision.from_checkpoint,
    }


def decision_from_document(document: Mapping[str, Any], layouts: Mapping[int, Layout]) -> Decision:
    """The decision in a document."""
    return Decision(
        from_epoch=document["from_epoch"],
        from_layout=layouts[document["from_epoch"]],
        sources=tuple(document["sources"]),
        steps_applied=document["steps_applied"],
        stand_ins=tuple(StandIn(owner=owner, keeper=keeper) for owner, keeper in document["stand_ins"]),
        from_checkpoint=document["from_checkpoint"],
    )
