"""Frames become operations whose replay takes as long as the iterations did, and that say who is to blame."""

import pytest
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

from attribution import analyze
from benchmarks.detection.kinds import kind_trace
from benchmarks.detection.traces import Trace, make_trace
from cli.why import answer
from offline.errors import RecordingError
from offline.frames_operations import operations_of, slowest_shards
from offline.rank_rows import rank_rows
from simulator.afflictions import Affliction

COUNT = 12


def frames(trace: Trace, first: int) -> list[pb.Frame]:
    return [one.frame for one in trace.observations()][first : first + COUNT]


def slow_run(percent: float = 50.0) -> tuple[Trace, list[pb.Frame]]:
    trace = make_trace(5, shape="4x2x2", slowdown_percent=percent, num_iterations=160)
    return trace, frames(trace, trace.faults[0].onset)


def test_the_replay_takes_as_long_as_the_iterations_did() -> None:
    _, slow = slow_run()
    rebuilt = operations_of(slow)
    assert analyze(rebuilt.operations).replayed_seconds == pytest.approx(rebuilt.wall_seconds, rel=0.02)
    assert len(rebuilt.iterations) == COUNT


def test_a_slow_rank_is_named_by_the_shard_that_it_is() -> None:
    trace, slow = slow_run()
    rebuilt = operations_of(slow)
    said = answer("job", rebuilt, analyze(rebuilt.operations), slowest_shards(slow))
    assert said["causes"] == ("slow_workers",)
    assert said["ill_ranks"] == list(trace.faults[0].ranks)
    assert said["by_rank"][0]["name"] == str(trace.faults[0].ranks[0])
    assert said["worker_share"] > 0.5


def test_frames_in_columns_say_the_same_as_frames_in_entries() -> None:
    _, slow = slow_run()
    for frame in slow:
        assert list(rank_rows(in_columns(frame))) == list(rank_rows(frame))


def in_columns(frame: pb.Frame) -> pb.Frame:
    """The same frame as the telemetry service writes it: columns of zeros left out, micro-batches once a replica."""
    found = pb.Frame(iteration=frame.iteration, epoch=frame.epoch)
    columns, lists = found.columns, {}
    for entry in frame.entries:
        sample = entry.sample
        key = tuple((one.index, one.tokens, one.sum_of_squares) for one in sample.micro_batches)
        columns.workload_of.append(lists.setdefault(key, len(lists)))
        for name, value in (
            ("ranks", entry.rank),
            ("wall_seconds", sample.wall_seconds),
            ("forward_seconds", sample.compute.forward),
            ("backward_seconds", sample.compute.backward),
            ("optimizer_seconds", sample.compute.optimizer),
            ("data_seconds", sample.compute.data),
            ("tensor_wait_seconds", sample.waiting.tensor),
            ("pipeline_wait_seconds", sample.waiting.pipeline),
            ("gradient_wait_seconds", sample.waiting.gradient),
            ("vote_wait_seconds", sample.waiting.vote),
            ("marks", sample.mark),
            ("replicas", sample.position.replica),
            ("stages", sample.position.stage),
            ("shards", sample.position.shard),
            ("forward_flops_per_token", sample.position.forward_flops_per_token),
            ("forward_flops_per_squared_length", sample.position.forward_flops_per_squared_length),
        ):
            getattr(columns, name).append(value)
    for key in lists:
        columns.workload_sizes.append(len(key))
        for index, tokens, squares in key:
            columns.micro_batch_indexes.append(index)
            columns.micro_batch_tokens.append(tokens)
            columns.micro_batch_sums_of_squares.append(squares)
    for field in columns.DESCRIPTOR.fields:
        values = getattr(columns, field.name)
        if field.name not in ("ranks", "names", "traffic") and not any(values):
            columns.ClearField(field.name)
    return found


def test_a_heavy_last_stage_explains_the_slowdown_and_no_rank_is_ill() -> None:
    trace, _ = kind_trace(Affliction.STAGE_IMBALANCE, 1)
    found = analyze(operations_of(frames(trace, 60)).operations)
    assert found.last_stage_share > 0.5
    assert found.ill_ranks == ()


def test_input_has_a_share_of_its_own() -> None:
    _, slow = slow_run(10.0)
    for frame in slow:
        frame.entries[3].sample.compute.data = 1.5
    found = analyze(operations_of(slow).operations)
    assert {each.name: each.share for each in found.by_operation}["input"] > 0.5


def test_planned_pauses_missing_ranks_and_older_epochs_are_left_out() -> None:
    _, slow = slow_run()
    slow[0].entries[2].sample.mark = pb.MARK_EVALUATION
    slow[1].missing_ranks.append(7)
    for frame in slow[3:]:
        frame.epoch = 1
    rebuilt = operations_of(slow)
    assert (rebuilt.epoch, len(rebuilt.iterations), rebuilt.num_left_out) == (1, COUNT - 3, 3)


def test_without_a_plain_iteration_it_says_so() -> None:
    with pytest.raises(RecordingError, match="plain and complete"):
        operations_of([pb.Frame(iteration=1, missing_ranks=[0])])


def test_ranks_of_a_loop_that_names_no_positions_are_compared_with_one_another() -> None:
    found = []
    for iteration in range(COUNT):
        frame = pb.Frame(iteration=iteration)
        for rank in range(4):
            seconds = 0.16 if rank == 2 else 0.1
            sample = pb.Sample(iteration=iteration, wall_seconds=0.2, compute=pb.ComputeSeconds(forward=seconds))
            sample.micro_batches.add(index=0, tokens=1000)
            frame.entries.add(rank=rank, sample=sample)
        found.append(frame)
    rebuilt = operations_of(found)
    said = answer("job", rebuilt, analyze(rebuilt.operations), slowest_shards(found))
    assert said["num_workers"] == 4
    assert said["ill_ranks"] == [2]
    assert said["slowdown"] == pytest.approx(0.16 / 0.115, rel=0.01)
