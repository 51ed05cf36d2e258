"""Recorded messages in the order in which they were sent, where a file holds them in another.

A topic keeps a job's messages in order, and the detector counts on it. Files need not: somebody wrote a file a rank and
joined them, or sorted them by another column. Observations are numbered; a batch's place is its newest time. Repeats
stay where they belong.
"""

from collections.abc import Iterator
from pathlib import Path

from evenkeel.offline.samples.file import Message, job_of, read_messages
from evenkeel.offline.tables.skipped import Skipped
from evenkeel.telemetry.v2.batch_pb2 import Batch
from evenkeel.telemetry.v2.frames_pb2 import Observation

_FAR_BACK = 16
"""Iterations that a batch may come after later ones without being out of place: a rank may be late."""

_MOST_OUT_OF_PLACE = 0.02
_MOST_KNOWN = 1_000_000


def ordered_messages(path: Path, skipped: Skipped) -> tuple[Iterator[Message], tuple[str, ...]]:
    """The messages of a file, and what to say of their order.

    A file in order is read message by message, one that is not is held in memory as a whole. A pipe cannot be read
    twice: it is taken as it comes.

    Args:
        path: The file.
        skipped: Takes those that cannot be read.

    Raises:
        RecordingError: The file is no such recording.
    """
    if not path.is_file() or not _is_disordered(path):
        return read_messages(path, skipped), ()
    held = [(_place(message), skipped.place, message) for message in read_messages(path, skipped)]
    held.sort(key=lambda one: one[0])
    text = f"messages were not in the order in which they were sent: all {len(held)} sorted by "
    by = "number" if isinstance(held[0][2], Observation) else "time"
    return _placed(held, skipped), (text + by,)


def _placed(held: list[tuple[float, str, Message]], skipped: Skipped) -> Iterator[Message]:
    for _, place, message in held:
        skipped.place = place
        yield message


def _is_disordered(path: Path) -> bool:
    """More than now and then a message comes long after its turn, and not because it is repeated."""
    newest: dict[str, int] = {}
    seen: dict[str, set[tuple[int, int]]] = {}
    num_read = num_back = 0
    for message in read_messages(path, Skipped()):
        num_read += 1
        job_id = job_of(message)
        known = seen.setdefault(job_id, set())
        if isinstance(message, Observation):
            place, key, slack = message.sequence, (0, message.sequence), 0
        elif message.iteration:
            place = max(message.iteration)
            key, slack = (message.rank[0], place), _FAR_BACK
        else:
            continue
        num_back += place < newest.get(job_id, place) - slack and key not in known
        if len(known) >= _MOST_KNOWN:
            known.clear()
        known.add(key)
        newest[job_id] = max(newest.get(job_id, place), place)
    return num_back > _MOST_OUT_OF_PLACE * num_read


def _place(message: Message) -> float:
    """Where a message belongs among those of its job; across jobs any order will do."""
    if isinstance(message, Observation):
        return float(message.sequence)
    return newest_seconds(message)


def newest_seconds(batch: Batch) -> float:
    """The newest time that a batch names; 0.0 if it names none."""
    times = [sum(each) for each in zip(batch.started_at_unix_seconds, batch.wall_seconds, strict=False)]
    times += [progress.at_unix_seconds for progress in batch.progress]
    times += [event.at_unix_seconds for event in batch.events]
    return max(times, default=0.0)
