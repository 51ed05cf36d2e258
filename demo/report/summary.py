"""summary.json: what happened, in figures with stable keys. Pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evenkeel.demo.observed.lateness import is_true_of_the_machine
from evenkeel.demo.observed.observations import Observations
from evenkeel.demo.observed.run_log import PlanSeen, VerdictSeen
from evenkeel.demo.observed.timeline import CommittedIteration, median_seconds
from evenkeel.demo.observed.truths import Truth, TruthKind
from evenkeel.history.vocabulary import PlanState, VerdictKind

VERDICT_OF = {
    TruthKind.COMPUTE_SLOW: VerdictKind.COMPUTE_SLOW,
    TruthKind.RECOVERED: VerdictKind.RECOVERED,
    TruthKind.FAIL_STOP: VerdictKind.FAIL_STOP,
    TruthKind.REJOINED: VerdictKind.REJOINED,
}
"""The verdict that each kind of truth must lead to; the others must lead to none."""
WORKLOAD_KINDS = frozenset({VerdictKind.STAGE_IMBALANCE, VerdictKind.SEQUENCE_IMBALANCE, VerdictKind.JITTER})
"""Verdicts that accuse nobody."""
AFTERMATH_SECONDS = 3.0
"""A verdict decided so soon after its truth ended may still be about it: evidence takes a moment to arrive."""
NUM_BEFORE = 10
"""Iterations before an event that its 'before' figure is taken from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of summary.json. None where a figure does not exist, for example the culprit of a killed service.

    Attributes:
        kind: A :class:`~evenkeel.demo.observed.truths.TruthKind`.
        injected_at: Unix seconds.
        iteration: Iteration in progress at that time.
        culprit_true: Rank it was done to.
        culprit_found: Rank named by the first verdict of the right kind.
        severity_true: The device's true throughput from then on: 1.0 = healthy, 0 = dead.
        severity_found: The throughput in the newest verdict of that kind about the culprit found.
        seconds_to_verdict: Injection to the first verdict's decision.
        iterations_to_verdict: From the iteration in progress at the injection to the one the verdict was decided at.
        seconds_to_resume: Injection to the next committed optimizer step; of a killed rank: to the next one under a
            layout without it.
        iteration_seconds_before: Median of the last iterations before the injection.
        iteration_seconds_during: Median of the iterations between the injection and the plan's first; where there is
            none between them, the one that contains the switch.
        iteration_seconds_after: Median of the iterations under the plan, up to the next event.
        plan_predicted_seconds: Seconds per iteration that the plan promised.
        proportional_bound: Sum of live throughputs over the number of devices, as the plan states it.
        plan_id: The plan that answered it.
    """

    kind: str
    injected_at: float
    iteration: int
    culprit_true: int | None
    culprit_found: int | None
    severity_true: float | None
    severity_found: float | None
    seconds_to_verdict: float | None
    iterations_to_verdict: int | None
    seconds_to_resume: float | None
    iteration_seconds_before: float | None
    iteration_seconds_during: float | None
    iteration_seconds_after: float | None
    plan_predicted_seconds: float | None
    proportional_bound: float | None
    plan_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The content of summary.json.

    Attributes:
        loss_max_relative_difference: Largest relative difference of any iteration's loss from the failure-free run's;
            None when no iteration can be compared.
        samples_lost: Micro-batches of committed iterations that no replica used.
        samples_repeated: Uses of a micro-batch beyond the first.
        false_verdicts: Verdicts that accuse a healthy rank or say the wrong thing about a sick one.
        events: Everything that was done, in order of time.
    """

    loss_max_relative_difference: float | None
    samples_lost: int
    samples_repeated: int
    false_verdicts: int
    events: tuple[Event, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain dicts and lists, ready for ``json.dumps``."""
        return {**asdict(self), "events": [asdict(event) for event in self.events]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One truth with what followed it until the next one.

    Attributes:
        before: Up to ``NUM_BEFORE`` iterations committed before it under the same epoch.
        during: Iterations committed after it under the old epoch.
        after: Iterations committed under a newer epoch before the next truth.
        verdicts: Verdicts of the right kind decided in the phase.
        plan: The plan that answered it: the last one applied in the phase, else the last one proposed.
    """

    truth: Truth
    ends_at: float
    before: tuple[CommittedIteration, ...]
    during: tuple[CommittedIteration, ...]
    after: tuple[CommittedIteration, ...]
    verdicts: tuple[VerdictSeen, ...]
    plan: PlanSeen | None


def phases_of(seen: Observations) -> tuple[Phase, ...]:
    """Cut the run at its truths."""
    ends = [truth.at for truth in seen.truths[1:]] + [float("inf")]
    return tuple(_phase(seen, truth, ends_at) for truth, ends_at in zip(seen.truths, ends, strict=False))


def _phase(seen: Observations, truth: Truth, ends_at: float) -> Phase:
    before = [entry for entry in seen.iterations if entry.committed_at <= truth.at and entry.epoch == truth.epoch]
    later = [entry for entry in seen.iterations if truth.at < entry.committed_at < ends_at]
    plans = [
        plan for plan in seen.log.plans_newest() if plan.epoch > truth.epoch and _proposed_at(seen, plan) < ends_at
    ]
    applied = [plan for plan in plans if plan.state in {PlanState.APPLIED, PlanState.MEASURED}]
    kind = VERDICT_OF.get(truth.kind)
    return Phase(
        truth=truth,
        ends_at=ends_at,
        before=tuple(before[-NUM_BEFORE:]),
        during=tuple(entry for entry in later if entry.epoch <= truth.epoch),
        after=tuple(entry for entry in later if entry.epoch > truth.epoch),
        verdicts=tuple(
            verdict
            for verdict in seen.log.verdicts
            if verdict.kind == kind and truth.at <= verdict.decided_at < ends_at
        ),
        plan=next(iter([*applied[-1:], *plans[-1:]]), None) if kind else None,
    )


def _proposed_at(seen: Observations, plan: PlanSeen) -> float:
    return min(state.at for state in seen.log.states_of(plan.plan_id).values())


def event_of(phase: Phase) -> Event:
    """The figures of one phase."""
    truth, plan = phase.truth, phase.plan
    first = phase.verdicts[0] if phase.verdicts else None
    culprit = first.culprits[0].rank if first and first.culprits else None
    newest = next(
        (verdict for verdict in reversed(phase.verdicts) if culprit is not None and verdict.names(culprit)), None
    )
    resumed = resuming_iteration(phase)
    return Event(
        kind=truth.kind.value,
        injected_at=truth.at,
        iteration=truth.iteration,
        culprit_true=truth.rank,
        culprit_found=culprit,
        severity_true=truth.throughput,
        severity_found=newest.throughput if newest else None,
        seconds_to_verdict=first.decided_at - truth.at if first else None,
        iterations_to_verdict=max(first.decided_iteration - truth.iteration, 0) if first else None,
        seconds_to_resume=resumed.committed_at - truth.at if resumed else None,
        iteration_seconds_before=median_seconds(phase.before),
        iteration_seconds_during=median_seconds(during_iterations(phase)),
        iteration_seconds_after=median_seconds(phase.after[1:]),
        plan_predicted_seconds=plan.predicted_seconds if plan else None,
        proportional_bound=plan.proportional_bound if plan else None,
        plan_id=plan.plan_id if plan else None,
    )


def resuming_iteration(phase: Phase) -> CommittedIteration | None:
    """The first step committed after the event; after a death, the first under a layout that does without the dead."""
    if phase.truth.kind is TruthKind.FAIL_STOP:
        return phase.after[0] if phase.after else None
    return next(iter([*phase.during, *phase.after]), None)


def during_iterations(phase: Phase) -> Sequence[CommittedIteration]:
    """Iterations that ran wholly under the event and without an answer, else the one that contains the switch.

    The iteration in progress at the injection saw only a part of it and is left out where there are others.
    """
    return phase.during[1:] or phase.during or phase.after[:1]


def false_verdicts(seen: Observations) -> tuple[VerdictSeen, ...]:
    """Verdicts that no truth explains: a healthy rank accused, or the wrong thing said about a sick one."""
    held_up = held_up_verdicts(seen)
    return tuple(
        verdict
        for verdict in seen.log.verdicts
        if verdict.kind not in WORKLOAD_KINDS
        and verdict not in held_up
        and not (verdict.culprits and all(_explained(seen, verdict, culprit.rank) for culprit in verdict.culprits))
    )


def held_up_verdicts(seen: Observations) -> tuple[VerdictSeen, ...]:
    """Verdicts about devices that nobody slowed down but this machine held up: slow, and recovered afterwards."""
    found: list[VerdictSeen] = []
    ranks: set[int] = set()
    for verdict in sorted(seen.log.verdicts, key=lambda verdict: verdict.decided_at):
        culprits = {culprit.rank for culprit in verdict.culprits}
        if not culprits or all(_explained(seen, verdict, rank) for rank in culprits):
            continue
        if verdict.kind is VerdictKind.COMPUTE_SLOW and is_true_of_the_machine(seen, verdict):
            found.append(verdict)
            ranks |= culprits
        elif verdict.kind is VerdictKind.RECOVERED and culprits <= ranks:
            found.append(verdict)
    return tuple(found)


def _explained(seen: Observations, verdict: VerdictSeen, rank: int) -> bool:
    about = [truth for truth in seen.truths if truth.rank == rank]
    ends = [truth.at for truth in about[1:]] + [float("inf")]
    return any(
        VERDICT_OF.get(truth.kind) == verdict.kind and truth.at <= verdict.decided_at < ends_at + AFTERMATH_SECONDS
        for truth, ends_at in zip(about, ends, strict=False)
    )


def samples_lost(seen: Observations) -> int:
    """Micro-batches that no replica used in an iteration's final epoch; an iteration never seen counts whole."""
    by_number = {entry.iteration: entry for entry in seen.iterations}
    last = max(by_number, default=-1)
    return sum(
        seen.num_micro_batches - sum(index in by_number[k].uses for index in range(seen.num_micro_batches))
        if k in by_number
        else seen.num_micro_batches
        for k in range(last + 1)
    )


def samples_repeated(seen: Observations) -> int:
    """Uses beyond the first: by a second replica, or by an iteration that one process finished under two epochs."""
    by_replicas = sum(count - 1 for entry in seen.iterations for count in entry.uses.values())
    by_epochs = 0
    for _, samples in seen.log.iterations():
        finished: set[tuple[int, int]] = set()
        twice: set[int] = set()
        for sample in samples:
            process = (sample.rank, sample.incarnation)
            if process in finished:
                twice.update(batch.index for batch in sample.micro_batches)
            finished.add(process)
        by_epochs += len(twice)
    return by_replicas + by_epochs


def loss_differences(seen: Observations) -> tuple[tuple[int, float], ...]:
    """(iteration, relative difference from the failure-free run) of every iteration that both have."""
    return tuple(
        (entry.iteration, abs(entry.loss - expected) / abs(expected))
        for entry in seen.iterations
        if entry.loss is not None and entry.iteration < len(seen.reference_losses)
        for expected in [seen.reference_losses[entry.iteration]]
    )


def summarise(seen: Observations) -> Summary:
    """The figures of a finished run."""
    return Summary(
        loss_max_relative_difference=max((difference for _, difference in loss_differences(seen)), default=None),
        samples_lost=samples_lost(seen),
        samples_repeated=samples_repeated(seen),
        false_verdicts=len(false_verdicts(seen)),
        events=tuple(event_of(phase) for phase in phases_of(seen)),
    )
