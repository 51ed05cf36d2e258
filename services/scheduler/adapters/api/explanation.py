"""A plan's story in words, from what the history knows of it: pure."""

from evenkeel.history.records import AlternativeRecord, IncidentState, PlanStatus
from evenkeel.history.vocabulary import PlanMode, PlanState, VerdictKind

_MAX_ALTERNATIVES = 5


def explain_plan(status: PlanStatus, incident: IncidentState | None) -> str:
    """One paragraph: what went wrong, what was decided and why, what it beat, what came of it.

    Args:
        status: The plan with its newest state.
        incident: The incident it answers, if there is one.
    """
    sentences = [_cause(incident)] if incident is not None else []
    sentences += [_decision(status), _promise(status), _bound(status), _alternatives(status), _outcome(status)]
    if incident is not None and incident.lost_seconds > 0:
        resolved = "so far" if incident.resolved_at is None else "in all"
        sentences.append(f"The incident has cost {incident.lost_seconds:.1f} s of training {resolved}.")
    return " ".join(sentence for sentence in sentences if sentence)


def _cause(incident: IncidentState) -> str:
    who = ", ".join(f"rank {one.rank} ({one.device} of {one.node})" for one in incident.culprits) or "the job"
    verb = "are" if len(incident.culprits) > 1 else "is"
    finding = {
        VerdictKind.FAIL_STOP: f"{who} {verb} dead",
        VerdictKind.PROGRAM_ERROR: f"{who} {verb} gone by an error of the program, and no device is at fault",
        VerdictKind.HANG: f"{who} {verb} stuck while others wait",
        VerdictKind.COMPUTE_SLOW: f"{who} {verb} computing at {incident.throughput:.2f} of healthy speed",
        VerdictKind.COMMUNICATION_SLOW: f"{who} {verb} communicating at {incident.throughput:.2f} of healthy speed",
    }
    words = {str(kind): text for kind, text in finding.items()}
    text = words.get(incident.kind, f"{who}: {incident.kind.replace('_', ' ')}")
    return f"Since iteration {incident.first_iteration} {text} (incident {incident.incident_id})."


def _decision(status: PlanStatus) -> str:
    plan = status.plan
    how = "at an iteration boundary" if plan.mode is PlanMode.BOUNDARY else "by recovering among the survivors"
    verb = "would lead" if status.state is PlanState.ADVISED else "leads"
    text = f"Plan {plan.plan_id} {verb} job {plan.job_id} to epoch {plan.epoch} {how}"
    if plan.actions:
        actions = "; ".join(
            f"{action.lever}: {action.description}"
            + (f" (saves {action.gain_seconds:.3f} s per iteration)" if action.gain_seconds > 0 else "")
            for action in plan.actions
        )
        text += f" by {actions}"
    reason = plan.reason.strip().rstrip(".")
    return f"{text}. Why: {reason}." if reason else f"{text}."


def _promise(status: PlanStatus) -> str:
    plan = status.plan
    if plan.predicted_seconds <= 0:
        return "Nothing was predicted: too little was known of the job's speed."
    text = f"Predicted: {plan.predicted_seconds:.3f} s per iteration"
    gain_seconds = plan.idle_seconds - plan.predicted_seconds
    if plan.idle_seconds > 0:
        text += f" instead of {plan.idle_seconds:.3f} s"
    elif plan.mode is PlanMode.RECOVER:
        text += ", where doing nothing would have stopped the job"
    text += f", for {plan.cost_seconds:.2f} s of training"
    if plan.idle_seconds > 0 and gain_seconds > 0:
        iterations = plan.cost_seconds / gain_seconds
        text += f", won back after {iterations:.0f} iterations" if iterations >= 1.5 else ", won back at once"
    return text + "."


def _bound(status: PlanStatus) -> str:
    bound = status.plan.proportional_bound
    return f"No plan can do better than {bound:.1%} of the healthy speed with these devices." if bound > 0 else ""


def _alternatives(status: PlanStatus) -> str:
    plan = status.plan
    solved = f"solved in {1000 * plan.solve_seconds:.1f} ms"
    if not plan.alternatives:
        return f"There was no other layout to choose from ({solved})."
    shown = "; ".join(_alternative(other) for other in plan.alternatives[:_MAX_ALTERNATIVES])
    rest = len(plan.alternatives) - _MAX_ALTERNATIVES
    more = f"; and {rest} more" if rest > 0 else ""
    return f"It beat {shown}{more} ({solved})."


def _alternative(other: AlternativeRecord) -> str:
    speed = f" at {other.predicted_seconds:.3f} s" if other.predicted_seconds > 0 else ""
    return f"{other.name}{speed} ({other.reason.strip().rstrip('.')})"


def _outcome(status: PlanStatus) -> str:
    since = "" if status.first_iteration is None else f" since iteration {status.first_iteration}"
    match status.state:
        case PlanState.PROPOSED:
            return "It is proposed; not every rank has accepted it yet."
        case PlanState.COMMITTED:
            return "It is decided; the ranks are changing over."
        case PlanState.APPLIED:
            return f"Every rank runs it{since}; its effect is not measured yet."
        case PlanState.ABORTED:
            detail = status.detail.strip().rstrip(".")
            when = "before any rank changed" if status.decision is None else "after it was decided"
            return f"It was given up {when}" + (f": {detail}." if detail else ".")
        case PlanState.ADVISED:
            return f"No rank was told of it, it is advice: {status.detail.strip().rstrip('.')}."
        case PlanState.MEASURED:
            return _measured(status, since)


def _measured(status: PlanStatus, since: str) -> str:
    measured = status.measured_seconds or 0.0
    predicted = status.plan.predicted_seconds
    text = f"Measured{since}: {measured:.3f} s per iteration"
    if predicted <= 0:
        return text + "."
    error = measured / predicted - 1
    if abs(error) < 0.0005:
        return text + ", as predicted."
    return f"{text}, {abs(error):.1%} {'slower' if error > 0 else 'faster'} than predicted."
