"""A job as a scheduler may go on with it: what its history says, without plans that were never decided."""

from datetime import datetime

from evenkeel.history.records import PlanDropRecord, RestartRecord
from evenkeel.history.vocabulary import PlanState
from evenkeel.services.scheduler.adapters.store import Store

_WHY = "the scheduler began anew before it was decided"


async def last_known(
    store: Store, job_id: str, at: datetime, *, record: RestartRecord | None = None
) -> RestartRecord | None:
    """The job, or None for one that is unknown or finished. Waits for as long as the database is away.

    Args:
        store: The history; undecided plans of the job are aborted in it.
        job_id: The job.
        at: When they are.
        record: The job, where it was read already.
    """
    record = record or await store.load_job(job_id)
    undecided = [] if record is None else [plan for plan in record.plans if plan.state is PlanState.PROPOSED]
    if not undecided:
        return record
    dropped = [PlanDropRecord(plan_id=one.plan.plan_id, at=at, detail=_WHY) for one in undecided]
    if all(await store.save_patiently(dropped)):
        return record
    # The last that was written before was a decision.
    return await store.load_job(job_id)
