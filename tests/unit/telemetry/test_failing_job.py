"""A job whose samples cannot be joined, by a mistake of ours, ends nothing for the others."""

import pytest

from evenkeel.services.telemetry.domain import job_stream
from evenkeel.services.telemetry.domain.frames import FrameJoiner
from evenkeel.services.telemetry.domain.job_stream import JobStream
from evenkeel.services.telemetry.domain.observed import ArrivedEvent, ArrivedSample, ClosedFrame, EventKind
from evenkeel.services.telemetry.domain.sample_block import SampleBlock
from tests.unit.telemetry.handled import PARTITION, Service

JOBS = ("bad", "good")


class Failing(FrameJoiner):
    """Fails on iteration 7 if it has closed frames before, on 13 in any case, and on time alone after 20."""

    def add_rows(self, block: SampleBlock, first: int, stop: int, now_seconds: float) -> list[ClosedFrame]:
        iteration, names = int(block.iterations[first]), set(block.ranks[first:stop].tolist())
        if 9 in names and (iteration == 13 or (iteration == 7 and self.iteration_seconds > 0)):
            raise ValueError("math domain error")
        return super().add_rows(block, first, stop, now_seconds)

    def tick(self, now_seconds: float, *, known_seconds: float | None = None) -> list[ClosedFrame]:
        if self._closed == (0, 20) and self._members.incarnation(9) is not None:
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
    frames = {job: [one.frame.iteration for one in told[job] if one.HasField("frame")] for job in JOBS}
    assert frames["good"] == list(range(30))
    assert set(range(30)) - set(frames["bad"]) <= {6, 7, 12, 13, 20, 21}
    assert all(one.sequence < other.sequence for one, other in zip(told["bad"], told["bad"][1:], strict=False))
    assert {(one.record.key, one.error) for one in service.set_aside} == {(b"bad", "job_failed")}
    assert len(service.set_aside) == 2  # iteration 13 of both ranks
    assert service.registry.get_sample_value("evenkeel_telemetry_failures_total") == 4


class FailsOnce(FrameJoiner):
    """On the first death of which it hears."""

    num_failures = 0

    def gone(self, rank: int, incarnation: int, now_seconds: float) -> list[ClosedFrame]:
        if not FailsOnce.num_failures:
            FailsOnce.num_failures += 1
            raise KeyError(rank)
        return super().gone(rank, incarnation, now_seconds)


def test_a_death_on_which_a_stream_fails_is_passed_on_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_stream, "FrameJoiner", FailsOnce)
    stream, death = JobStream("job", first_sequence=5), ArrivedEvent(3.0, EventKind.DIED, 1, 0, b"")
    with pytest.raises(KeyError):
        stream.event(death, 3.0)
    again = stream.begun_anew([death], 3.0)
    assert [(one.sequence, one.observed) for one in again.event(death, 3.0)] == [(5, death)]
    third = again.begun_anew([], 4.0)
    assert third.event(death, 4.0) == []
    third.sample(ArrivedSample(1, 0, "n", "d", 0, 0, 1.0, 0, None), 5.0)
    assert third.watcher.num_ranks == 0
