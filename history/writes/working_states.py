"""How jobs stand: replaced in place by whoever goes on with them, and by nobody who does not know what was there."""

import json
from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from evenkeel.history.errors import StaleStateError
from evenkeel.history.stream_records import WorkingStateRecord
from evenkeel.history.writes._rows import named_errors

# Arrays, one a column: a statement has at most 65,535 parameters, and a text of its own for every number of them.
_SAVE = text("""
INSERT INTO job_state (job_id, version, save_id, document, plan_ids)
SELECT job_id, version, save_id, document::jsonb, ARRAY(SELECT jsonb_array_elements_text(plan_ids::jsonb))
FROM unnest(CAST(:job_ids AS text[]), CAST(:versions AS bigint[]), CAST(:save_ids AS text[]),
            CAST(:documents AS text[]), CAST(:plan_ids AS text[])) AS r (job_id, version, save_id, document, plan_ids)
ON CONFLICT (job_id) DO UPDATE SET
    version = excluded.version, save_id = excluded.save_id, document = excluded.document, plan_ids = excluded.plan_ids
WHERE job_state.version = excluded.version - 1
   OR (job_state.version, job_state.save_id) = (excluded.version, excluded.save_id)
RETURNING job_id
""")
_SAVE_SEATS = text("""
INSERT INTO job_seats (job_id, rank, seat) SELECT job_id, rank, seat::jsonb
FROM unnest(CAST(:job_ids AS text[]), CAST(:ranks AS integer[]), CAST(:seats AS text[])) AS r (job_id, rank, seat)
ON CONFLICT (job_id, rank) DO UPDATE SET seat = excluded.seat
""")
_FORGET = tuple(text(f"DELETE FROM {table} WHERE job_id = :job_id") for table in ("job_state", "job_seats"))  # noqa: S608


async def save_working_states(connection: AsyncConnection, states: Sequence[WorkingStateRecord]) -> None:
    """Put how jobs stand in the place of what was saved before; two statements for any number of jobs.

    Args:
        connection: In the transaction of the records that the states come of.
        states: One a job, at least one. The same once more changes nothing: an answer may have been lost.

    Raises:
        StaleStateError: What was saved before is not what one of them takes the place of.
        UnknownJobError: One of the jobs does not exist.
    """
    columns = {
        "job_ids": [one.job_id for one in states],
        "versions": [one.version for one in states],
        "save_ids": [one.save_id for one in states],
        "documents": [json.dumps(one.document, allow_nan=False) for one in states],
        "plan_ids": [json.dumps(one.plan_ids) for one in states],
    }
    with named_errors(job_id=states[0].job_id):
        saved = set(await connection.scalars(_SAVE, columns))
    for one in states:
        if one.job_id not in saved:
            raise StaleStateError(one.job_id, one.version)
    seats = [(one.job_id, rank, json.dumps(seat)) for one in states for rank, seat in one.seats.items()]
    if seats:
        job_ids, ranks, documents = (list(column) for column in zip(*seats, strict=True))
        await connection.execute(_SAVE_SEATS, {"job_ids": job_ids, "ranks": ranks, "seats": documents})


async def forget_working_state(connection: AsyncConnection, job_id: str) -> None:
    """Nobody goes on with the job any more."""
    for statement in _FORGET:
        await connection.execute(statement, {"job_id": job_id})
