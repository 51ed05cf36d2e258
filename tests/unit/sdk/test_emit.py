"""The pure parts of the emit path."""

import pytest

from evenkeel.layouts.traffic import MAX_STAMPS
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from evenkeel.trainer_sdk.emit.measured import Measured, Stamps
from evenkeel.trainer_sdk.emit.progress import ProgressMark, ProgressReports
from evenkeel.trainer_sdk.emit.record_builder import RecordBuilder, Source


def test_records_are_numbered_and_say_who_where_and_what_was_dropped() -> None:
    builder = RecordBuilder(Source(job_id="job", rank=3, incarnation=2, node="node-1", device="gpu-0"))
    first = builder.build(measured=[Measured(iteration=1), Measured(iteration=2)])
    second = builder.build(progress=pb.Progress(iteration=3), num_dropped=7)
    assert [first.sequence, second.sequence] == [0, 1]
    assert [sample.iteration for sample in first.samples] == [1, 2]
    assert (second.job_id, second.rank, second.incarnation, second.node, second.device, second.num_dropped) == (
        "job",
        3,
        2,
        "node-1",
        "gpu-0",
        7,
    )
    assert second.progress[0].iteration == 3


def test_events_say_where_the_process_runs_as_far_as_the_sender_knows() -> None:
    rank = RecordBuilder(Source(job_id="job", rank=3, node="node-1", device="gpu-0"))
    told = rank.build(events=[pb.ProcessEvent(rank=3), pb.ProcessEvent(rank=4)]).events
    assert [(event.node, event.device) for event in told] == [("node-1", "gpu-0"), ("", "")]
    launcher = RecordBuilder(Source(job_id="job", rank=-1, node="node-1"))
    told = launcher.build(events=[pb.ProcessEvent(rank=3), pb.ProcessEvent(rank=4, node="node-2")]).events
    assert [(event.node, event.device) for event in told] == [("node-1", ""), ("node-2", "")]


def test_the_mark_names_operation_iteration_and_epoch_and_counts_when_it_moved() -> None:
    mark = ProgressMark()
    assert mark.read()[:3] == (0, "starting", ())
    mark.begin_iteration(5, 2)
    mark.enter("forward")
    mark.enter("wait:tensor", (1, 3))
    read = mark.read()
    assert read._replace(reached_at_seconds=0.0) == (1, "wait:tensor", (1, 3), 0.0, 5, 2)
    assert mark.read() == read, "nothing was reached in between"
    mark.enter("wait:tensor", (1, 3))
    assert mark.read().number == 2, "the same operation once more is a move"


def reports_sent(reports: ProgressReports, mark: ProgressMark, until_seconds: float) -> list[pb.Progress]:
    start = mark.read().reached_at_seconds
    steps = [start + tick * 0.05 for tick in range(round(until_seconds / 0.05) + 1)]
    taken = [reports.take(now, 1000.0 + now) for now in steps]
    return [report for report in taken if report is not None]


def test_a_waiting_rank_is_reported_at_every_interval_with_how_long_it_has_waited() -> None:
    mark = ProgressMark()
    mark.enter("wait:pipeline", (4,))
    sent = reports_sent(ProgressReports(mark), mark, 1.0)
    assert len(sent) == pytest.approx(6, abs=1)
    assert list(sent[-1].waiting_for) == [4]
    assert sent[-1].seconds_in_operation == pytest.approx(1.0, abs=0.25)
    assert {report.operation_count for report in sent} == {1}


def test_a_rank_that_stands_still_without_waiting_is_reported_seldom_but_not_never() -> None:
    mark = ProgressMark()
    mark.enter("forward")
    assert len(reports_sent(ProgressReports(mark), mark, 3.02)) in (3, 4)


def test_a_moving_rank_is_reported_at_most_once_per_interval() -> None:
    mark = ProgressMark()
    reports = ProgressReports(mark)
    start = mark.read().reached_at_seconds
    sent = 0
    for tick in range(200):
        mark.enter("forward")
        sent += reports.take(start + tick * 0.01, 0.0) is not None
    assert sent in (10, 11)


def test_every_channel_has_the_stamps_that_its_kind_needs() -> None:
    channels = [
        Stamps(pb.CHANNEL_KIND_ACTIVATION_SENT, 1, 2, [10.001, 10.002], [], [5, 6]),
        Stamps(pb.CHANNEL_KIND_GRADIENT_RECEIVED, 1, 2, [10.003], [0.5], [7]),
        Stamps(pb.CHANNEL_KIND_COLLECTIVE, 99, 4, [10.0 + k for k in range(20)], [0.25] * 20, [8] * 20),
    ]
    measured = Measured(iteration=1, channels=channels, began_seconds=10.0)
    message = RecordBuilder(Source(job_id="job", rank=0)).build(measured=[measured]).samples[0].traffic
    assert list(message.parties) == [1, 1, 99]
    assert list(message.num_operations) == [2, 1, 20]
    assert list(message.num_stamped) == [2, 1, MAX_STAMPS]
    assert list(message.num_bytes) == [11, 7, 160]
    assert list(message.entered_microseconds) == [1000, 2000, 3000]
    assert list(message.took_microseconds) == [500_000, *[250_000] * MAX_STAMPS]
    assert list(message.stamped_bytes) == [7, *[8] * MAX_STAMPS]
