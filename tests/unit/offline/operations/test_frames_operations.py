"""Frames become operations whose replay takes as long as the iterations did, and that say who is to blame."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.detection.aspects.kinds import kind_trace
from benchmarks.detection.traces.traces import Trace, make_trace
from evenkeel.attribution import analyze
from evenkeel.cli.recorded.why import answer
from evenkeel.contracts.frames import Frames, frames_of, members_of
from evenkeel.layouts.layout import Layout, Replica, Stage, uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.layouts.programs.instructions import Instruction, Op
from evenkeel.layouts.programs.orders import Turn
from evenkeel.layouts.programs.routes import Route
from evenkeel.offline.errors import RecordingError
from evenkeel.offline.operations.measured import operations_of, slowest_shards
from evenkeel.offline.samples.job_shape import JobShape
from evenkeel.simulator.job.afflictions import Affliction
from tests.unit.layouts.strategies import ordered_replicas
from tests.unit.layouts.timeline import timeline_of

COUNT = 12


def frames(trace: Trace, first: int) -> list[Frames]:
    return list(trace.frames())[first : first + COUNT]


def slow_run(percent: float = 50.0) -> tuple[Trace, list[Frames]]:
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


def unequal(frames: list[Frames], layers: dict[tuple[int, int], float], pace: dict[int, float]) -> list[Frames]:
    """The frames of replicas that share their layers out so, with ranks that take so many times as long for theirs."""
    members = frames[0].members
    places = zip(members.replica.tolist(), members.stage.tolist(), strict=True)
    share = np.array([layers.get(place, 1.0) for place in places])
    factor = share * [pace.get(rank, 1.0) for rank in members.rank.tolist()]
    shared_out = replace(
        members,
        forward_flops_per_token=members.forward_flops_per_token * share,
        forward_flops_per_squared_length=members.forward_flops_per_squared_length * share,
    )
    return [
        replace(
            frame,
            members=shared_out,
            forward_seconds=frame.forward_seconds * factor,
            backward_seconds=frame.backward_seconds * factor,
        )
        for frame in frames
    ]


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


def test_a_heavy_last_stage_explains_the_slowdown_and_no_rank_is_ill() -> None:
    trace, _ = kind_trace(Affliction.STAGE_IMBALANCE, 1)
    found = analyze(operations_of(frames(trace, 60)).operations)
    assert found.last_stage_share > 0.5
    assert found.ill_ranks == ()


def test_input_has_a_share_of_its_own() -> None:
    _, slow = slow_run(10.0)
    for frame in slow:
        frame.input_seconds[0, 3] = 1.5
    found = analyze(operations_of(slow).operations)
    assert {each.name: each.share for each in found.by_operation}["input"] > 0.5


def test_planned_pauses_missing_ranks_and_older_epochs_are_left_out() -> None:
    _, slow = slow_run()
    slow[0].mark[0, 2] = 1
    slow[1].flags[0, 7] = 0
    slow[3:] = [replace(frame, epoch=1) for frame in slow[3:]]
    rebuilt = operations_of(slow)
    assert (rebuilt.epoch, len(rebuilt.iterations), rebuilt.num_left_out) == (1, COUNT - 3, 3)


def test_without_a_plain_iteration_it_says_so() -> None:
    with pytest.raises(RecordingError, match="plain and complete"):
        operations_of([frame_of([0], epoch=0)])


def test_ranks_of_a_loop_that_names_no_positions_are_compared_with_one_another() -> None:
    seconds = [0.1, 0.1, 0.16, 0.1]
    found = [
        frame_of(
            range(4), iteration=iteration, epoch=0, wall_seconds=0.2, forward_seconds=seconds, lists=[[(0, 1000)]] * 4
        )
        for iteration in range(COUNT)
    ]
    rebuilt = operations_of(found)
    said = answer("job", rebuilt, analyze(rebuilt.operations), slowest_shards(found))
    assert said["num_workers"] == 4
    assert said["ill_ranks"] == [2]
    assert said["slowdown"] == pytest.approx(0.16 / 0.115, rel=0.01)


NUM_BLOCKS = 6
MODEL = ModelSpec(
    blocks=tuple([BlockCost(forward_flops_per_token=n + 1.0, forward_flops_per_squared_length=0.0) for n in range(6)])
)


def frame_of(
    ranks: Sequence[int],
    *,
    epoch: int,
    iteration: int = 0,
    places: Sequence[tuple[int, int]] = (),
    lists: Sequence[Sequence[tuple[int, int]]] = (),
    **columns: object,
) -> Frames:
    """A frame; of each rank replica and stage, and index and tokens of its micro-batches."""
    places, lists = places or [(0, 0)] * len(ranks), lists or [[]] * len(ranks)
    named = [one for listed in lists for one in listed]
    return frames_of(
        members_of(
            ranks,
            nodes=["n"] * len(ranks),
            devices=["d"] * len(ranks),
            replica=[replica for replica, _ in places],
            stage=[stage for _, stage in places],
        ),
        [iteration],
        epoch=epoch,
        closed_at_unix_seconds=[1.0],
        num_listed=list(map(len, lists)),
        listed_index=[index for index, _ in named],
        listed_tokens=[tokens for _, tokens in named],
        listed_squares=[0.0] * len(named),
        listed_kept=[0] * len(named),
        **columns,
    )


def frames_under(layout: Layout, tokens: int = 100, epoch: int = 3) -> tuple[list[Frames], float]:
    """Two iterations of a job that runs a layout, one rank a worker, and seconds of one; transfers take no time."""

    def seconds_of(replica: int, stage: int, instruction: Instruction) -> float:
        one = layout.replicas[replica].stages[stage]
        blocks = MODEL.blocks[one.first_block : one.stop_block]
        forward = sum(block.forward_flops(tokens, 0.0) for block in blocks) * 1e-3
        parts = {Op.FORWARD: 1.0, Op.BACKWARD: 2.0, Op.BACKWARD_INPUT: 1.0, Op.BACKWARD_WEIGHT: 1.0}
        return forward * parts[instruction.op]

    timeline, found = timeline_of(layout, seconds_of), []
    cells = [(d, number, cell[0]) for d, one in enumerate(layout.replicas) for number, cell in enumerate(one.cells)]
    # Of frames members ascend by rank.
    cells.sort(key=lambda cell: layout.replicas[cell[0]].stages[cell[2]].ranks[0])
    at = [timeline.stages[d][number] for d, number, _ in cells]
    for iteration in range(2):
        frame = frame_of(
            [layout.replicas[d].stages[stage].ranks[0] for d, _, stage in cells],
            epoch=epoch,
            iteration=iteration,
            places=[(d, stage) for d, _, stage in cells],
            lists=[[(index, tokens) for index in layout.micro_batches_of(d)] for d, _, _ in cells],
            wall_seconds=timeline.iteration_seconds,
            forward_seconds=[one.busy_seconds / 3 for one in at],
            backward_seconds=[one.busy_seconds * 2 / 3 for one in at],
            wait_pipeline_seconds=[one.end_seconds - one.busy_seconds for one in at],
            wait_gradient_seconds=[timeline.iteration_seconds - one.end_seconds for one in at],
        )
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
        for place in range(len(frame.members)):
            seconds = st.floats(0.01, 10.0)
            frame.forward_seconds[0, place], frame.backward_seconds[0, place] = data.draw(seconds), data.draw(seconds)
            frame.wait_pipeline_seconds[0, place] = data.draw(st.sampled_from([0.0, 0.3, 5.0]))
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
        operations_of([frame_of([0], epoch=3)], JobShape(epoch=3, layout=routed, model=MODEL))


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
