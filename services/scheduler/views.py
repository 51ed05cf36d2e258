"""A job as the fleet API shows it."""

from collections.abc import Mapping

from evenkeel.history.vocabulary import JobState
from evenkeel.layouts.rank_state import RankState
from evenkeel.services.scheduler.adapters.fleet_port import JobView, RankView
from evenkeel.services.scheduler.domain.job_state import JobKnowledge
from evenkeel.services.scheduler.domain.standing import standing


def job_view(job: JobKnowledge, states: Mapping[int, RankState]) -> JobView:
    """The job as it is.

    Args:
        job: The job.
        states: What each rank said last of itself.
    """
    stands = standing(job, states)
    return JobView(
        job_id=job.job_id,
        tenant=job.tenant,
        name=job.name,
        model=job.model,
        layout=job.layout,
        epoch=job.epoch,
        state=job.state,
        registered_at=job.registered_at,
        ranks=tuple(
            RankView(
                rank=info.rank,
                incarnation=info.incarnation,
                node=info.node,
                device=info.device,
                address=info.address,
                alive=info.alive and bool(info.address) and not info.ended,
                throughput=info.throughput,
            )
            for _, info in sorted(job.ranks.items())
        ),
        proportional_bound=job.proportional_bound,
        can_reshape=job.can_reshape,
        problem=stands.stuck.detail if stands.stuck and job.state is JobState.STUCK else "",
        standing=stands,
    )
