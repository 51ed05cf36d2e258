"""What the ranks themselves show: a death that nobody tells, ranks that stand still, the end of all processes.

Who is ill is the detector's to say, and it says so of a dead process within a tenth of a second. But survivors stand
still until there is a plan. So when a process's stream broke, its controller does not answer, others of its epoch have
parked, and no verdict has come for a while, that is taken for the verdict: with the detector's id, so that nothing is
counted twice when the detector is heard again.

Ranks that are parked though all are alive have lost a connection between two of them. Nobody will be accused, and
without a plan they would stand there for ever: one is made, mostly for the layout that they have.

Where all processes are away at once nobody is accused: the way to them may be cut, and of those that died with the
services nobody can tell. After a while without a word of any the job is stuck, until somebody is heard.

A job that nobody finished is over when all of its processes are: the detector has seen them end, or those of a loop
that cannot be reshaped say so. It is finished after a while, unless a rank is gone or somebody answers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from evenkeel.contracts.topics import PROFILE_EVERY
from evenkeel.history.records import EvidenceRecord, VerdictRecord
from evenkeel.history.vocabulary import VerdictKind
from evenkeel.layouts.rank_state import RankPhase, RankState
from evenkeel.services.scheduler.domain.exits import own_verdict
from evenkeel.services.scheduler.domain.job_state import JobKnowledge, PlanNeed
from evenkeel.services.scheduler.domain.stuck import StuckReason
from evenkeel.services.scheduler.jobs import flights
from evenkeel.services.scheduler.jobs.events import Silence, StreamBroken
from evenkeel.services.scheduler.jobs.job import Process, Suspect, Timer
from evenkeel.services.scheduler.jobs.steps import Ask, Step

_AGAIN_SECONDS = 0.5
_UNHEARD_AGAIN_SECONDS = 5.0
_WITNESS_STATUS_SECONDS = 0.5
_STANDSTILL_STATUS_SECONDS = 1.0
_ENDED_STATUS_SECONDS = 2.0
_CONFIDENCE = 0.97

Answers = Mapping[Process, RankState | Silence]


def stream_broken(step: Step, event: StreamBroken) -> None:
    """A process's stream broke and its controller does not answer: see what becomes of it."""
    if _counts(step.known, event.process):
        until = step.moment.at + timedelta(seconds=step.moment.rules.verdict_seconds)
        suspects = {**step.job.suspects, event.process: Suspect(event.detail, until)}
        step.job = replace(step.job, suspects=suspects, heard_at=step.moment.at)
        _wait_for_verdicts(step)


def all_ended(step: Step) -> None:
    """All processes have ended."""
    step.job, step.keep = replace(step.job, seen_to_end=True), True
    step.set_timer(Timer.ENDED, step.moment.rules.ended_seconds)


def goes_on(step: Step) -> None:
    """Not all processes have ended, or there are others now: the detector tells of theirs."""
    step.job = replace(step.job, seen_to_end=False, timers=step.job.timers - {Timer.ENDED})


def waited(step: Step, key: Timer) -> None:
    """The time for verdicts, for a plan for parked ranks, or for somebody to go on with the job is over."""
    known = step.known
    if key is Timer.ENDED:
        if step.job.seen_to_end and not known.lost:
            step.then.append(Ask(key, _ENDED_STATUS_SECONDS))
    elif key is Timer.STANDSTILL:
        if known.can_reshape and _parked(step):
            if known.stuck or step.job.awaits is PlanNeed.RECOVER:
                step.set_timer(key, step.moment.rules.standstill_seconds)
            else:
                step.then.append(Ask(key, _STANDSTILL_STATUS_SECONDS, _in_layout(known)))
    elif key is Timer.VERDICT:
        suspects = {process: one for process, one in step.job.suspects.items() if _counts(known, process)}
        step.job = replace(step.job, suspects=suspects)
        # What ends those of a node all at once is one incident.
        parked = {*_parked(step)}
        due = [rank for (rank, _), one in suspects.items() if one.until <= step.moment.at]
        nodes = {known.ranks[rank].node for rank in due if parked - {rank}}
        asked = [process for process in suspects if known.ranks[process[0]].node in nodes]
        if is_unheard(step):
            asked = [*suspects]
        if asked:
            step.then.append(Ask(key, _WITNESS_STATUS_SECONDS, tuple(asked)))
        else:
            _wait_for_verdicts(step)


def all_alive(step: Step, answers: Answers) -> bool:
    """Whether parked ranks stand still though every process of the layout in force answers, and none is done."""
    alive = all(_is_there(answers.get(process)) for process in _in_layout(step.known))
    parked = _parked(step)
    if not alive or not parked or step.known.stuck or step.job.awaits is PlanNeed.RECOVER:
        return False
    step.note("ranks are parked though nobody is gone: recovering", parked=parked)
    return True


def nobody_there(step: Step, answers: Answers) -> bool:
    """Whether the job is over: no process answers that is not done."""
    over = step.job.seen_to_end and not step.known.lost
    return over and not any(one is Silence.REFUSED or _is_there(one) for one in answers.values())


def verdicts_on(step: Step, answers: Answers) -> list[VerdictRecord]:
    """What the silence of suspects comes to, while others wait for them; who answers is a suspect no more.

    Where all are silent for long, the job is stuck.
    """
    suspects = step.job.suspects
    away = [one for one in suspects if answers.get(one, Silence.AWAY) is Silence.AWAY and _counts(step.known, one)]
    parked = {*_parked(step)}
    gone = sorted(one for one in away if one in answers and parked - {one[0]})
    step.job = replace(step.job, suspects={one: suspects[one] for one in away if one not in gone})
    again_seconds = _AGAIN_SECONDS
    if is_unheard(step):
        again_seconds = _UNHEARD_AGAIN_SECONDS
        since = f"nothing has been heard of any since {step.job.heard_at:%Y-%m-%d %H:%M:%S} UTC"
        flights.get_stuck(step, StuckReason.UNHEARD, f"none of its {len(away)} processes answers, and {since}")
    _wait_for_verdicts(step, again_seconds)
    by_node: dict[str, list[Process]] = {}
    for one in gone:
        by_node.setdefault(step.known.ranks[one[0]].node, []).append(one)
    return [_verdict(step, together, suspects[together[0]].detail) for together in by_node.values()]


def is_unheard(step: Step) -> bool:
    """Whether all processes that are not done have been away for long, and nothing was heard of the job meanwhile.

    Not where a plan is waited for, or it is stuck for something else, or all were seen to end: that says more of it.
    """
    job, known, moment = step.job, step.known, step.moment
    if known.stuck_by not in (None, StuckReason.UNHEARD) or job.awaits is not PlanNeed.NONE or job.seen_to_end:
        return False
    live = {info.process for info in known.ranks.values() if _counts(known, info.process)}
    there = {process for process in live if not moment.is_done(process)}
    limit_seconds = max(moment.rules.unheard_seconds, 2 * PROFILE_EVERY * job.iteration_seconds)
    is_silent = job.heard_at is not None and (moment.at - job.heard_at).total_seconds() >= limit_seconds
    return is_silent and bool(there) and there <= job.suspects.keys()


def _wait_for_verdicts(step: Step, again_seconds: float = _AGAIN_SECONDS) -> None:
    """Until the next of the suspects is due, or for others to park."""
    left = [(one.until - step.moment.at).total_seconds() for one in step.job.suspects.values()]
    if left:
        step.set_timer(Timer.VERDICT, min(seconds if seconds > 0.0 else again_seconds for seconds in left))


def _verdict(step: Step, gone: Sequence[Process], detail: str) -> VerdictRecord:
    rank, incarnation = gone[0]
    parked = [one for one in _parked(step) if one != rank]
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


def _parked(step: Step) -> list[int]:
    """Ranks of the layout in force that wait for a recovery."""
    said = [step.moment.said_by(process) for process in _in_layout(step.known)]
    return [one.rank for one in said if one and one.phase is RankPhase.PARKED and one.epoch == step.known.epoch]


def _is_there(answer: RankState | Silence | None) -> bool:
    return isinstance(answer, RankState) and answer.phase is not RankPhase.FINISHED
