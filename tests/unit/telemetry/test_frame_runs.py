"""Frames that close together are told in one record, which says what a record each would have said."""

import asyncio
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.contracts.unrolled import unrolled
from evenkeel.services.common.kafka import FetchedRecords
from evenkeel.services.telemetry.adapters.observation_codec import observation_record, observation_records
from evenkeel.services.telemetry.adapters.record_batch import RecordBatchDecoder
from evenkeel.services.telemetry.adapters.run_writer import MOST_SAMPLES
from evenkeel.services.telemetry.domain.job_stream import JobStream
from evenkeel.services.telemetry.domain.observed import Numbered
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from tests.unit.telemetry.frame_reading import sample_in, without_key
from tests.unit.telemetry.handled import PARTITION, Service
from tests.unit.telemetry.test_record_batch import consumed

seconds = st.sampled_from([0.0, 0.5, 1.25])
few = st.integers(0, 2)


@st.composite
def iterations(draw: st.DrawFn, num_ranks: int) -> list[pb.Sample]:
    """One sample a rank; most of what may differ does so seldom, as in a real job."""
    lists = [
        [
            pb.MicroBatch(index=index, tokens=draw(few), sum_of_squares=draw(seconds))
            for index in range(draw(st.sampled_from([2, 2, 2, 0, 3])))
        ]
        for _ in range(draw(st.integers(1, 2)))
    ]
    odd = draw(st.sampled_from([0, 0, 0, 1]))
    return [
        pb.Sample(
            wall_seconds=draw(seconds),
            started_at_unix_seconds=draw(seconds),
            compute=pb.ComputeSeconds(forward=draw(seconds), data=0.25),
            micro_batches=lists[rank % len(lists)],
            position=pb.Position(stage=rank, shard=odd, forward_flops_per_token=1e9),
            loss=draw(st.sampled_from([None, 0.0, 2.0])),
            gradient_norm=1.0,
            mark=draw(st.sampled_from([0, 0, 0, 1])),  # type: ignore[arg-type]
            traffic=pb.Traffic(kinds=[5]) if draw(st.integers(0, 40)) == 7 else None,
        )
        for rank in range(num_ranks)
    ]


def records_of(job: Sequence[Sequence[pb.Sample]]) -> list[pb.Record]:
    records = []
    for iteration, samples in enumerate(job):
        for rank, sample in enumerate(samples):
            sample.iteration = iteration
            record = pb.Record(job_id="job", rank=rank, node=f"node-{rank // 2}", device=f"gpu-{rank % 2}")
            record.samples.append(sample)
            record.sequence, record.incarnation = iteration, int(rank == 1)
            records.append(record)
    return records


def numbered_of(records: Sequence[pb.Record]) -> list[Numbered]:
    """What is observed of records that come at once, after the first iteration's, which come alone."""
    stream, decoder, numbered = JobStream("job"), RecordBatchDecoder(), list[Numbered]()
    first = max(record.rank for record in records) + 1
    for part in (records[:first], records[first : 2 * first], records[2 * first :]):
        raw = [consumed(each.SerializeToString(), offset) for offset, each in enumerate(part)]
        arrived = decoder.decode(FetchedRecords.of(PARTITION, raw))
        assert not arrived.rejections
        for run in arrived.runs:
            numbered += stream.records(
                run.numbers[:, 0:2], run.num_samples, [], arrived.block, run.first_row, run.stop_row, 1000.0
            )
    return numbered


def told_of(numbered: Sequence[Numbered]) -> tuple[int, list[pb.Observation]]:
    """How many records tell it, and what they tell."""
    records = observation_records("job", numbered, input_offset=7)
    return len(records), [one for each in records for one in unrolled(pb.Observation.FromString(each.value or b""))]


@settings(max_examples=60, deadline=None)
@given(st.integers(4, 6).flatmap(lambda size: st.lists(iterations(size), min_size=4, max_size=12)))
def test_a_run_says_what_its_frames_would_have_said(job: list[list[pb.Sample]]) -> None:
    numbered = numbered_of(records_of(job))
    _, told = told_of(numbered)
    alone = [
        pb.Observation.FromString(observation_record("job", each, input_offset=7).value or b"") for each in numbered
    ]
    assert [one.sequence for one in told] == [one.sequence for one in alone] == list(range(len(numbered)))
    for one, other in zip(told, alone, strict=True):
        for name in ("iteration", "epoch", "closed_at_unix_seconds", "last_sample_at_unix_seconds"):
            assert getattr(one.frame, name) == getattr(other.frame, name)
        for name in ("ranks", "incarnations", "names", "node_of", "device_of"):
            assert getattr(one.frame.columns, name) == getattr(other.frame.columns, name)
        for place, sample in enumerate(job[one.frame.iteration]):
            assert sample_in(one.frame.columns, place) == sample_in(other.frame.columns, place) == without_key(sample)


def plain_job(num_iterations: int, num_ranks: int = 8) -> list[list[pb.Sample]]:
    return [
        [
            pb.Sample(wall_seconds=1.0 + iteration, micro_batches=[pb.MicroBatch(tokens=5 + iteration)])
            for _ in range(num_ranks)
        ]
        for iteration in range(num_iterations)
    ]


def test_frames_that_close_together_are_one_record_up_to_a_size() -> None:
    numbered = numbered_of(records_of(plain_job(MOST_SAMPLES // 8 + 100)))
    num_records, told = told_of(numbered)
    assert len(told) == MOST_SAMPLES // 8 + 100
    assert num_records <= 6


def test_another_place_begins_another_run() -> None:
    records = records_of(plain_job(40))
    for record in records[8 * 20 :]:
        record.node = "elsewhere"
    num_records, told = told_of(numbered_of(records))
    assert num_records <= 5
    nodes = [one.frame.columns.names[one.frame.columns.node_of[3]] for one in told if one.frame.columns.node_of]
    assert set(nodes[:15]) == {"node-1"}
    assert set(nodes[25:]) == {"elsewhere"}


def test_a_restart_repeats_nothing_that_a_run_has_said() -> None:
    async def scenario() -> None:
        service = Service()
        await service.handler.assigned([PARTITION])
        records = records_of(plain_job(30))
        await service._take(records[:8])
        await service._take(records[8:100])
        await service._take(records[100:])
        assert len(service.said.records) < 12
        newest = service.sent[-1]
        after = Service()
        after.said = service.said
        after.handler._tail = service.said
        await after.handler.assigned([PARTITION])
        await after._take(records)  # all of it is read again
        assert after.sent == []
        await after._take(records_of(plain_job(32))[8 * 30 :])
        assert [one.sequence for one in after.sent] == [newest.sequence + 1, newest.sequence + 2]
        assert [one.frame.iteration for one in after.sent] == [newest.frame.iteration + 1, newest.frame.iteration + 2]

    asyncio.run(scenario())
