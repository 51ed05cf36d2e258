"""Writes: idempotent by natural key, inside the caller's transaction, append-only except snapshots and the outbox."""

from evenkeel.history.writes.control import (
    get_lease,
    give_up_lease,
    hold_lease,
    load_offsets,
    renew_lease,
    save_offsets,
    take_lease,
)
from evenkeel.history.writes.incidents import append_incident_event, open_incident, record_verdict
from evenkeel.history.writes.jobs import record_exit, register_job, register_ranks, set_job_state
from evenkeel.history.writes.outbox import enqueue_outbox, take_outbox
from evenkeel.history.writes.plans import append_plan_event, record_plan
from evenkeel.history.writes.rollups import insert_rollups
from evenkeel.history.writes.snapshots import delete_snapshots, load_snapshots, save_snapshots
from evenkeel.history.writes.working_states import save_working_states

__all__ = [
    "append_incident_event",
    "append_plan_event",
    "delete_snapshots",
    "enqueue_outbox",
    "get_lease",
    "give_up_lease",
    "hold_lease",
    "insert_rollups",
    "load_offsets",
    "load_snapshots",
    "open_incident",
    "record_exit",
    "record_plan",
    "record_verdict",
    "register_job",
    "register_ranks",
    "renew_lease",
    "save_offsets",
    "save_snapshots",
    "save_working_states",
    "set_job_state",
    "take_lease",
    "take_outbox",
]
