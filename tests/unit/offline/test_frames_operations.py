"""Frames become operations whose replay takes as long as the iterations did, and that say who is to blame."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.detection.kinds import kind_trace
from benchmarks.detection.traces import Trace, make_trace
from evenkeel.attribution import analyze
from evenkeel.cli.why import answer
from evenkeel.layouts.instructions import Instruction, Op
from evenkeel.layouts.layout import Layout, Replica, Stage, uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.layouts.orders import Turn
from evenkeel.layouts.routes import Route
from evenkeel.layouts.timeline import timeline_of
from evenkeel.offline.errors import RecordingError
from evenkeel.offline.frames_operations import operations_of, slowest_shards
from evenkeel.offline.job_shape import JobShape
from evenkeel.offline.rank_rows import rank_rows
from evenkeel.simulator.afflictions import Affliction
from evenkeel.telemetry.v1 import telemetry_pb2 as pb
from tests.unit.layouts.strategies import ordered_replicas

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


def unequal(frames: list[pb.Frame], layers: dict[tuple[int, int], float], pace: dict[int, float]) -> list[pb.Frame]:
    """The frames of replicas that share their layers out so, with ranks that take so many times as long for theirs."""
    for frame in frames:
        for entry in frame.entries:
            position, compute = entry.sample.position, entry.sample.compute
            share = layers.get((position.replica, position.stage), 1.0)
            position.forward_flops_per_token *= share
            position.forward_flops_per_squared_length *= share
            factor = share * pace.get(entry.rank, 1.0)
            compute.forward *= factor
            compute.backward *= factor
    return frames


@pytest.mark.parametrize(
    ("pace", "ill"), [({}, []), ({4: 1.6}, [4]), ({0: 1.6}, [0])], ids=["nobody", "of the light stage", "of another"]
)
def test_replicas_that_share_their_layers_out_unequally_are_compared_by_their_work(
    pace: dict[int, float], ill: list[int]
) -> None:
    trace = make_trace(6, shape="4x2x2", num_iterations=60)
    shared_out = unequal(frames(trace, 20), {(1, 0): 0.7, (1, 1): 1.3}, pace)
    rebuilt = operations_of(shared_out)
    found = analyze(rebuilt.operations)
    said = answer("job", rebuilt, found, slowest_shards(shared_out))
    assert found.slowdown > 1.1
    assert said["ill_ranks"] == ill
    assert ("slow_workers" in found.causes) == bool(ill)


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


NUM_BLOCKS = 6
MODEL = ModelSpec(
    blocks=tuple([BlockCost(forward_flops_per_token=n + 1.0, forward_flops_per_squared_length=0.0) for n in range(6)])
)


def frames_under(layout: Layout, tokens: int = 100, epoch: int = 3) -> tuple[list[pb.Frame], float]:
    """Two iterations of a job that runs a layout, one rank a worker, and seconds of one; transfers take no time."""

    def seconds_of(replica: int, stage: int, instruction: Instruction) -> float:
        one = layout.replicas[replica].stages[stage]
        blocks = MODEL.blocks[one.first_block : one.stop_block]
        forward = sum(block.forward_flops(tokens, 0.0) for block in blocks) * 1e-3
        parts = {Op.FORWARD: 1.0, Op.BACKWARD: 2.0, Op.BACKWARD_INPUT: 1.0, Op.BACKWARD_WEIGHT: 1.0}
        return forward * parts[instruction.op]

    timeline, found = timeline_of(layout, seconds_of), []
    for iteration in range(2):
        frame = pb.Frame(iteration=iteration, epoch=epoch)
        for d, replica in enumerate(layout.replicas):
            for number, cell in enumerate(replica.cells):
                at = timeline.stages[d][number]
                sample = pb.Sample(iteration=iteration, epoch=epoch, wall_seconds=timeline.iteration_seconds)
                sample.position.replica, sample.position.stage = d, cell[0]
                sample.compute.forward, sample.compute.backward = at.busy_seconds / 3, at.busy_seconds * 2 / 3
                sample.waiting.pipeline = at.end_seconds - at.busy_seconds
                sample.waiting.gradient = timeline.iteration_seconds - at.end_seconds
                for index in layout.micro_batches_of(d):
                    sample.micro_batches.add(index=index, tokens=tokens)
                frame.entries.add(rank=replica.stages[cell[0]].ranks[0], sample=sample)
        found.append(frame)
    return found, timeline.iteration_seconds


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_ranks_with_several_stages_are_replayed_whatever_their_places_and_orders(data: st.DataObject) -> None:
    replica = data.draw(ordered_replicas(NUM_BLOCKS, [(0,), (1,), (2,)], max_quota=3))
    layout = Layout(num_blocks=NUM_BLOCKS, replicas=(replica,))
    recorded, seconds = frames_under(layout)
    rebuilt = operations_of(recorded, JobShape(epoch=3, layout=layout, model=MODEL))
    assert "stages a rank" in rebuilt.laid_along or max(map(len, replica.cells)) == 1
    assert analyze(rebuilt.operations).replayed_seconds == pytest.approx(seconds, rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_whatever_ranks_measured_nobody_waits_in_a_circle(data: st.DataObject) -> None:
    replica = data.draw(ordered_replicas(NUM_BLOCKS, [(0,), (1,), (2,)], max_quota=4))
    layout = Layout(num_blocks=NUM_BLOCKS, replicas=(replica,))
    recorded, _ = frames_under(layout)
    for frame in recorded:
        for entry in frame.entries:
            seconds = st.floats(0.01, 10.0)
            entry.sample.compute.forward, entry.sample.compute.backward = data.draw(seconds), data.draw(seconds)
            entry.sample.waiting.pipeline = data.draw(st.sampled_from([0.0, 0.3, 5.0]))
    rebuilt = operations_of(recorded, JobShape(epoch=3, layout=layout, model=MODEL))
    assert analyze(rebuilt.operations).replayed_seconds > 0.0


def test_a_stage_may_take_what_was_sent_later_first() -> None:
    orders = (
        "F00 F02 F10 B02 F12 B12 B00 B10",  # the second micro-batch's gradient of stage 2 before the first one's of 0
        "F01 F03 B03 B01 F11 F13 B13 B11",
    )
    stages = tuple(
        Stage(first_block=first, stop_block=stop, ranks=(number % 2,), shares=(1,))
        for number, (first, stop) in enumerate(((0, 1), (1, 2), (2, 3), (3, NUM_BLOCKS)))
    )
    turns = tuple(
        tuple(
            Turn(op=Op.FORWARD if turn[0] == "F" else Op.BACKWARD, place=int(turn[1]), stage=int(turn[2]))
            for turn in order.split()
        )
        for order in orders
    )
    layout = Layout(num_blocks=NUM_BLOCKS, replicas=(Replica(stages=stages, num_micro_batches=2, orders=turns),))
    recorded, seconds = frames_under(layout)
    rebuilt = operations_of(recorded, JobShape(epoch=3, layout=layout, model=MODEL))
    assert analyze(rebuilt.operations).replayed_seconds == pytest.approx(seconds, rel=1e-6)


def test_another_schedule_is_replayed_too_and_of_another_epoch_it_says_nothing() -> None:
    layout = uniform_layout(num_blocks=6, tensor=1, pipeline=3, data=2, num_micro_batches=6, schedule="zb-h1")
    recorded, seconds = frames_under(layout)
    known = operations_of(recorded, JobShape(epoch=3, layout=layout, model=MODEL))
    assert analyze(known.operations).replayed_seconds == pytest.approx(seconds, rel=1e-6)
    assert known.laid_along == "zb-h1, the schedule of epoch 3"
    older = operations_of(recorded, JobShape(epoch=2, layout=layout, model=MODEL))
    assert older.laid_along == "1f1b, one stage a rank: the layout of epoch 3 is not known"
    assert analyze(older.operations).replayed_seconds > 1.02 * seconds


def test_a_loop_that_names_other_positions_than_it_was_registered_with_is_replayed_as_it_says() -> None:
    recorded, seconds = frames_under(uniform_layout(num_blocks=6, tensor=1, pipeline=3, data=1, num_micro_batches=6))
    registered = uniform_layout(num_blocks=6, tensor=1, pipeline=1, data=3, num_micro_batches=3)
    rebuilt = operations_of(recorded, JobShape(epoch=3, layout=registered, model=MODEL))
    assert analyze(rebuilt.operations).replayed_seconds == pytest.approx(seconds, rel=1e-6)
    assert rebuilt.laid_along.endswith("not known")


def test_what_cannot_be_taken_apart_is_refused_with_the_reason() -> None:
    layout = uniform_layout(num_blocks=6, tensor=1, pipeline=2, data=2, num_micro_batches=4)
    routed = replace(layout, routes=(Route(micro_batch=3, stage=0, replica=0),))
    with pytest.raises(RecordingError, match="one another's micro-batches"):
        operations_of([pb.Frame(epoch=3)], JobShape(epoch=3, layout=routed, model=MODEL))


@pytest.mark.parametrize("quotas", [(4, 2), (1, 5)], ids=["the shallow one", "the deep one"])
def test_of_pipelines_of_different_depths_the_one_that_the_others_wait_for_is_replayed_alone(
    quotas: tuple[int, int],
) -> None:
    pipelined = uniform_layout(num_blocks=6, tensor=1, pipeline=3, data=1, num_micro_batches=1).replicas[0]
    whole = Stage(first_block=0, stop_block=6, ranks=(3,), shares=(1,))
    replicas = (
        Replica(stages=(whole,), num_micro_batches=quotas[0]),
        replace(pipelined, num_micro_batches=quotas[1]),
    )
    layout = Layout(num_blocks=6, replicas=replicas)
    recorded, seconds = frames_under(layout)
    rebuilt = operations_of(recorded, JobShape(epoch=3, layout=layout, model=MODEL))
    slowest = 0 if quotas == (4, 2) else 1
    assert f"replica {slowest} alone" in rebuilt.laid_along
    assert set(rebuilt.operations.dp_rank.tolist()) == {slowest}
    assert analyze(rebuilt.operations).replayed_seconds == pytest.approx(seconds, rel=1e-6)
