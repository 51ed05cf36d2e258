"""Ranks that turn slow and healthy again and again: how much less a plan made for them is worth."""

from dataclasses import replace
from datetime import datetime

from evenkeel.services.scheduler.domain.job_state import SAME_THROUGHPUT, JobKnowledge

FLIP_MEMORY_SECONDS = 900.0


def flipped(job: JobKnowledge, rank: int, at: datetime) -> JobKnowledge:
    """The rank turned slow or healthy: remember when, for the hysteresis."""
    now = at.timestamp()
    recent = tuple(t for t in job.flips.get(rank, ()) if now - t < FLIP_MEMORY_SECONDS)
    return replace(job, flips={**job.flips, rank: (*recent, now)})


def num_flips(job: JobKnowledge, now_unix_seconds: float) -> int:
    """How often a rank that the next plan is for has flipped lately, beyond its first slow and its first recovery.

    A plan is for the ranks that are not as the layout in force was planned for; it is as lasting as the steadiest of
    them, so a device that flips stands in nobody else's way. For no such rank, the job's most restless one counts.
    """
    counts = {
        rank: max(0, sum(1 for at in times if now_unix_seconds - at < FLIP_MEMORY_SECONDS) - 2)
        for rank, times in job.flips.items()
    }
    usable, unknown = job.usable, 0.0 if job.answered else 1.0
    others = [
        rank
        for rank in sorted({*usable, *job.answered, *job.layout.ranks})
        if abs(usable.get(rank, 0.0) - job.answered.get(rank, unknown)) > SAME_THROUGHPUT
    ]
    return min([counts.get(rank, 0) for rank in others], default=max(counts.values(), default=0))
