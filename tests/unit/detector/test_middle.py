"""Shortcuts for few numbers give numpy's answers to the bit: verdicts may not depend on which way was taken."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.services.detector.domain.expectation.profile.grid import PipelineGrid, between_ranks
from evenkeel.services.detector.domain.frames.layout import FrameLayout
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.frames.table import table_of
from evenkeel.services.detector.domain.memory.middle import RecentValues, median
from evenkeel.services.detector.domain.memory.rolling import RollingRows
from tests.unit.detector.synthetic import SyntheticJob, cube

numbers = st.floats(-1e6, 1e6)


@given(st.lists(numbers, min_size=1, max_size=40), st.integers(1, 60))
def test_a_median_is_numpys_to_the_bit_however_many_there_are(values: list[float], times: int) -> None:
    row = np.tile(np.array(values), times)
    assert median(row) == float(np.median(row))


@pytest.mark.parametrize("count", [1, 2, 7, 5000])
def test_a_median_of_what_is_no_number_is_none(count: int) -> None:
    row = np.arange(count, dtype=np.float64)
    row[count // 2] = math.nan
    assert math.isnan(median(row))


@given(st.lists(numbers, min_size=1, max_size=60), st.integers(1, 20))
def test_recent_values_know_the_median_of_the_newest_and_their_distance_from_it(values: list[float], most: int) -> None:
    recent = RecentValues(most)
    for place, value in enumerate(values):
        recent.append(value)
        newest = np.array(values[: place + 1][-most:])
        middle = float(np.median(newest))
        assert list(recent) == newest.tolist()
        assert recent.median == middle
        assert recent.median_distance == float(np.median(np.abs(newest - middle)))
    recent.clear()
    assert len(recent) == 0


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=60), st.integers(1, 9))
def test_rolling_rows_are_the_newest_in_order_and_lie_side_by_side(told: list[tuple[float, float]], most: int) -> None:
    rolling = RollingRows(most)
    for place, row in enumerate(told):
        rolling.append(np.array(row))
        assert rolling.rows.tolist() == [list(each) for each in told[: place + 1][-most:]]
        assert rolling.rows.flags.c_contiguous


def test_rows_of_another_width_start_afresh() -> None:
    rolling = RollingRows(4)
    rolling.append(np.array([1.0, 2.0]))
    rolling.append(np.array([3.0]))
    assert rolling.rows.tolist() == [[3.0]]
    rolling.clear()
    assert len(rolling) == 0


entries = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0.1, 9.0)), min_size=1, max_size=30)


@given(entries)
def test_a_grid_tells_what_iterations_take_between_ranks_whoever_is_missing(told: list[tuple[int, int, float]]) -> None:
    replicas = np.array([replica for replica, _, _ in told])
    stages = np.array([stage for _, stage, _ in told])
    seconds = np.array([value for _, _, value in told])
    waits, walls, fixed = seconds[::-1].copy(), 10.0 * seconds + 60.0, 0.5
    grid = PipelineGrid(FrameLayout(laid_out(replicas, stages)))
    pipelines, border, exchanged = between_ranks(
        *(seconds, waits, walls, grid.cells, grid.num_stages, grid.counts, grid.rounds, grid.borders, fixed)
    )
    known_replicas, known_stages = sorted(set(replicas.tolist())), sorted(set(stages.tolist()))

    def here(values: np.ndarray, replica: int, stage: int) -> list[float]:
        return [
            float(value)
            for value, r, s, _ in zip(values, *zip(*told, strict=True), strict=True)
            if (r, s) == (replica, stage)
        ]

    begun = [min(here(walls, replica, known_stages[0]), default=0.0) for replica in known_replicas]
    assert pipelines == pytest.approx(max(begun) - fixed)
    lasting, crossings = [], []
    for replica in known_replicas:
        cells = [(here(seconds, replica, stage), here(waits, replica, stage)) for stage in known_stages]
        # Two micro-batches each: two rounds of the slowest stage and one of each other.
        rounds = [max(mine) / 2 + min(waited) / 2 for mine, waited in cells if mine]
        num_borders = len(rounds) - 1
        if num_borders:
            crossings.append((pipelines - sum(rounds) - max(rounds)) / (2 * num_borders))
        lasting.append(sum(min(waited) / 2 for mine, waited in cells if mine))
    assert border == pytest.approx(max(min(crossings, default=0.0), 0.0))
    assert exchanged == pytest.approx(sum(lasting) / len(known_replicas))
    assert grid.is_piped == bool(crossings)


def laid_out(replicas: np.ndarray, stages: np.ndarray) -> FrameObservation:
    """A frame with these entries, each with two micro-batches."""
    count, frame = len(replicas), next(iter(SyntheticJob(places=cube()).frames(0, 1)))
    columns = {each.name: getattr(frame, each.name) for each in fields(frame)}
    empty = {
        name: np.zeros_like(column, shape=(count, *column.shape[1:]))
        for name, column in columns.items()
        if isinstance(column, np.ndarray)
    }
    told = {"replicas": replicas, "stages": stages, "num_micro_batches": np.full(count, 2), "work_keys": np.ones(count)}
    return replace(frame, **{**empty, **told, "has_flops": np.ones(count, dtype=np.bool_)})


def test_frames_of_one_layout_share_it_and_any_column_that_differs_makes_another() -> None:
    frame = laid_out(np.repeat([0, 1], 4), np.array([0, 1] * 4))
    layout = FrameLayout(frame)
    copied = replace(
        replace(
            frame,
        ),
        iteration=7,
    )
    assert table_of(copied, layout).has_layout_of_before
    changes = {"replicas": 1, "stages": 1, "shards": 1, "num_micro_batches": 1, "work_keys": 1.0, "epochs": 1}
    others = [replace(frame, **{name: getattr(frame, name) + more}) for name, more in changes.items()]
    others += [replace(frame, has_flops=~frame.has_flops), replace(frame, epoch=1)]
    for other in others:
        assert not table_of(other, layout).has_layout_of_before
