"""The pure parts of the emit path."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.contracts.batches import read_batches
from evenkeel.contracts.columns import (
    HAS_CPU,
    HAS_DEVICE,
    HAS_FLOPS,
    HAS_INPUT,
    HAS_LOSS,
    HAS_NORM,
    HAS_QUEUED,
    HAS_USAGE,
    PRESENT,
)
from evenkeel.layouts.ranks.traffic import MAX_STAMPS
from evenkeel.services.telemetry.domain.validate import check_batches
from evenkeel.telemetry.v2 import batch_pb2
from evenkeel.telemetry.v2 import process_pb2 as pb
from evenkeel.trainer_sdk.emit.batch import BatchBuilder, Source
from evenkeel.trainer_sdk.emit.left_value import LeftValue, number
from evenkeel.trainer_sdk.emit.measured import Listed, Measured, Place, Stamps
from evenkeel.trainer_sdk.emit.progress import ProgressMark, ProgressReports
from evenkeel.trainer_sdk.emit.readings import HostReadings, Reading


def test_batches_are_numbered_and_say_who_where_and_what_was_dropped() -> None:
    builder = BatchBuilder(Source(job_id="job", rank=3, incarnation=2, node="node-1", device="gpu-0"))
    [first] = builder.build(measured=[Measured(iteration=1), Measured(iteration=2)])
    [second] = builder.build(
        progress=pb.Progress(iteration=3), readings=[Reading(9.0, 1.0, 2.0, 3.0, 4.0)], num_dropped=7
    )
    read = read_batches(batch_pb2.Batch.FromString(first.SerializeToString() + second.SerializeToString()))
    assert read.sequence.tolist() == [0, 1]
    assert read.iteration.tolist() == [1, 2]
    assert read.num_dropped.tolist() == [0, 7]
    assert (read.job_id, read.node, read.device) == (("job",) * 2, ("node-1",) * 2, ("gpu-0",) * 2)
    assert (read.rank.tolist(), read.incarnation.tolist()) == ([3, 3], [2, 2])
    assert (read.num_progress.tolist(), second.progress[0].iteration) == ([0, 1], 3)
    assert (read.throttled_seconds.tolist(), read.reading_process_of.tolist()) == ([1.0], [1])


COUNT = st.integers(0, 9)
PLACES = [Place(), Place(epoch=1, forward_flops_per_token=2.0), Place(epoch=1, stage=1, forward_flops_per_token=2.0)]
MEASURED = st.builds(
    Measured,
    iteration=st.integers(0, 2**40),
    wall_seconds=st.floats(0, 100, width=32),
    forward_seconds=st.floats(0, 100, width=32),
    input_seconds=st.none() | st.floats(0, 100, width=32),
    cpu_seconds=st.none() | st.floats(0, 100, width=32),
    queued_seconds=st.none() | st.floats(0, 100, width=32),
    device_seconds=st.none() | st.floats(0, 100, width=32),
    process_cpu_seconds=st.none() | st.floats(0, 100, width=32),
    loss=st.none() | st.floats(-9, 9) | st.floats(-9, 9).map(LeftValue),
    gradient_norm=st.none() | st.floats(0, 9),
    place=st.sampled_from(PLACES),
    listed=st.lists(
        st.builds(Listed, st.integers(0, 9), st.integers(0, 9), st.floats(0, 9), st.booleans()), max_size=3
    ),
)
FLAGS = {
    "loss": HAS_LOSS,
    "gradient_norm": HAS_NORM,
    "input_seconds": HAS_INPUT,
    "cpu_seconds": HAS_CPU,
    "queued_seconds": HAS_QUEUED,
    "device_seconds": HAS_DEVICE,
    "process_cpu_seconds": HAS_USAGE,
}


@given(measured=st.lists(MEASURED, max_size=8))
def test_what_was_measured_is_read_back_as_it_was_and_what_was_not_has_no_flag(measured: list[Measured]) -> None:
    batches = BatchBuilder(Source(job_id="job", rank=0)).build(measured=measured)
    read = read_batches(batch_pb2.Batch.FromString(b"".join(batch.SerializeToString() for batch in batches)))
    assert read.iteration.tolist() == [each.iteration for each in measured]
    for row, each in enumerate(measured):
        owner = read.process_of[row]
        assert (read.epoch[owner], read.stage[owner]) == (each.place.epoch, each.place.stage)
        assert bool(read.flags[row] & HAS_FLOPS) == (each.place.forward_flops_per_token is not None)
        assert read.flags[row] & PRESENT
        for name, flag in FLAGS.items():
            value = number(getattr(each, name), name)
            assert bool(read.flags[row] & flag) == (value is not None)
            assert getattr(read, name)[row] == (value or 0.0)
        assert (read.wall_seconds[row], read.forward_seconds[row]) == (each.wall_seconds, each.forward_seconds)
    assert read.listed_tokens.tolist() == [one.tokens for each in measured for one in each.listed]
    assert read.listed_kept.tolist() == [one.kept for each in measured for one in each.listed]
    check_batches(read)


def test_events_say_where_the_process_runs_as_far_as_the_sender_knows() -> None:
    rank = BatchBuilder(Source(job_id="job", rank=3, node="node-1", device="gpu-0"))
    [batch] = rank.build(events=[pb.ProcessEvent(rank=3), pb.ProcessEvent(rank=4)])
    told = batch.events
    assert [(event.node, event.device) for event in told] == [("node-1", "gpu-0"), ("", "")]
    launcher = BatchBuilder(Source(job_id="job", rank=-1, node="node-1"))
    [batch] = launcher.build(events=[pb.ProcessEvent(rank=3), pb.ProcessEvent(rank=4, node="node-2")])
    told = batch.events
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
        Stamps(batch_pb2.CHANNEL_KIND_ACTIVATION_SENT, 1, 2, [10.001, 10.002], [], [5, 6]),
        Stamps(batch_pb2.CHANNEL_KIND_GRADIENT_RECEIVED, 1, 2, [10.003], [0.5], [7]),
        Stamps(batch_pb2.CHANNEL_KIND_COLLECTIVE, 99, 4, [10.0 + k for k in range(20)], [0.25] * 20, [8] * 20),
    ]
    measured = Measured(iteration=1, channels=channels, began_seconds=10.0)
    [batch] = BatchBuilder(Source(job_id="job", rank=0)).build(measured=[measured])
    read = read_batches(batch)
    assert read.channel_party.tolist() == [1, 1, 99]
    assert read.channel_num_operations.tolist() == [2, 1, 20]
    assert read.channel_num_stamped.tolist() == [2, 1, MAX_STAMPS]
    assert read.channel_bytes.tolist() == [11, 7, 160]
    assert read.stamp_entered_microseconds.tolist() == [1000, 2000, 3000, *[0] * MAX_STAMPS]
    assert read.stamp_took_microseconds.tolist() == [0, 0, 500_000, *[250_000] * MAX_STAMPS]
    assert read.stamp_bytes.tolist() == [0, 0, 7, *[8] * MAX_STAMPS]


class Host:
    """The kernel's files of a made-up host."""

    def __init__(self, folder: Path, *, version: int) -> None:
        self.proc, self.groups, self.version = folder / "proc", folder / "groups", version
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "pressure").mkdir()
        kind, options = ("cgroup", "rw,cpu,cpuacct") if version == 1 else ("cgroup2", "rw")
        mounted = f"30 25 0:26 / {self.groups} rw,relatime shared:9 - {kind} {kind} {options}\n"
        (self.proc / "self" / "mountinfo").write_text(f"25 1 0:1 / / rw - ext4 /dev/root rw\n{mounted}")
        for name, total in (("cpu", 2_000_000), ("memory", 0), ("io", 500_000)):
            line = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0.00 total=7\n"
            (self.proc / "pressure" / name).write_text(line)

    def throttled(self, group: str, seconds: float) -> None:
        folder = self.groups / group
        folder.mkdir(parents=True, exist_ok=True)
        word = f"throttled_time {round(seconds * 1e9)}" if self.version == 1 else f"throttled_usec {seconds * 1e6:.0f}"
        (folder / "cpu.stat").write_text(f"nr_periods 9\nnr_throttled 4\n{word}\nnr_bursts 0\n")

    def moved_to(self, group: str) -> None:
        line = f"4:cpu,cpuacct:/{group}\n0::/\n" if self.version == 1 else f"0::/{group}\n"
        (self.proc / "self" / "cgroup").write_text(f"9:memory:/elsewhere\n{line}")


@pytest.mark.parametrize("version", [1, 2])
def test_throttling_is_that_of_all_groups_around_a_process_also_after_it_moved(tmp_path: Path, version: int) -> None:
    host = Host(tmp_path, version=version)
    for group, seconds in (("", 0.0), ("pod", 100.0), ("pod/one", 7.0), ("pod/two", 50.0)):
        host.throttled(group, seconds)
    host.moved_to("pod/one")
    readings = HostReadings(host.proc)
    assert readings.take(10.0, 1000.0) == [Reading(1000.0, 0.0, 2.0, 0.0, 0.5)]
    host.throttled("pod/one", 7.5)
    assert readings.take(10.1, 1000.1) == [], "not looked at"
    host.throttled("pod", 102.0)
    host.throttled("pod/two", 90.0)
    assert readings.take(10.3, 1000.3) == [Reading(1000.3, pytest.approx(2.5), 2.0, 0.0, 0.5)]
    host.moved_to("pod/two")
    assert readings.take(12.0, 1002.0) == [Reading(1002.0, pytest.approx(2.5), 2.0, 0.0, 0.5)]
    host.throttled("pod/two", 90.25)
    assert readings.take(12.9, 1002.9) == [Reading(1002.9, pytest.approx(2.75), 2.0, 0.0, 0.5)]


def test_what_is_not_throttled_is_told_once_a_second_and_what_is_begins_where_it_was_looked_at_last(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path, version=2)
    host.throttled("job", 3.0)
    host.moved_to("job")
    readings = HostReadings(host.proc)
    told = [len(readings.take(each / 4, each / 4)) for each in range(9)]
    assert sum(told) == 3
    assert readings.take(2.3, 2.3) == []
    host.throttled("job", 3.1)
    assert [each[:2] for each in readings.take(2.6, 2.6)] == [(2.3, 0.0), (2.6, pytest.approx(0.1))]
    host.throttled("job", 3.2)
    assert [each[:2] for each in readings.take(2.9, 2.9)] == [(2.9, pytest.approx(0.2))]
    assert [each[:2] for each in readings.take(3.2, 3.2)] == [(3.2, pytest.approx(0.2))], "it has ended"
    assert readings.take(3.5, 3.5) == []


def test_a_host_that_tells_nothing_is_not_read(tmp_path: Path) -> None:
    assert HostReadings(tmp_path / "none").take(0.0, 0.0) == []
