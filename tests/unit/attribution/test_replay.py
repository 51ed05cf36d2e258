import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.attribution import OperationError, Operations, analyze
from evenkeel.attribution.graph.replay import Replay
from tests.unit.attribution.synthetic import pipeline, replayed_with

shapes = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), st.integers(0, 10_000))


def recording(shape: tuple[int, int, int, int]) -> Operations:
    num_dp, num_stages, num_micro_batches, seed = shape
    columns = pipeline(
        num_dp=num_dp, num_stages=num_stages, num_micro_batches=num_micro_batches, seed=seed, num_steps=2
    )
    return Operations.from_columns(columns)


@given(shapes)
@settings(max_examples=25, deadline=None)
def test_a_recording_without_gaps_replays_to_what_was_recorded(shape: tuple[int, int, int, int]) -> None:
    replay = Replay(recording(shape))
    assert replay.step_seconds(replay.actual) == pytest.approx(replay.observed_seconds(), rel=1e-9)


@given(shapes, st.floats(0.1, 10.0))
@settings(max_examples=15, deadline=None)
def test_durations_scaled_by_a_factor_scale_the_step(shape: tuple[int, int, int, int], factor: float) -> None:
    replay = Replay(recording(shape))
    scaled = replay.step_seconds(factor * replay.actual)
    assert scaled == pytest.approx(factor * replay.step_seconds(replay.actual), rel=1e-9)


@given(shapes)
@settings(max_examples=15, deadline=None)
def test_an_operation_that_takes_longer_never_makes_the_step_shorter(shape: tuple[int, int, int, int]) -> None:
    replay = Replay(recording(shape))
    longer = replay.actual.copy()
    longer[shape[3] % len(longer)] += 0.5
    assert (replay.step_seconds(longer) >= replay.step_seconds(replay.actual) - 1e-12).all()


def test_rows_in_any_order_give_the_same_answer() -> None:
    columns = pipeline(seed=3)
    shuffled = np.random.default_rng(0).permutation(len(columns["step"]))
    straight = analyze(Operations.from_columns(columns))
    again = analyze(Operations.from_columns({name: column[shuffled] for name, column in columns.items()}))
    assert again.slowdown == pytest.approx(straight.slowdown, rel=1e-12)
    assert again.last_stage_share == pytest.approx(straight.last_stage_share, rel=1e-9)


def test_steps_with_another_schedule_get_a_graph_of_their_own() -> None:
    few, many = pipeline(num_micro_batches=3), pipeline(num_micro_batches=5)
    many["step"] = many["step"] + 10
    both = {name: np.concatenate([few[name], many[name]]) for name in few}
    replay = Replay(Operations.from_columns(both))
    assert replay.num_structures == 2
    assert replay.step_seconds(replay.actual) == pytest.approx(replay.observed_seconds(), rel=1e-9)


def test_micro_batches_of_unequal_length_are_named_as_the_cause() -> None:
    operations = Operations.from_columns(pipeline(num_steps=6, num_dp=4, num_micro_batches=4, seed=1))
    random = np.random.default_rng(2)
    lengths = random.lognormal(0.0, 0.5, (6, 4, 4))
    factors = np.ones(len(operations))
    with_batch = operations.micro_batch >= 0
    at = (operations.step[with_batch], operations.dp_rank[with_batch], operations.micro_batch[with_batch])
    factors[with_batch] = lengths[at]
    found = analyze(replayed_with(operations, factors))
    assert found.causes == ("sequences",)
    assert found.sequence_correlation is not None
    assert found.sequence_correlation > 0.9
    assert found.ill_ranks == ()


def test_the_only_slow_worker_explains_the_slowdown() -> None:
    operations = Operations.from_columns(pipeline(num_steps=5, num_dp=4, num_stages=2, seed=5))
    victim = (operations.dp_rank == 2) & (operations.stage == 0) & (operations.micro_batch >= 0)
    found = analyze(replayed_with(operations, np.where(victim, 1.8, 1.0)))
    assert found.ill_ranks == (4,)
    assert found.worker_share > 0.9
    assert found.by_rank[0].name == "4"


@pytest.mark.parametrize("missing", ["step", "optype", "duration"])
def test_a_missing_column_is_named(missing: str) -> None:
    columns = pipeline()
    del columns[missing]
    with pytest.raises(OperationError, match=rf"columns are missing: {missing};"):
        Operations.from_columns(columns)


def test_an_unknown_kind_of_operation_is_named_with_those_known() -> None:
    columns = pipeline()
    columns["optype"] = np.where(columns["optype"] == "optimizer", "adam", columns["optype"])
    with pytest.raises(OperationError, match="unknown optype: adam; known are backward-compute"):
        Operations.from_columns(columns)


def test_a_duration_that_is_not_a_number_is_found_by_its_row() -> None:
    columns = pipeline()
    columns["duration"][6] = np.nan
    with pytest.raises(OperationError, match="row 7: duration is nan"):
        Operations.from_columns(columns)


def test_a_send_that_nobody_receives_is_refused_with_its_place() -> None:
    columns = pipeline(num_dp=1, num_stages=2, num_steps=1)
    kept = np.ones(len(columns["step"]), dtype=bool)
    kept[np.flatnonzero(columns["optype"] == "forward-recv")[:1]] = False
    kept[np.flatnonzero(columns["optype"] == "forward-recv")[1:2]] = False
    with pytest.raises(OperationError, match="stage 1 has 2 forward-recv for 4 forward-compute"):
        Replay(Operations.from_columns({name: column[kept] for name, column in columns.items()}))


def test_several_tensor_parallel_ranks_of_a_worker_are_refused() -> None:
    columns = pipeline(num_dp=1)
    columns["rank"] = np.arange(len(columns["step"])) % 2
    with pytest.raises(OperationError, match="share one dp_rank and stage"):
        Operations.from_columns(columns)


def test_in_a_huge_job_the_ranks_that_compute_longest_are_asked_about() -> None:
    table = pipeline(num_steps=1, num_dp=260, num_stages=2, num_micro_batches=1)
    victim = (table["dp_rank"] == 123) & (table["stage"] == 1) & (table["optype"] == "forward-compute")
    found = analyze(Operations.from_columns({**table, "duration": np.where(victim, 2.0, table["duration"])}))
    assert len(found.by_rank) == 64
    assert found.by_rank[0].name == str(2 * 123 + 1)
