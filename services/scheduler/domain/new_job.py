"""A job's state as it registers."""

from evenkeel.history.records import JobRecord
from evenkeel.services.scheduler.domain.job_state import JobKnowledge, RankInfo


def new_job(record: JobRecord) -> JobKnowledge:
    """The state of a job that just registered."""
    ranks = (*record.layout.ranks, *record.layout.standbys)
    return JobKnowledge(
        job_id=record.job_id,
        tenant=record.tenant,
        name=record.name,
        model=record.model,
        registered_at=record.registered_at,
        home=record.layout,
        layout=record.layout,
        layouts={0: record.layout},
        ranks={rank: RankInfo(rank=rank) for rank in ranks},
    )
