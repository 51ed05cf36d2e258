"""What batches must look like before anything believes them. Pure.

Protobuf already refuses bytes that are no message, and :func:`evenkeel.contracts.batches.read_batches` columns that do
not fit together. What is left are numbers that nobody can have measured: they would poison averages, hold frames open
for ever, or take all memory.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from evenkeel.contracts.batches import Batches
from evenkeel.contracts.columns import LAUNCHER_INCARNATION, NO_RANK, PROCESS, READING, SCHEDULER_INCARNATION
from evenkeel.contracts.mac import UnbelievedError
from evenkeel.contracts.measured_arrays import COLUMNS
from evenkeel.services.telemetry.domain.observed import ENDS, ArrivedEvent, EventKind

MAX_BATCH_BYTES = 8 * 1024 * 1024
MAX_RANK = 1_000_000
MAX_INCARNATION = 1_000_000_000
MAX_ITERATIONS = 4096
MAX_LISTED = 65_536
MAX_TEXT_CHARACTERS = 4096
MAX_JOB_ID_CHARACTERS = 200
MAX_SECONDS = 7 * 24 * 3600.0
MAX_UNIX_SECONDS = 1e11
MAX_COUNT = 2**53
MAX_FLOPS = 1e30

_HIGHEST: dict[str, float] = {
    "rank": MAX_RANK,
    "incarnation": MAX_INCARNATION,
    "backward_multiple": 1e6,
    "sum_of_squares": float(MAX_COUNT**2),
    "listed_squares": float(MAX_COUNT**2),
    "num_iterations": MAX_ITERATIONS,
    "num_progress": MAX_ITERATIONS,
    "num_events": MAX_ITERATIONS,
    "num_readings": MAX_ITERATIONS,
    # Moments, and running totals.
    **dict.fromkeys(("started_at_unix_seconds", "reading_at_unix_seconds", "throttled_seconds"), MAX_UNIX_SECONDS),
    **dict.fromkeys((f"{name}_pressure_seconds" for name in ("cpu", "memory", "io")), MAX_UNIX_SECONDS),
    **dict.fromkeys(("num_listed", "num_operations", "num_channels", "channel_num_stamped"), MAX_LISTED),
}
# A process that has not begun its first iteration may say -1.
_OF_PROGRESS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("at_unix_seconds", "seconds_in_operation"), (0, MAX_UNIX_SECONDS)),
    **dict.fromkeys(("iteration", "epoch"), (-1, MAX_COUNT)),
}
_OF_EVENT: dict[str, tuple[float, float]] = {
    "at_unix_seconds": (0, MAX_UNIX_SECONDS),
    "rank": (NO_RANK, MAX_RANK),
    "incarnation": (0, MAX_INCARNATION),
}
_OF_UNIT: dict[str, float] = {"s": MAX_SECONDS, "FLOP": MAX_FLOPS}
# What a rank reports of these may be anything, NaN too: that is news.
_UNCHECKED = frozenset(("loss", "gradient_norm"))
_LIMITS: dict[str, tuple[float, float]] = {
    column.name: (
        NO_RANK if column.name == "rank" else 0,
        _HIGHEST.get(column.name, _OF_UNIT.get(column.unit, MAX_COUNT)),
    )
    for column in (*PROCESS, *COLUMNS, *READING)
    if column.dtype != "str" and column.name not in _UNCHECKED
}


def check_batches(batches: Batches) -> None:
    """Returns if batches can be believed.

    Raises:
        UnbelievedError: They cannot; the message names column and value.
    """
    for job_id in set(batches.job_id):
        if not job_id or len(job_id) > MAX_JOB_ID_CHARACTERS or not job_id.isprintable():
            raise UnbelievedError("job_id", f"job_id {job_id[:40]!r} is empty, too long or not printable")
    for name in ("node", "device"):
        for text in set(getattr(batches, name)):
            _check_text(name, text)
    for name, (lowest, highest) in _LIMITS.items():
        values = getattr(batches, name)
        within = (values >= lowest) & (values <= highest)  # NaN is within nothing
        if not within.all():
            value = values[int(np.argmin(within))].item()
            raise UnbelievedError("value", f"{name} = {value!r} is not within {lowest:g} and {highest:g}")
    silent = (batches.rank == NO_RANK) & (batches.num_iterations + batches.num_progress + batches.num_readings > 0)
    if silent.any():
        raise UnbelievedError("rank", "iterations, progress or readings without a rank")


def check_messages(progress: Iterable[Any], events: Iterable[Any]) -> None:
    """Returns if progress reports and events, as in the contract, can have been made.

    Raises:
        UnbelievedError: One cannot.
    """
    for report in progress:
        _check_message("progress", report, _OF_PROGRESS, texts=("operation",))
        for rank in report.waiting_for:
            _check_between("progress.waiting_for", rank, 0, MAX_RANK)
    for event in events:
        _check_message("event", event, _OF_EVENT, texts=("detail", "node", "device"))


def check_speaker(rank: int, incarnation: int, event: ArrivedEvent) -> None:
    """Returns if whoever told of an event can know of it.

    A process knows of itself. Of others the launcher sees the end, and the scheduler that a stream broke.

    Args:
        rank: Of the process that told.
        incarnation: Which process of the rank.
        event: What it told.

    Raises:
        UnbelievedError: It cannot.
    """
    if rank != NO_RANK:
        believed = (rank, incarnation) == (event.rank, event.incarnation)
    elif event.kind in ENDS:
        believed = LAUNCHER_INCARNATION <= incarnation < SCHEDULER_INCARNATION
    else:
        believed = event.kind is not EventKind.STREAM_BROKEN or incarnation == SCHEDULER_INCARNATION
    if not believed:
        who = f"rank {event.rank}, incarnation {event.incarnation}"
        raise UnbelievedError("speaker", f"{event.kind} of {who}, told by rank {rank}, incarnation {incarnation}")


def _check_message(of: str, message: Any, limits: Mapping[str, tuple[float, float]], *, texts: Sequence[str]) -> None:
    for name, (lowest, highest) in limits.items():
        _check_between(f"{of}.{name}", getattr(message, name), lowest, highest)
    for name in texts:
        _check_text(f"{of}.{name}", getattr(message, name))


def _check_between(name: str, value: float, lowest: float, highest: float) -> None:
    """NaN is within nothing."""
    if not lowest <= value <= highest:
        raise UnbelievedError("value", f"{name} = {value!r} is not within {lowest:g} and {highest:g}")


def _check_text(name: str, value: str) -> None:
    """Short, and what the database can keep."""
    if len(value) > MAX_TEXT_CHARACTERS:
        raise UnbelievedError("size", f"{name} has {len(value)} characters, at most {MAX_TEXT_CHARACTERS}")
    if "\0" in value:
        raise UnbelievedError("text", f"{name} contains a zero character")
