"""From recorded messages to the observations that the detector reads.

Observations are what it reads. Records go through the telemetry service's own rules first; the clock is the newest time
that any record so far has named, so frames close and silence counts as it did live.
"""

from collections.abc import Iterable, Iterator, Sequence

from evenkeel.contracts.topics import OBSERVATIONS
from evenkeel.offline.errors import RecordingError
from evenkeel.offline.samples_file import Message
from evenkeel.offline.samples_order import newest_seconds
from evenkeel.offline.skipped import Skipped
from evenkeel.services.common.kafka import ConsumedRecord, Partition, RejectedRecordError
from evenkeel.services.detector.adapters.observation_codec import decode_observations
from evenkeel.services.detector.domain.observation import Observation
from evenkeel.services.telemetry.adapters.observation_codec import observation_record
from evenkeel.services.telemetry.adapters.record_decoder import event_from_proto, newest_progress_of, samples_of
from evenkeel.services.telemetry.domain.frames import Outcome
from evenkeel.services.telemetry.domain.job_stream import JobStream
from evenkeel.services.telemetry.domain.observed import Numbered
from evenkeel.services.telemetry.domain.validate import HostileRecordError, check_record
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

_LAST_FRAMES_SECONDS = 3600.0
_LEFT_OUT = {
    Outcome.DUPLICATE: ("repeated", "was read before"),
    Outcome.LATE: ("late", "comes after its frame was closed: it was read before, or is not in the order of the topic"),
    Outcome.STALE: ("stale", "is of a process that a later one has replaced"),
}
_NOWHERE = Partition(OBSERVATIONS.name, 0)


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
            if isinstance(message, pb.Observation):
                yield from _decoded(message.job_id, message.SerializeToString())
            else:
                yield from streams.take(message, number)
        except (RejectedRecordError, HostileRecordError) as error:
            if skipped is None:
                raise RecordingError(f"message {number} cannot be used: {error}") from error
            skipped.add(error.word if isinstance(error, HostileRecordError) else error.error, str(error))
    yield from streams.end()


class _Streams:
    """The telemetry service's rules for each job of a recording."""

    def __init__(self, skipped: Skipped | None) -> None:
        self._skipped = skipped
        self._streams: dict[str, JobStream] = {}
        self._now: dict[str, float] = {}
        self._last: dict[str, int] = {}

    def take(self, record: pb.Record, number: int) -> Iterator[Observation]:
        check_record(record, key=record.job_id.encode())
        job_id = record.job_id
        stream = self._streams.setdefault(job_id, JobStream(job_id))
        now = self._now[job_id] = max(self._now.get(job_id, 0.0), newest_seconds(record))
        numbered = stream.tick(now)
        if record.rank >= 0 and (record.samples or record.progress):
            stream.heard(record.rank, record.incarnation, now)
        for event in record.events:
            numbered += stream.event(event_from_proto(event), now)
        outcomes = stream.frames.outcomes
        for sample in samples_of(record, offset=number):
            before = {outcome: outcomes[outcome] for outcome in _LEFT_OUT}
            numbered += stream.sample(sample, now)
            for outcome, (word, problem) in _LEFT_OUT.items():
                if self._skipped is not None and outcomes[outcome] > before[outcome]:
                    self._skipped.add(
                        word, f"the sample of rank {sample.rank}, iteration {sample.iteration}, {problem}"
                    )
        progress = newest_progress_of(record)
        if progress is not None:
            stream.progress(progress, now)
        yield from self._observations(job_id, numbered)

    def end(self) -> Iterator[Observation]:
        """The frames that were still open when the recording ended; silence after its end is nobody's."""
        for job_id, stream in self._streams.items():
            now = self._now[job_id] + _LAST_FRAMES_SECONDS
            closed = stream.frames.tick(now, known_seconds=now)
            first = self._last.get(job_id, -1) + 1
            yield from self._observations(
                job_id, [Numbered(sequence=first + place, observed=frame) for place, frame in enumerate(closed)]
            )

    def _observations(self, job_id: str, numbered: Iterable[Numbered]) -> Iterator[Observation]:
        for each in numbered:
            self._last[job_id] = each.sequence
            yield from _decoded(job_id, observation_record(job_id, each, input_offset=0).value or b"")


def _decoded(job_id: str, value: bytes) -> Sequence[Observation]:
    record = ConsumedRecord(partition=_NOWHERE, offset=0, timestamp_seconds=0.0, key=job_id.encode(), value=value)
    return decode_observations(record).observations
