"""What a newer profile of a job changes: the workload, the correction of predictions, time lost, measured plans."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from services.scheduler.domain.job_state import AppliedPlan, JobKnowledge
from services.scheduler.domain.transitions import with_loss
from services.scheduler.planning.cost_model import CostModel, Workload, calibrated_correction

MEASURED_AFTER_ITERATIONS = 4
"""Iterations of an epoch before its median counts as measured; the first one contains the reshape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProfile:
    """A profile as the detector published it; fields as in ``evenkeel.detector.v1.Profile``."""

    job_id: str
    iteration: int
    epoch: int
    workload: Workload
    iteration_seconds: float
    throughputs: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A plan whose effect is known now."""

    plan: AppliedPlan
    seconds: float


def on_profile(job: JobKnowledge, profile: JobProfile) -> tuple[JobKnowledge, Measured | None]:
    """The job with what a profile says, and the plan that it measured, if it did.

    An older profile than the newest one changes nothing.
    """
    if job.finished or (profile.epoch <= job.epoch and profile.iteration <= job.iteration):
        return job, None
    num_iterations = min(100, profile.iteration - job.iteration) if job.iteration >= 0 else 0
    job = replace(job, workload=profile.workload, iteration=max(job.iteration, profile.iteration))
    if profile.epoch != job.epoch or not _plausible(profile.iteration_seconds):
        return job, None
    if job.incidents and num_iterations > 0:
        healthy = CostModel(job.model, profile.workload, job.correction).iteration_seconds(
            job.home, dict.fromkeys(job.home.ranks, 1.0)
        )
        job = with_loss(job, None, max(0.0, profile.iteration_seconds - healthy) * num_iterations)
    plan = job.unmeasured
    settled = plan is None or profile.iteration >= plan.first_iteration + MEASURED_AFTER_ITERATIONS
    if not settled:
        return job, None
    speeds = {rank: min(1.0, profile.throughputs.get(rank, 1.0)) for rank in job.layout.ranks}
    # What a slow link costs is no matter of scale.
    if min(speeds.values()) > 0.0 and not job.links:
        cost = CostModel(job.model, profile.workload, job.correction)
        job = replace(job, correction=calibrated_correction(cost, job.layout, speeds, profile.iteration_seconds))
    if plan is None or plan.epoch != profile.epoch:
        return job, None
    return replace(job, unmeasured=None), Measured(plan=plan, seconds=profile.iteration_seconds)


def _plausible(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds > 0.0
