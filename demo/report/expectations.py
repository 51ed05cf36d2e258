"""Did the closed loop keep its promises? Each expectation is held or not held, and says why. Pure."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from evenkeel.demo.observed.observations import HistoryFacts, Observations
from evenkeel.demo.observed.run_log import VerdictSeen
from evenkeel.demo.observed.timeline import CommittedIteration, relative_throughput
from evenkeel.demo.observed.truths import TruthKind
from evenkeel.demo.report.summary import (
    NUM_BEFORE,
    VERDICT_OF,
    Phase,
    during_iterations,
    false_verdicts,
    held_up_verdicts,
    loss_differences,
    phases_of,
    samples_lost,
    samples_repeated,
)
from evenkeel.history.vocabulary import PlanState

LOSS_TOLERANCE = 1e-5
SERVICE_SLACK = 1.25
"""While a service is down, the median iteration may take so many times its usual time before training 'noticed'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One promise: its name, whether it held, and the figures that say so.

    Attributes:
        iterations: Whose speed it is about: it can only be asked where devices were as fast in them as they are said to
            be. None where it has nothing to do with speed.
    """

    name: str
    held: bool
    detail: str
    iterations: range | None = None


def expectations_of(seen: Observations) -> tuple[Expectation, ...]:
    """Every expectation of the demo, in the order of the scenario."""
    groups: tuple[Callable[[Observations], Iterator[Expectation]], ...] = (
        _script,
        _quiet_while_healthy,
        _verdicts,
        _plans,
        _death,
        _rejoin,
        _killed_services,
        _samples,
        _loss,
        _history,
    )
    return tuple(expectation for group in groups for expectation in group(seen))


def _script(seen: Observations) -> Iterator[Expectation]:
    ends = [outcome.began.iteration for outcome in seen.outcomes[1:]] + [seen.log.last_iteration]
    for outcome, end in zip(seen.outcomes, ends, strict=False):
        seconds = outcome.ended_at - outcome.began.at
        yield Expectation(
            name=f"scenario: {outcome.step.title}",
            held=not outcome.missing,
            detail=f"not seen within {outcome.step.timeout_seconds:.0f} s: {'; '.join(outcome.missing)}"
            if outcome.missing
            else f"seen after {seconds:.1f} s",
            iterations=_from_before(outcome.began.iteration, end),
        )


def _quiet_while_healthy(seen: Observations) -> Iterator[Expectation]:
    until = seen.first_disturbance_at
    verdicts = [verdict for verdict in seen.log.verdicts if verdict.decided_at < until]
    early = [verdict for verdict in verdicts if verdict not in held_up_verdicts(seen)]
    plans = {plan.plan_id for plan in seen.log.plans if plan.at < until}
    lengths = seen.long_documents
    yield Expectation(
        name="long documents are workload: no verdict and no plan while everybody is healthy",
        # A plan for a device that this machine held up is in order.
        held=not early and (bool(verdicts) or not plans) and all(k <= seen.log.last_iteration for k in lengths[-1:]),
        detail=f"{len(verdicts)} verdicts, {len(plans)} plans before the first failure; "
        f"long documents in iterations {lengths.start} to {lengths.stop - 1}",
        iterations=_judged_in(early),
    )
    wrong = false_verdicts(seen)
    yield Expectation(
        name="no verdict accuses a healthy rank or names the wrong failure",
        held=not wrong,
        detail="; ".join(
            f"{verdict.kind.value} of ranks {[culprit.rank for culprit in verdict.culprits]} at iteration "
            f"{verdict.decided_iteration}"
            for verdict in wrong
        )
        or f"{len(seen.log.verdicts)} verdicts, all true",
        iterations=_judged_in(wrong),
    )


def _verdicts(seen: Observations) -> Iterator[Expectation]:
    for phase in phases_of(seen):
        truth = phase.truth
        if truth.kind not in VERDICT_OF or truth.rank is None:
            continue
        first = phase.verdicts[0] if phase.verdicts else None
        name = f"{truth.kind.value.replace('_', ' ')} of rank {truth.rank} is found and attributed"
        if first is None:
            detail = "no such verdict before the next event"
            yield Expectation(name=name, held=False, detail=detail, iterations=_paced(seen, phase))
            continue
        found = [culprit.rank for culprit in first.culprits]
        yield Expectation(
            name=name,
            held=found == [truth.rank],
            detail=f"culprits {found}, {first.decided_at - truth.at:.2f} s after it happened",
            iterations=_paced(seen, phase),
        )
        if truth.kind is TruthKind.COMPUTE_SLOW and truth.throughput:
            about = [verdict.throughput for verdict in phase.verdicts if verdict.names(truth.rank)]
            severity = about[-1] if about else math.nan
            error = abs(severity - truth.throughput) / truth.throughput
            yield Expectation(
                name=f"severity of rank {truth.rank} is within {seen.severity_tolerance:.0%} of the truth",
                held=error <= seen.severity_tolerance,
                detail=f"found {severity:.3f}, true {truth.throughput:.3f}: off by {error:.1%}",
                iterations=_paced(seen, phase),
            )


def _plans(seen: Observations) -> Iterator[Expectation]:
    suffered: float | None = None
    for phase in phases_of(seen):
        if phase.truth.kind not in VERDICT_OF:
            continue
        what = f"{phase.truth.kind.value.replace('_', ' ')} of rank {phase.truth.rank}"
        applied = phase.plan is not None and phase.plan.state in {PlanState.APPLIED, PlanState.MEASURED}
        yield Expectation(
            name=f"{what} is answered by a plan that every rank runs",
            held=applied and bool(phase.after),
            detail=f"plan {phase.plan.plan_id} is {phase.plan.state.value}" if phase.plan else "no plan was made",
            iterations=_paced(seen, phase),
        )
        if not applied:
            continue
        if phase.truth.kind is TruthKind.COMPUTE_SLOW:
            suffered = _throughput(seen, during_iterations(phase))
        after = _throughput(seen, phase.after[1:])
        if phase.truth.kind in {TruthKind.COMPUTE_SLOW, TruthKind.RECOVERED}:
            # A recovered device leaves little to win back: what counts is that the job is not as slow as it was.
            yield Expectation(
                name=f"faster under the plan for {what} than under the failure",
                held=suffered is not None and after is not None and after > suffered,
                detail=f"throughput relative to healthy: {_percent(suffered)} under it, {_percent(after)} after",
                iterations=_paced(seen, phase),
            )


def _death(seen: Observations) -> Iterator[Expectation]:
    killed = {(truth.rank, truth.incarnation) for truth in seen.truths if truth.kind is TruthKind.FAIL_STOP}
    died = {(event.rank, event.incarnation) for event in seen.log.processes if event.kind == "died"}
    replaced = {rank for rank, _ in killed}
    restarted = sorted(
        {
            sample.rank
            for _, samples in seen.log.iterations()
            for sample in samples
            if sample.incarnation > 0 and sample.rank not in replaced
        }
    )
    yield Expectation(
        name="the survivors go on in place: no process but the killed one ends or restarts",
        held=bool(killed) and died <= killed and not restarted,
        detail=f"killed {sorted(killed, key=str)}, died {sorted(died)}, restarted {restarted}",
    )


def _rejoin(seen: Observations) -> Iterator[Expectation]:
    for phase in phases_of(seen):
        if phase.truth.kind is not TruthKind.REJOINED:
            continue
        ranks = len(phase.after[-1].ranks) if phase.after else 0
        yield Expectation(
            name=f"full shape after rank {phase.truth.rank} rejoined",
            held=ranks == seen.num_ranks,
            detail=f"{ranks} of {seen.num_ranks} ranks train",
            iterations=_paced(seen, phase),
        )
        held_up = held_up_iterations(seen, phase)
        yield Expectation(
            name="the survivors were held up by at most one iteration at the rejoin",
            held=held_up is not None and held_up <= 1.0,
            detail="the switch was not seen" if held_up is None else f"held up by {held_up:.2f} iterations",
            iterations=_paced(seen, phase),
        )


def held_up_iterations(seen: Observations, phase: Phase) -> float | None:
    """Iterations' worth of time that a BOUNDARY switch cost the ranks that were already there.

    The time from the last commit before the event to the first commit under the new layout, against the time that the
    same micro-batches took at the pace before; None when either is missing.
    """
    pace = seen.pace
    slowness = [entry.seconds / pace.expected_seconds(entry) for entry in phase.before if entry.seconds and pace]
    if pace is None or not slowness or not phase.after:
        return None
    switch = [*phase.during, phase.after[0]]
    taken = switch[-1].committed_at - phase.before[-1].committed_at
    expected = sum(pace.expected_seconds(entry) for entry in switch) * median(slowness)
    return (taken - expected) / expected * len(switch)


def _killed_services(seen: Observations) -> Iterator[Expectation]:
    for phase in phases_of(seen):
        if phase.truth.kind not in {TruthKind.DETECTOR_KILLED, TruthKind.SCHEDULER_KILLED}:
            continue
        name = phase.truth.kind.value.removesuffix("_killed")
        before, during = _throughput(seen, phase.before), _throughput(seen, phase.during)
        yield Expectation(
            name=f"training does not notice that the {name} was killed",
            held=before is not None and during is not None and during * SERVICE_SLACK >= before and not phase.after,
            detail=f"throughput relative to healthy: {_percent(before)} before, {_percent(during)} while it was away; "
            f"{len(phase.after)} iterations under another layout",
            iterations=_paced(seen, phase),
        )


def _samples(seen: Observations) -> Iterator[Expectation]:
    lost, repeated = samples_lost(seen), samples_repeated(seen)
    yield Expectation(
        name="no sample is lost or repeated",
        held=lost == 0 and repeated == 0 and bool(seen.iterations),
        detail=f"{lost} lost, {repeated} repeated of {len(seen.iterations) * seen.num_micro_batches} micro-batches",
    )


def _loss(seen: Observations) -> Iterator[Expectation]:
    differences = loss_differences(seen)
    worst_at, worst = max(differences, key=lambda pair: pair[1], default=(-1, math.nan))
    missing = len(seen.iterations) - len(differences)
    yield Expectation(
        name=f"the loss is that of the failure-free run within {LOSS_TOLERANCE:g}, every iteration",
        held=missing == 0 and worst < LOSS_TOLERANCE,
        detail=f"largest relative difference {worst:.2e} at iteration {worst_at}; {missing} iterations not compared"
        if differences
        else f"the failure-free run computed none of {missing} iterations in time: this machine is too busy",
    )
    losses = [entry.loss for entry in seen.iterations if entry.loss is not None]
    first, last = (fmean(losses[:10]), fmean(losses[-10:])) if losses else (math.nan, math.nan)
    yield Expectation(
        name="the loss falls",
        held=last < first,
        detail=f"mean of the first ten iterations {first:.3f}, of the last ten {last:.3f}",
    )


def _history(seen: Observations) -> Iterator[Expectation]:
    facts = seen.history
    if facts is None:
        yield Expectation(name="the history can be read back by SQL", held=False, detail="PostgreSQL did not answer")
        return
    verdicts, plans = seen.log.decided(facts.until)
    yield Expectation(
        name="verdicts in SQL are those on Kafka",
        held=verdicts == facts.verdict_ids,
        detail=f"{len(verdicts)} on Kafka, {len(facts.verdict_ids)} in SQL, "
        f"{len(verdicts ^ facts.verdict_ids)} in only one of them",
    )
    yield Expectation(
        name="plans in SQL are those on Kafka, in every state",
        held=plans == facts.plan_states,
        detail=f"{len(plans)} on Kafka, {len(facts.plan_states)} in SQL, {len(plans ^ facts.plan_states)} in only one",
    )
    holes = _iterations_without_rollup(seen, facts)
    yield Expectation(
        name="no hole in the history: every iteration of every rank is in a rollup",
        held=not holes and bool(seen.iterations),
        detail=f"{len(seen.iterations)} iterations, {len(facts.rollups)} rollups, missing in: {holes[:10] or 'none'}",
    )


def _iterations_without_rollup(seen: Observations, facts: HistoryFacts) -> list[int]:
    """Iterations whose samples were on Kafka and of which SQL counts fewer."""
    unseen = Counter(
        (sample.rank, sample.incarnation, sample.epoch, sample.iteration)
        for entry in seen.iterations
        for sample in seen.log.samples_of(entry.iteration)
    )
    for rollup in facts.rollups:
        process = (rollup.rank, rollup.incarnation, rollup.epoch)
        inside = [
            (*process, iteration)
            for iteration in range(rollup.first_iteration, rollup.stop_iteration)
            if (*process, iteration) in unseen
        ]
        for key in inside[: rollup.num_iterations]:
            del unseen[key]
    return sorted({iteration for _, _, _, iteration in unseen})


def _paced(seen: Observations, phase: Phase) -> range:
    """The iterations that a phase is judged by: it is compared with what was before."""
    last = max((entry.iteration for entry in (*phase.during, *phase.after)), default=seen.log.last_iteration)
    return _from_before(phase.truth.iteration, last)


def _from_before(iteration: int, last: int) -> range:
    return range(max(iteration - NUM_BEFORE, 0), last + 1)


def _judged_in(verdicts: Sequence[VerdictSeen]) -> range:
    """The iterations that verdicts were made from, and some before them; none of none."""
    if not verdicts:
        return range(0)
    first = min(verdict.first_iteration for verdict in verdicts)
    return _from_before(first, max(verdict.decided_iteration for verdict in verdicts))


def _throughput(seen: Observations, iterations: Iterable[CommittedIteration]) -> float | None:
    values = [value for entry in iterations if (value := relative_throughput(entry, seen.pace)) is not None]
    return median(values) if values else None


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"
