"""From recorded messages to the observations that the detector reads.

Observations are what it reads. Records go through the telemetry service's own rules first; the clock is the newest time
that any record so far has named, so frames close and silence counts as it did live.
"""

from collections.abc import Iterable, Iterator, Sequence

from evenkeel.contracts.topics import BATCHES, FRAMES
from evenkeel.offline.errors import RecordingError
from evenkeel.offline.samples.file import Message, job_of
from evenkeel.offline.samples.order import newest_seconds
from evenkeel.offline.tables.skipped import Skipped
from evenkeel.services.common.kafka import ConsumedRecord, Partition, RejectedRecordError
from evenkeel.services.detector.adapters.observation_codec import decode_observations
from evenkeel.services.detector.domain.frames.observation import Observation
from evenkeel.services.telemetry.adapters.batch_reader import read_fetch
from evenkeel.services.telemetry.adapters.observation_writer import observation_records
from evenkeel.services.telemetry.domain.job_stream import JobStream
from evenkeel.services.telemetry.domain.joiner import Outcome
from evenkeel.services.telemetry.domain.observed import Numbered
from evenkeel.telemetry.v2.batch_pb2 import Batch
from evenkeel.telemetry.v2.frames_pb2 import Observation as Told

_LAST_FRAMES_SECONDS = 3600.0
_LEFT_OUT = {
    Outcome.DUPLICATE: ("repeated", "was read before"),
    Outcome.LATE: ("late", "comes after its frame was closed: it was read before, or is not in the order of the topic"),
    Outcome.STALE: ("stale", "is of a process that a later one has replaced"),
}


def observations_of(messages: Iterable[Message], skipped: Skipped | None = None) -> Iterator[Observation]:
    """The observations in, or made from, recorded messages; in order.

    Args:
        messages: The messages.
        skipped: Takes those that make no sense; None: the first one is an error.

    Raises:
        RecordingError: A message makes no sense, and there is no ``skipped``; names it.
    """
    streams = _Streams(skipped)
    for number, message in enumerate(messages, start=1):
        try:
            if isinstance(message, Told):
                yield from _decoded(message.job_id, message.SerializeToString())
            else:
                yield from streams.take(message, number)
        except RejectedRecordError as error:
            if skipped is None:
                raise RecordingError(f"message {number} cannot be used: {error}") from error
            skipped.add(error.error, str(error))
    yield from streams.end()


class _Streams:
    """The telemetry service's rules for each job of a recording."""

    def __init__(self, skipped: Skipped | None) -> None:
        self._skipped = skipped
        self._streams: dict[str, JobStream] = {}
        self._now: dict[str, float] = {}
        self._next: dict[str, int] = {}

    def take(self, batch: Batch, number: int) -> Iterator[Observation]:
        job_id = job_of(batch)
        arrived, rejections = read_fetch(
            [_consumed(BATCHES.name, job_id, batch.SerializeToString(), number)], _as_recorded
        )
        for rejection in rejections:
            raise RejectedRecordError(rejection.error, rejection.reason)
        stream = self._streams.setdefault(job_id, JobStream(job_id))
        now = self._now[job_id] = max(self._now.get(job_id, 0.0), newest_seconds(batch))
        numbered = stream.tick(now)
        outcomes = stream.frames.outcomes
        before = {outcome: outcomes[outcome] for outcome in _LEFT_OUT}
        for each in arrived:
            numbered += stream.take(each.arrived, now)
        for outcome, (word, problem) in _LEFT_OUT.items():
            for _ in range(outcomes[outcome] - before[outcome] if self._skipped is not None else 0):
                assert self._skipped is not None
                self._skipped.add(
                    word, f"the sample of rank {batch.rank[0]}, iteration {max(batch.iteration)}, {problem}"
                )
        yield from self._observations(job_id, numbered)

    def end(self) -> Iterator[Observation]:
        """The frames that were still open when the recording ended; silence after its end is nobody's."""
        for job_id, stream in self._streams.items():
            now = self._now[job_id] + _LAST_FRAMES_SECONDS
            numbered, sequence = [], self._next.get(job_id, 0)
            for frames in stream.frames.tick(now, known_seconds=now):
                numbered.append(Numbered(sequence, frames))
                sequence += len(frames)
            yield from self._observations(job_id, numbered)

    def _observations(self, job_id: str, numbered: Iterable[Numbered]) -> Iterator[Observation]:
        for record in observation_records(job_id, list(numbered), input_offset=0):
            for observation in _decoded(job_id, record.value or b""):
                self._next[job_id] = observation.sequence + 1
                yield observation


def _decoded(job_id: str, value: bytes) -> Sequence[Observation]:
    return decode_observations(_consumed(FRAMES.name, job_id, value, 0)).observations


def _as_recorded(_: bytes, value: bytes) -> bytes:
    """A recording is believed whoever signed it: it outlives its job's key, and moves nothing."""
    return value


def _consumed(topic: str, job_id: str, value: bytes, offset: int) -> ConsumedRecord:
    return ConsumedRecord(
        partition=Partition(topic, 0), offset=offset, timestamp_seconds=0.0, key=job_id.encode(), value=value
    )
