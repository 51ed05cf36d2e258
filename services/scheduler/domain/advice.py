"""What a person should do about a job that nobody can reshape: words with numbers, and an id that a repetition keeps.

A loop without the elastic engine can only be started again: without the ranks that are ill, or with other devices in
their places. What that brings is told in parts of the healthy speed, for samples per second: without k of n ranks that
do the same, (n - k) / n.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from evenkeel.planning.situation import Situation
from evenkeel.services.scheduler.domain.exits import program_errors
from evenkeel.services.scheduler.domain.job_state import HEALTHY, JobKnowledge
from evenkeel.services.scheduler.domain.parts import RankInfo

_MOST_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advice on the state that a job is in.

    Attributes:
        advice_id: The same for the same state, also after a restart: given twice, it is recorded once.
        incident_id: The incident that it stands beside: the newest that it is about.
        text: What to do and what it brings.
    """

    advice_id: str
    incident_id: str
    text: str


def advice_on(job: JobKnowledge, situation: Situation, min_gain: float) -> Advice | None:
    """Advice on a job that cannot be reshaped; None when nobody in it is ill enough.

    Args:
        job: The job.
        situation: The same as the planner sees it.
        min_gain: Smallest part of the healthy speed worth a word.
    """
    gone = [job.ranks[rank] for rank in job.lost]
    slow = [job.ranks[r] for r in job.layout.ranks if job.ranks[r].alive and job.ranks[r].throughput < HEALTHY]
    incidents = [i for i in job.incidents if any(info.rank in i.ranks for info in (*gone, *slow))]
    if not incidents:
        return None
    if gone:
        text = _of_the_gone(job, gone, slow)
    else:
        part = situation.healthy_seconds / situation.idle_seconds
        if 1.0 - part < min_gain:
            return None
        text = _of_the_slow(job, slow, part, situation)
    state = [(info.rank, info.incarnation, round(info.throughput, 2)) for info in (*gone, *slow)]
    digest = hashlib.sha256(repr((incidents[-1].incident_id, state)).encode()).hexdigest()[:8]
    return Advice(
        advice_id=f"{job.job_id}-advice-{digest}",
        incident_id=incidents[-1].incident_id,
        text=text[0].upper() + text[1:],
    )


def _of_the_gone(job: JobKnowledge, gone: Sequence[RankInfo], slow: Sequence[RankInfo]) -> str:
    left = len(job.layout.ranks) - len(gone)
    errors = [one for info in gone if (one := job.exits.get(info.process)) and one.is_program_error]
    if len(errors) == len(gone):
        return (
            f"{_ranks(gone)} ended by an error of the program: {'; '.join(program_errors(job)[:3])}. No device is at "
            "fault: repair the program and start the job again."
        )
    text = f"{_ranks(gone)} {'is' if len(gone) == 1 else 'are'} gone, and {_NO_ENGINE}. "
    if left:
        text += f"Restart it without {_ranks(gone, places=False)} ({_part(job, left)}), or with {_others(gone)}"
    else:
        text += f"Restart it with all of its ranks, with {_others(gone)}"
    text += f"; replace also {_devices(slow)}, which {'is' if len(slow) == 1 else 'are'} slow" if slow else ""
    return f"{text}."


def _of_the_slow(job: JobKnowledge, slow: Sequence[RankInfo], part: float, situation: Situation) -> str:
    left = len(job.layout.ranks) - len(slow)
    speeds = ", ".join(f"{info.throughput:.2f}" for info in slow[:_MOST_NAMED])
    text = (
        f"{_ranks(slow)} {'computes' if len(slow) == 1 else 'compute'} at {speeds} of healthy speed, so the job "
        f"runs at {100 * part:.0f} % of its own, and {_NO_ENGINE}. Restart it with {_others(slow)}"
    )
    if job.workload is not None:
        idle, healthy = situation.idle_seconds, situation.healthy_seconds
        text += f" to win back {idle - healthy:.3f} of {idle:.3f} s per iteration"
    if left > len(job.layout.ranks) * part:
        text += f", or without {_ranks(slow, places=False)} ({_part(job, left)})"
    return f"{text}."


_NO_ENGINE = "this training loop has no elastic engine that a plan could be taken to"


def _part(job: JobKnowledge, left: int) -> str:
    return f"{left} of {len(job.layout.ranks)} devices, {100 * left / len(job.layout.ranks):.0f} % of the healthy speed"


def _ranks(infos: Sequence[RankInfo], *, places: bool = True) -> str:
    named = [
        f"{info.rank} ({info.device} of {info.node})" if places and info.node else str(info.rank)
        for info in infos[:_MOST_NAMED]
    ]
    more = f" and {len(infos) - _MOST_NAMED} more" if len(infos) > _MOST_NAMED else ""
    return f"{'rank' if len(infos) == 1 else 'ranks'} {', '.join(named)}{more}"


def _devices(infos: Sequence[RankInfo]) -> str:
    places = [f"{info.device} of {info.node}" for info in infos if info.node][:_MOST_NAMED]
    more = " and others" if len(infos) > len(places) else ""
    return f"{', '.join(places)}{more}" if places else f"the {'device' if len(infos) == 1 else 'devices'} of the others"


def _others(infos: Sequence[RankInfo]) -> str:
    """What stands in for the devices of these ranks."""
    if not any(info.node for info in infos):
        return "another device in its place" if len(infos) == 1 else "other devices in their places"
    return f"{'another device' if len(infos) == 1 else 'other devices'} in place of {_devices(infos)}"
