"""Writes: idempotent by natural key, inside the caller's transaction, append-only except snapshots and the outbox."""

from history.writes.rollups import insert_rollups
from history.writes.snapshots import delete_snapshots, load_snapshots, save_snapshot

__all__ = [
    "delete_snapshots",
    "insert_rollups",
    "load_snapshots",
    "save_snapshot",
]
