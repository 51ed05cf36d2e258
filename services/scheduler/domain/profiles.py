"""What a newer profile of a job changes: the workload, the correction of predictions, time lost, measured plans."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from evenkeel.layouts.ranks.traffic import ring_part
from evenkeel.planning.costs.cost_model import CostModel, Workload
from evenkeel.planning.costs.gradients import GradientExchange
from evenkeel.planning.costs.measured.calibration import (
    calibrated_correction,
    for_equal_work,
    pooled,
    with_transfers,
)
from evenkeel.planning.costs.measured.replay import Replay
from evenkeel.planning.pipelined.virtual import has_orders
from evenkeel.services.scheduler.domain.job_state import SAME_THROUGHPUT, JobKnowledge
from evenkeel.services.scheduler.domain.losses import with_loss

MEASURED_AFTER_ITERATIONS = 4
"""Iterations of an epoch before its median counts as measured; the first one contains the reshape."""

AGAIN_AFTER_SECONDS = 30.0
"""So long profiles stay below the newest one before the job is believed to do iterations again.

A detector that starts again repeats some too, and so does a topic that is read again: for seconds.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded:
    """The detector has seen every process of a job end.

    Attributes:
        job_id: The job.
    """

    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProfile:
    """A profile as the detector published it; fields as in ``evenkeel.detector.v1.Profile``.

    The workload's ``exchange_seconds`` and ``gradient_seconds`` are not known yet: what a block takes, and two devices
    that hold the whole model, follows from these figures and the layout in force. Without
    ``priced`` its ``seconds_per_flop`` is not known either: the loop does not say what its model costs.

    Attributes:
        taken_at_unix_seconds: When the scheduler got it.
    """

    job_id: str
    iteration: int
    epoch: int
    workload: Workload
    iteration_seconds: float
    throughputs: Mapping[int, float]
    exchange_seconds: float = 0.0
    gradient_seconds: float = 0.0
    priced: bool = True
    taken_at_unix_seconds: float = 0.0


def on_profile(job: JobKnowledge, profile: JobProfile) -> tuple[JobKnowledge, float | None]:
    """The job with what a profile says, and what it measured of the plan in force, if it did.

    That is in seconds per iteration, for the work that the plan was predicted for; the plan counts as measured then.

    An older profile than the newest one changes nothing, unless that goes on: then the job has gone back, for example
    to a checkpoint, and what its iterations are called now is what counts.
    """
    if job.finished:
        return job, None
    if profile.epoch <= job.epoch and profile.iteration < job.iteration:
        since = job.again_since_unix_seconds or profile.taken_at_unix_seconds
        job = replace(job, again_since_unix_seconds=since)
        if profile.epoch < job.epoch or profile.taken_at_unix_seconds - since < AGAIN_AFTER_SECONDS:
            return job, None
        # What was lost meanwhile is not known by its iterations.
        job = replace(job, iteration=profile.iteration - 1)
    elif profile.epoch <= job.epoch and profile.iteration == job.iteration:
        return replace(job, again_since_unix_seconds=0.0), None
    job = replace(job, again_since_unix_seconds=0.0)
    if not profile.priced:
        price = _price(job, profile)
        if not _plausible(price):
            return job, None
        profile = replace(profile, workload=replace(profile.workload, seconds_per_flop=price))
    num_iterations = min(100, profile.iteration - job.iteration) if job.iteration >= 0 else 0
    fresh = _per_block(job, profile)
    job = replace(job, workload=job.workload or fresh, iteration=max(job.iteration, profile.iteration))
    if profile.epoch != job.epoch or not _plausible(profile.iteration_seconds):
        return job, None
    if job.incidents and num_iterations > 0:
        job = with_loss(job, None, max(0.0, profile.iteration_seconds - _healthy_seconds(job, fresh)) * num_iterations)
    plan = job.unmeasured
    # Below its first iteration a plan's epoch runs in a job that went back, which was long after the reshape.
    if plan is not None and 0 <= profile.iteration - plan.first_iteration < MEASURED_AFTER_ITERATIONS:
        return job, None
    speeds = {rank: min(1.0, profile.throughputs.get(rank, 1.0)) for rank in job.layout.ranks}
    # What a slow link costs is no matter of scale.
    if min(speeds.values()) > 0.0 and not job.links:
        cost = CostModel(job.model, fresh, job.correction)
        if fresh.recent:
            told = with_transfers(cost, job.layout, speeds) if _is_as_planned(job, speeds) else fresh
            cost = CostModel(job.model, pooled(job.workload, told), job.correction)
        correction = calibrated_correction(cost, job.layout, speeds, profile.iteration_seconds)
        job = replace(job, workload=cost.workload, correction=correction)
    else:
        job = replace(job, workload=fresh)
    if plan is None or plan.record.epoch != profile.epoch:
        return job, None
    throughputs = {**speeds, **(plan.record.throughputs or {})}
    seconds = for_equal_work(
        CostModel(job.model, fresh), job.layout, throughputs, plan.workload, profile.iteration_seconds
    )
    levers = [action.lever for action in plan.record.actions]
    hindsight = job.hindsight.after(plan.record.predicted_seconds, seconds, levers)
    return replace(job, unmeasured=None, hindsight=hindsight), seconds


def _is_as_planned(job: JobKnowledge, speeds: Mapping[int, float]) -> bool:
    """Whether ranks are as fast as the layout in force was planned for.

    Where they are not, most wait for a few, and what transfers cost elsewhere hides behind these waits.
    """
    return all(abs(speed - min(1.0, job.answered.get(rank, 1.0))) <= SAME_THROUGHPUT for rank, speed in speeds.items())


def _healthy_seconds(job: JobKnowledge, fresh: Workload) -> float:
    """Seconds that the newest iterations would have taken under the full shape, with all devices healthy."""
    now = replace(job.workload or fresh, tokens=fresh.tokens, sum_of_squares=fresh.sum_of_squares, recent=fresh.recent)
    everybody = dict.fromkeys(job.home.ranks, 1.0)
    return Replay(CostModel(job.model, now, job.correction), job.layout.mix).seconds(job.home, everybody)


def _per_block(job: JobKnowledge, profile: JobProfile) -> Workload:
    """The workload with the exchange of one sharded block and of a pair, and recent iterations if they fit the job.

    What the detector takes for transfers is counted from a pipeline of one stage a rank: where ranks have several, what
    was known before stands, unless a replay of the recent iterations tells it.
    """
    if job.workload is not None and profile.epoch == job.epoch and has_orders(job.layout):
        told = replace(profile.workload, transfer_seconds=job.workload.transfer_seconds)
        profile = replace(profile, workload=told)
    known, pair = (job.workload.exchange_seconds, job.workload.gradient_seconds) if job.workload else (0.0, 0.0)
    recent = profile.workload.recent
    if profile.epoch != job.epoch or len(recent[0].tokens if recent else ()) != job.layout.num_micro_batches:
        recent = ()
    if profile.epoch == job.epoch:
        sharded = [
            ring_part(len(stage.ranks))
            * sum(block.max_width > 1 for block in job.model.blocks[stage.first_block : stage.stop_block])
            for replica in job.layout.replicas
            for stage in replica.stages
        ]
        if sum(sharded):
            known = profile.exchange_seconds * len(job.layout.replicas) / sum(sharded)
        exchanged = GradientExchange(job.model, 1.0).seconds([replica.stages[:1] for replica in job.layout.replicas])
        if exchanged:
            pair = profile.gradient_seconds / exchanged
    return replace(profile.workload, exchange_seconds=known, gradient_seconds=pair, recent=recent)


def _price(job: JobKnowledge, profile: JobProfile) -> float:
    """Seconds per operation with which the layout in force takes what its iterations took."""
    speeds = {rank: max(0.01, min(1.0, profile.throughputs.get(rank, 1.0))) for rank in job.layout.ranks}
    unpriced = replace(profile.workload, fixed_seconds=0.0, transfer_seconds=0.0, recent=())
    num_operations = Replay(CostModel(job.model, unpriced)).seconds(job.layout, speeds)
    spent_seconds = profile.iteration_seconds - profile.workload.fixed_seconds - profile.gradient_seconds
    return spent_seconds / num_operations if num_operations > 0.0 else math.nan


def _plausible(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds > 0.0
