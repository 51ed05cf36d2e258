"""A job whose samples cannot be joined, by a mistake of ours, ends nothing for the others."""

import pytest

from evenkeel.contracts.batches import Batches
from evenkeel.contracts.frames import Frames
from evenkeel.numeric.arrays import Ints
from evenkeel.services.telemetry.domain import job_stream
from evenkeel.services.telemetry.domain.job_stream import JobStream
from evenkeel.services.telemetry.domain.joiner import FrameJoiner
from evenkeel.services.telemetry.domain.observed import EventKind
from evenkeel.telemetry.v2 import batch_pb2 as pb
from tests.unit.telemetry.handled import PARTITION, Service
from tests.unit.telemetry.samples import arrived, event, sample

JOBS = ("bad", "good")


class Failing(FrameJoiner):
    """Fails on iteration 7 if it has closed frames before, on 13 in any case, and on time alone after 20."""

    def add(self, batches: Batches, offsets: Ints, now_seconds: float) -> list[Frames]:
        iteration, ranks = int(batches.iteration[0]), set(batches.rank.tolist())
        if 9 in ranks and (iteration == 13 or (iteration == 7 and self.iteration_seconds > 0)):
            raise ValueError("math domain error")
        return super().add(batches, offsets, now_seconds)

    def tick(self, now_seconds: float, *, known_seconds: float | None = None) -> list[Frames]:
        if self._closed == (0, 20) and 9 in self._tables[0].rank:
            raise ZeroDivisionError
        return super().tick(now_seconds, known_seconds=known_seconds)


@pytest.mark.asyncio
async def test_a_job_that_cannot_be_joined_begins_anew_and_no_other_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_stream, "FrameJoiner", Failing)
    service = Service()
    await service.handler.assigned([PARTITION])
    for iteration in range(30):
        await service.iteration((0, 0, iteration), (1, 0, iteration), jobs=["good"])
        await service.iteration((8, 0, iteration), (9, 0, iteration), jobs=["bad"])
    await service.handler.checkpoint({PARTITION: service.offset})
    told = {job: [one for one in service.sent if one.job_id == job] for job in JOBS}
    frames = {job: [one.iteration for one in service.frames(job)] for job in JOBS}
    assert frames["good"] == list(range(30))
    assert set(range(30)) - set(frames["bad"]) <= {6, 7, 12, 13, 20, 21}
    assert all(one.sequence < other.sequence for one, other in zip(told["bad"], told["bad"][1:], strict=False))
    assert {(one.record.key, one.error) for one in service.set_aside} == {(b"bad", "job_failed")}
    assert [pb.Batch.FromString(one.record.value or b"").iteration[0] for one in service.set_aside] == [13]
    assert service.registry.get_sample_value("evenkeel_telemetry_failures_total") == 5


class FailsOnce(FrameJoiner):
    """On the first death of which it hears."""

    num_failures = 0

    def gone(self, rank: int, incarnation: int, now_seconds: float) -> list[Frames]:
        if not FailsOnce.num_failures:
            FailsOnce.num_failures += 1
            raise KeyError(rank)
        return super().gone(rank, incarnation, now_seconds)


def test_a_death_on_which_a_stream_fails_is_passed_on_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_stream, "FrameJoiner", FailsOnce)
    stream, death = JobStream("job", first_sequence=5), event(EventKind.DIED, 1)
    with pytest.raises(KeyError):
        stream.take(arrived(events=[death]), 3.0)
    again = stream.begun_anew([death], 3.0)
    assert again.take(arrived(events=[death]), 3.0) == [(5, death)]
    third = again.begun_anew([], 4.0)
    assert third.take(arrived(events=[death]), 4.0) == []
    third.take(arrived([sample(1, 0)]), 5.0)
    assert third.watcher.all_ended
