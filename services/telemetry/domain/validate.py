"""What a record must look like before anything believes it. Pure; works on anything of the right shape.

Protobuf already refuses bytes that are no message. What is left are numbers that nobody can have measured: they would
poison averages, hold frames open for ever, or take all memory.
"""

from collections.abc import Sequence

from evenkeel.contracts.speakers import NO_RANK
from evenkeel.services.telemetry.domain.shapes import (
    MicroBatchShape,
    PositionShape,
    ProgressShape,
    RecordShape,
    SampleShape,
)

MAX_RECORD_BYTES = 8 * 1024 * 1024
MAX_RANK = 1_000_000
MAX_INCARNATION = 1_000_000_000
MAX_SAMPLES = 4096
MAX_MICRO_BATCHES = 65_536
MAX_TEXT_CHARACTERS = 4096
MAX_JOB_ID_CHARACTERS = 200
MAX_SECONDS = 7 * 24 * 3600.0
MAX_UNIX_SECONDS = 1e11
MAX_COUNT = 2**53
MAX_SQUARES = float(MAX_COUNT**2)
MAX_INT32 = 2**31 - 1
MAX_FLOPS = 1e30
MAX_BACKWARD_MULTIPLE = 1e6


class HostileRecordError(ValueError):
    """A record that nobody can have meant; ``word`` says what kind of wrong it is."""

    def __init__(self, word: str, reason: str) -> None:
        """Keeps the word to count by beside the reason for a person."""
        super().__init__(reason)
        self.word = word


def check_record(record: RecordShape, *, key: bytes | None) -> None:
    """Returns if ``record`` can be believed.

    Args:
        record: The record.
        key: The key that it came under.

    Raises:
        HostileRecordError: It cannot; the message names field and value.
    """
    job_id = record.job_id
    if not job_id or len(job_id) > MAX_JOB_ID_CHARACTERS or not job_id.isprintable():
        raise HostileRecordError("job_id", f"job_id {job_id[:40]!r} is empty, too long or not printable")
    if key != job_id.encode():
        raise HostileRecordError("key", f"key {(key or b'')[:40]!r} is not the job id {job_id!r}")
    _check_count("rank", record.rank + 1, MAX_RANK + 1)
    _check_count("incarnation", record.incarnation, MAX_INCARNATION)
    _check_count("sequence", record.sequence, MAX_COUNT)
    _check_count("num_dropped", record.num_dropped, MAX_COUNT)
    _check_text("node", record.node)
    _check_text("device", record.device)
    num_items = len(record.samples) + len(record.progress) + len(record.events)
    if num_items > MAX_SAMPLES:
        raise HostileRecordError("size", f"{num_items} items in one record, at most {MAX_SAMPLES}")
    if record.rank == NO_RANK and (record.samples or record.progress):
        raise HostileRecordError("rank", "samples or progress without a rank")
    for sample in record.samples:
        check_sample(sample)
    for progress in record.progress:
        check_progress(progress)
    for event in record.events:
        _check_between("event.at_unix_seconds", event.at_unix_seconds, MAX_UNIX_SECONDS)
        _check_count("event.rank", event.rank + 1, MAX_RANK + 1)
        _check_count("event.incarnation", event.incarnation, MAX_INCARNATION)
        _check_text("event.detail", event.detail)
        _check_text("event.node", event.node)
        _check_text("event.device", event.device)


def check_sample(sample: SampleShape) -> None:
    """Returns if a sample can have been measured.

    Raises:
        HostileRecordError: It cannot.
    """
    _check_count("iteration", sample.iteration, MAX_COUNT)
    _check_count("epoch", sample.epoch, MAX_COUNT)
    _check_between("started_at_unix_seconds", sample.started_at_unix_seconds, MAX_UNIX_SECONDS)
    _check_between("wall_seconds", sample.wall_seconds, MAX_SECONDS)
    _check_count("peak_memory_bytes", sample.peak_memory_bytes, MAX_COUNT)
    _check_count("mark", sample.mark, MAX_INT32)
    compute, waiting = sample.compute, sample.waiting
    spent = (
        ("compute.forward", compute.forward),
        ("compute.backward", compute.backward),
        ("compute.optimizer", compute.optimizer),
        ("compute.data", compute.data),
        ("waiting.tensor", waiting.tensor),
        ("waiting.pipeline", waiting.pipeline),
        ("waiting.gradient", waiting.gradient),
        ("waiting.vote", waiting.vote),
    )
    for name, seconds in spent:
        if not 0.0 <= seconds <= MAX_SECONDS:
            _refuse(name, seconds, MAX_SECONDS)
    check_micro_batches(sample.micro_batches)
    check_micro_batches(sample.kept_micro_batches)
    check_position(sample.position)


def check_micro_batches(micro_batches: Sequence[MicroBatchShape]) -> None:
    """Returns if a sample can have had these.

    Raises:
        HostileRecordError: It cannot.
    """
    if len(micro_batches) > MAX_MICRO_BATCHES:
        raise HostileRecordError("size", f"{len(micro_batches)} micro-batches, at most {MAX_MICRO_BATCHES}")
    for each in micro_batches:
        if each.tokens < 0 or each.index < 0:
            _refuse("micro_batch.tokens", min(each.tokens, each.index), MAX_COUNT)
        if not 0.0 <= each.sum_of_squares <= MAX_SQUARES:
            _refuse("micro_batch.sum_of_squares", each.sum_of_squares, MAX_SQUARES)


def check_position(position: PositionShape) -> None:
    """Returns if a rank can hold this share of a model.

    Raises:
        HostileRecordError: It cannot.
    """
    if min(position.replica, position.stage, position.shard) < 0:
        _refuse("position", min(position.replica, position.stage, position.shard), MAX_RANK)
    _check_between("position.forward_flops_per_token", position.forward_flops_per_token, MAX_FLOPS)
    _check_between("position.forward_flops_per_squared_length", position.forward_flops_per_squared_length, MAX_FLOPS)
    _check_between("position.backward_multiple", position.backward_multiple, MAX_BACKWARD_MULTIPLE)


def check_progress(progress: ProgressShape) -> None:
    """Returns if a progress report can have been made.

    Raises:
        HostileRecordError: It cannot.
    """
    _check_between("progress.at_unix_seconds", progress.at_unix_seconds, MAX_UNIX_SECONDS)
    _check_between("progress.seconds_in_operation", progress.seconds_in_operation, MAX_UNIX_SECONDS)
    # A process that has not begun its first iteration may say -1.
    _check_count("progress.iteration", progress.iteration + 1, MAX_COUNT)
    _check_count("progress.epoch", progress.epoch + 1, MAX_COUNT)
    _check_text("progress.operation", progress.operation)
    if len(progress.waiting_for) > MAX_RANK:
        raise HostileRecordError("size", f"waiting for {len(progress.waiting_for)} ranks, at most {MAX_RANK}")


def _check_between(name: str, value: float, highest: float) -> None:
    if not 0.0 <= value <= highest:  # also refuses NaN
        _refuse(name, value, highest)


def _check_count(name: str, value: int, highest: int) -> None:
    if not 0 <= value <= highest:
        _refuse(name, value, highest)


def _check_text(name: str, value: str) -> None:
    if len(value) > MAX_TEXT_CHARACTERS:
        raise HostileRecordError("size", f"{name} has {len(value)} characters, at most {MAX_TEXT_CHARACTERS}")
    if "\0" in value:
        raise HostileRecordError("text", f"{name} contains a zero character")


def _refuse(name: str, value: float, highest: float) -> None:
    raise HostileRecordError("value", f"{name} = {value!r} is not within 0 and {highest:g}")
