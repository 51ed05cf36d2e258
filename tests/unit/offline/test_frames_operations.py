"""Frames become operations whose replay takes as long as the iterations did, and that say who is to blame."""

import pytest
from evenkeel.telemetry.v1 import telemetry_pb2 as pb

from attribution import analyze
from benchmarks.detection.kinds import kind_trace
from benchmarks.detection.traces import Trace, make_trace
from cli.why import answer
from offline.errors import RecordingError
from offline.frames_operations import operations_of, slowest_shards
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
