"""From what piled up to one ``Record``: pure, used by the background thread only."""

from collections.abc import Iterable
from dataclasses import dataclass

from evenkeel.telemetry.v1 import telemetry_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The process that emits: job, rank (-1 for a launcher), incarnation, and where it runs."""

    job_id: str
    rank: int
    incarnation: int = 0
    node: str = ""
    device: str = ""


class RecordBuilder:
    """Numbers records, so that a reader sees in the gaps what was dropped."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._sequence = 0

    def build(
        self,
        *,
        samples: Iterable[pb.Sample] = (),
        events: Iterable[pb.ProcessEvent] = (),
        progress: pb.Progress | None = None,
        num_dropped: int = 0,
    ) -> pb.Record:
        """The next record."""
        events = list(events)
        for event in events:
            self._say_where(event)
        record = pb.Record(
            job_id=self._source.job_id,
            rank=self._source.rank,
            incarnation=self._source.incarnation,
            sequence=self._sequence,
            num_dropped=num_dropped,
            node=self._source.node,
            device=self._source.device,
            samples=samples,
            events=events,
            progress=[] if progress is None else [progress],
        )
        self._sequence += 1
        return record

    def _say_where(self, event: pb.ProcessEvent) -> None:
        """A rank's own events carry its place; a launcher knows the node of its ranks, not their devices."""
        if event.rank == self._source.rank:
            event.node = event.node or self._source.node
            event.device = event.device or self._source.device
        elif self._source.rank < 0:
            event.node = event.node or self._source.node
