"""What the ranks themselves show: a death that nobody tells, ranks that stand still, the end of all processes.

Who is ill is the detector's to say, and it says so of a dead process within a tenth of a second. But survivors stand
still until there is a plan. So when a process's stream broke, its controller does not answer, others of its epoch have
parked, and no verdict has come for a while, that is taken for the verdict: with the detector's id, so that nothing is
counted twice when the detector is heard again.

Ranks that are parked though all are alive have lost a connection between two of them. Nobody will be accused, and
without a plan they would stand there for ever: one is made, mostly for the layout that they have.

A job that nobody finished is over when its processes are: those of a loop that cannot be reshaped say that they are
done, or the detector has seen all of them end. It is finished after a while, unless a rank is gone or somebody answers.
"""

from collections.abc import Mapping
from dataclasses import replace

from evenkeel.history.records import CulpritRecord, EvidenceRecord, VerdictRecord
from evenkeel.history.vocabulary import PlanMode, VerdictKind
from evenkeel.layouts.rank_state import RankPhase, RankState
from evenkeel.services.scheduler.domain.exits import own_verdict
from evenkeel.services.scheduler.domain.job_state import JobKnowledge
from evenkeel.services.scheduler.jobs.events import Silence, StreamBroken
from evenkeel.services.scheduler.jobs.job import Process, Timer, TimerKey
from evenkeel.services.scheduler.jobs.steps import Ask, Report, Step

_AGAIN_SECONDS = 0.5
_WITNESS_STATUS_SECONDS = 0.5
_STANDSTILL_STATUS_SECONDS = 1.0
_ENDED_STATUS_SECONDS = 2.0
_CONFIDENCE = 0.97

Answers = Mapping[Process, RankState | Silence]


def stream_broken(step: Step, event: StreamBroken) -> None:
    """A process's stream broke and its controller does not answer: report it, and see what becomes of it."""
    step.then.append(Report(event.process, event.detail))
    if _counts(step.known, event.process):
        step.job = replace(step.job, suspects={**step.job.suspects, event.process: event.detail})
        step.set_timer(event.process, step.moment.rules.verdict_seconds)


def rank_said(step: Step, state: RankState) -> None:
    """A rank is parked, or done."""
    known = step.known
    if state.phase is RankPhase.PARKED:
        step.set_timer(Timer.STANDSTILL, step.moment.rules.standstill_seconds)
    elif state.phase is RankPhase.FINISHED and not known.can_reshape:
        info = known.ranks.get(state.rank)
        if info is not None and info.incarnation == state.incarnation and not info.ended:
            step.known = known.with_rank(replace(info, ended=True))
            if step.known.all_ended:
                step.set_timer(Timer.ENDED, step.moment.rules.ended_seconds)


def all_ended(step: Step) -> None:
    """The detector has seen all processes end."""
    step.job, step.keep = replace(step.job, seen_to_end=True), True
    step.set_timer(Timer.ENDED, step.moment.rules.ended_seconds)


def waited(step: Step, key: TimerKey) -> None:
    """The time for a verdict, for a plan for parked ranks, or for somebody to go on with the job is over."""
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
    elif not isinstance(key, Timer):
        if not _counts(known, key):
            _trust(step, key)
        elif _parked(step, beside=key[0]):
            step.then.append(Ask(key, _WITNESS_STATUS_SECONDS, _suspects_beside(step, key)))
        else:
            step.set_timer(key, _AGAIN_SECONDS)


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


def verdict_on(step: Step, process: Process, answers: Answers) -> VerdictRecord | None:
    """What the silence of a suspect, and of others of its node, comes to; None where it is there or does not count."""
    known, detail = step.known, step.job.suspects.get(process)
    parked = _parked(step, beside=process[0])
    gone = [one for one in _suspects_beside(step, process) if answers.get(one) is Silence.AWAY]
    _trust(step, process)
    is_away = answers.get(process, Silence.AWAY) is Silence.AWAY
    if detail is None or not is_away or not parked or not _counts(known, process):
        return None
    rank, incarnation = process
    for one in gone:
        _trust(step, one)
    iteration = max(step.moment.states[one].iteration for one in parked)
    text = (
        f"the scheduler saw it itself: the stream broke ({detail}), the controller does not answer, "
        f"ranks {parked} are parked, and no verdict came in {step.moment.rules.verdict_seconds:g} s"
    )
    step.note("no verdict on a process that is gone: deciding without", rank=rank, incarnation=incarnation)
    culprits = [
        CulpritRecord(rank=one, incarnation=which, node=known.ranks[one].node, device=known.ranks[one].device)
        for one, which in sorted({process, *gone})
    ]
    return own_verdict(
        known,
        VerdictKind.FAIL_STOP,
        process,
        culprits,
        [EvidenceRecord(name="process", value=1.0, unit="", text=text)],
        iteration=iteration,
        at=step.moment.at,
        confidence=_CONFIDENCE,
    )


def _suspects_beside(step: Step, process: Process) -> tuple[Process, ...]:
    """A suspect, and after it those of its node: what ends them all at once is one incident."""
    known = step.known
    others = [one for one in step.job.suspects if one != process and _counts(known, one)]
    return (process, *[one for one in others if known.ranks[one[0]].node == known.ranks[process[0]].node])


def _trust(step: Step, process: Process) -> None:
    left = {one: detail for one, detail in step.job.suspects.items() if one != process}
    step.job = replace(step.job, suspects=left)


def _counts(known: JobKnowledge, process: Process) -> bool:
    info = known.ranks.get(process[0])
    return info is not None and info.incarnation == process[1] and info.alive and bool(info.address)


def _in_layout(known: JobKnowledge) -> tuple[Process, ...]:
    return tuple((rank, known.ranks[rank].incarnation) for rank in known.layout.ranks)


def _parked(step: Step, *, beside: int = -1) -> list[int]:
    """Ranks of the layout in force that wait for a recovery, but for one."""
    states, found = step.moment.states, list[int]()
    for rank, incarnation in _in_layout(step.known):
        state = states.get(rank)
        if rank == beside or state is None or state.incarnation != incarnation:
            continue
        if state.phase is RankPhase.PARKED and state.epoch == step.known.epoch:
            found.append(rank)
    return sorted(found)


def _may_recover(step: Step) -> bool:
    flight = step.known.flight
    return not step.known.stuck and (flight is None or flight.record.mode is not PlanMode.RECOVER)


def _is_there(answer: RankState | Silence) -> bool:
    return isinstance(answer, RankState) and answer.phase is not RankPhase.FINISHED
