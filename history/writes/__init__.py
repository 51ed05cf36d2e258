"""Writes: idempotent by natural key, inside the caller's transaction, append-only except snapshots and the outbox."""

from evenkeel.history.writes.incidents import append_incident_event, open_incident, record_verdict
from evenkeel.history.writes.jobs import register_job, register_rank, set_job_state
from evenkeel.history.writes.outbox import enqueue_outbox, take_outbox
from evenkeel.history.writes.plans import append_plan_event, drop_plan, record_plan
from evenkeel.history.writes.rollups import insert_rollups
from evenkeel.history.writes.snapshots import delete_snapshots, load_snapshots, save_snapshot

__all__ = [
    "append_incident_event",
    "append_plan_event",
    "delete_snapshots",
    "drop_plan",
    "enqueue_outbox",
    "insert_rollups",
    "load_snapshots",
    "open_incident",
    "record_plan",
    "record_verdict",
    "register_job",
    "register_rank",
    "save_snapshot",
    "set_job_state",
    "take_outbox",
]
