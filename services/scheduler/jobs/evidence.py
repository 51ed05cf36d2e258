"""What the ranks themselves show: a death that nobody tells, ranks that stand still, the end of all processes.

Who is ill is the detector's to say, and it says so of a dead process within a tenth of a second. But survivors stand
still until there is a plan. So when a process's stream broke, its controller does not answer, others of its epoch have
parked, and no verdict has come for a while, that is taken for the verdict: with the detector's id, so that nothing is
counted twice when the detector is heard again.

Ranks that are parked though all are alive have lost a connection between two of them. Nobody will be accused, and
without a plan they would stand there for ever: one is made, mostly for the layout that they have.

A job that nobody finished is over when the detector has seen all of its processes end. It is finished after a while,
unless a rank is gone or somebody answers.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from evenkeel.history.records import EvidenceRecord, VerdictRecord
from evenkeel.history.vocabulary import PlanMode, VerdictKind
from evenkeel.layouts.rank_state import RankPhase, RankState
from evenkeel.services.scheduler.domain.exits import own_verdict
from evenkeel.services.scheduler.domain.job_state import JobKnowledge
from evenkeel.services.scheduler.jobs.events import Silence, StreamBroken
from evenkeel.services.scheduler.jobs.job import Process, Timer
from evenkeel.services.scheduler.jobs.steps import Ask, Step

_AGAIN_SECONDS = 0.5
_WITNESS_STATUS_SECONDS = 0.5
_STANDSTILL_STATUS_SECONDS = 1.0
_ENDED_STATUS_SECONDS = 2.0
_CONFIDENCE = 0.97

Answers = Mapping[Process, RankState | Silence]


def stream_broken(step: Step, event: StreamBroken) -> None:
    """A process's stream broke and its controller does not answer: see what becomes of it."""
    if _counts(step.known, event.process):
        step.job = replace(step.job, suspects={**step.job.suspects, event.process: event.detail})
        step.set_timer(Timer.VERDICT, step.moment.rules.verdict_seconds)


def all_ended(step: Step) -> None:
    """The detector has seen all processes end."""
    step.job, step.keep = replace(step.job, seen_to_end=True), True
    step.set_timer(Timer.ENDED, step.moment.rules.ended_seconds)


def waited(step: Step, key: Timer) -> None:
    """The time for verdicts, for a plan for parked ranks, or for somebody to go on with the job is over."""
    known = step.known
    if key is Timer.ENDED:
        if step.job.seen_to_end and not known.lost:
            step.then.append(Ask(key, _ENDED_STATUS_SECONDS))
    elif key is Timer.STANDSTILL:
        if not known.can_reshape or not _parked(step):
            return
        if _may_recover(step) and not known.lost:
            step.then.append(Ask(key, _STANDSTILL_STATUS_SECONDS, _in_layout(known)))
        else:
            step.set_timer(key, step.moment.rules.standstill_seconds)
    elif key is Timer.VERDICT:
        suspects = {one: detail for one, detail in step.job.suspects.items() if _counts(known, one)}
        step.job = replace(step.job, suspects=suspects)
        if suspects:
            step.then.append(Ask(key, _WITNESS_STATUS_SECONDS, tuple(suspects)))


def all_alive(step: Step, answers: Answers) -> bool:
    """Whether parked ranks stand still though every process of the layout in force answers, and none is done."""
    there = [process for process in _in_layout(step.known) if _is_there(answers.get(process, Silence.AWAY))]
    alive = len(there) == len(step.known.layout.ranks)
    parked = _parked(step)
    if not alive or not parked or not _may_recover(step):
        return False
    step.note("ranks are parked though nobody is gone: recovering", parked=parked)
    return True


def nobody_there(step: Step, answers: Answers) -> bool:
    """Whether the job is over: no process answers that is not done."""
    over = step.job.seen_to_end and not step.known.lost
    return over and not any(one is Silence.REFUSED or _is_there(one) for one in answers.values())


def verdicts_on(step: Step, answers: Answers) -> list[VerdictRecord]:
    """What the silence of suspects comes to, once others wait for them; who answers is a suspect no more."""
    suspects = step.job.suspects
    parked = _parked(step, beside={rank for rank, _ in suspects})
    away = [one for one in suspects if answers.get(one, Silence.AWAY) is Silence.AWAY and _counts(step.known, one)]
    gone = [one for one in away if parked and one in answers]
    step.job = replace(step.job, suspects={one: suspects[one] for one in away if one not in gone})
    if step.job.suspects:
        step.set_timer(Timer.VERDICT, _AGAIN_SECONDS)
    # What ends those of a node all at once is one incident.
    by_node: dict[str, list[Process]] = {}
    for one in sorted(gone):
        by_node.setdefault(step.known.ranks[one[0]].node, []).append(one)
    return [_verdict(step, together, suspects[together[0]], parked) for together in by_node.values()]


def _verdict(step: Step, gone: Sequence[Process], detail: str, parked: Sequence[int]) -> VerdictRecord:
    rank, incarnation = gone[0]
    text = (
        f"the scheduler saw it itself: the stream broke ({detail}), the controller does not answer, "
        f"ranks {parked} are parked, and no verdict has come"
    )
    step.note("no verdict on a process that is gone: deciding without", rank=rank, incarnation=incarnation)
    return own_verdict(
        step.known,
        VerdictKind.FAIL_STOP,
        gone,
        [EvidenceRecord(name="process", value=1.0, unit="", text=text)],
        iteration=max(step.moment.states[one].iteration for one in parked),
        at=step.moment.at,
        confidence=_CONFIDENCE,
    )


def _counts(known: JobKnowledge, process: Process) -> bool:
    info = known.ranks.get(process[0])
    return info is not None and info.incarnation == process[1] and info.alive and bool(info.address)


def _in_layout(known: JobKnowledge) -> tuple[Process, ...]:
    return tuple((rank, known.ranks[rank].incarnation) for rank in known.layout.ranks)


def _parked(step: Step, *, beside: Collection[int] = ()) -> list[int]:
    """Ranks of the layout in force that wait for a recovery, but for some."""
    states, found = step.moment.states, list[int]()
    for rank, incarnation in _in_layout(step.known):
        state = states.get(rank)
        if state is None or state.incarnation != incarnation or rank in beside:
            continue
        if state.phase is RankPhase.PARKED and state.epoch == step.known.epoch:
            found.append(rank)
    return sorted(found)


def _may_recover(step: Step) -> bool:
    flight = step.known.flight
    return not step.known.stuck and (flight is None or flight.record.mode is not PlanMode.RECOVER)


def _is_there(answer: RankState | Silence) -> bool:
    return isinstance(answer, RankState) and answer.phase is not RankPhase.FINISHED
