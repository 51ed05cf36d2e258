"""What is kept are the newest, and grids tell what iterations take between ranks."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.services.detector.domain.expectation.profile.grid import PipelineGrid
from evenkeel.services.detector.domain.frames.layout import FrameLayout
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.memory.newest import with_newest
from tests.unit.detector.synthetic import SyntheticJob, cube

numbers = st.floats(-1e6, 1e6)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=60), st.integers(2, 9))
def test_what_is_kept_are_the_newest_in_order(told: list[tuple[float, float]], most: int) -> None:
    numbers_kept, rows_kept = np.zeros(0), np.zeros((0, 0))
    for place, row in enumerate(told):
        numbers_kept, rows_kept = with_newest(numbers_kept, row[0], most), with_newest(rows_kept, row, most)
        newest = told[: place + 1][-most:]
        assert numbers_kept.tolist() == [first for first, _ in newest]
        assert rows_kept.tolist() == [list(each) for each in newest]


def test_rows_of_another_width_start_afresh() -> None:
    assert with_newest(np.array([[1.0, 2.0]]), [3.0], 4).tolist() == [[3.0]]


entries = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0.1, 9.0)), min_size=1, max_size=30)


@given(entries)
def test_a_grid_tells_what_iterations_take_between_ranks_whoever_is_missing(told: list[tuple[int, int, float]]) -> None:
    replicas = np.array([replica for replica, _, _ in told])
    stages = np.array([stage for _, stage, _ in told])
    seconds = np.array([value for _, _, value in told])
    waits, walls, fixed = seconds[::-1].copy(), 10.0 * seconds + 60.0, 0.5
    grid = PipelineGrid(FrameLayout(laid_out(replicas, stages)))
    pipelines, border, exchanged = grid.between_ranks(seconds, waits, walls, fixed)
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
    assert layout.is_of(copied)
    changes = {"replicas": 1, "stages": 1, "shards": 1, "num_micro_batches": 1, "work_keys": 1.0}
    others = [replace(frame, **{name: getattr(frame, name) + more}) for name, more in changes.items()]
    others += [replace(frame, has_flops=~frame.has_flops), replace(frame, epoch=1)]
    for other in others:
        assert not layout.is_of(other)
