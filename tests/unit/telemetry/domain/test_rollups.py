import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.services.telemetry.domain.rollups import FinishedWindow, RollupAggregator
from evenkeel.services.telemetry.domain.sequences import BatchSequences
from tests.unit.telemetry.samples import Sample, batches_of


def add(aggregator: RollupAggregator, samples: Sequence[Sample], now_seconds: float) -> list[FinishedWindow]:
    return aggregator.add(batches_of(samples), np.array([each.offset for each in samples]), now_seconds)


def feed(
    aggregator: RollupAggregator,
    iterations: list[int],
    *,
    epoch: int = 0,
    now_seconds: float = 0.0,
    at_once: bool = False,
) -> list[FinishedWindow]:
    samples = [
        Sample(
            0,
            iteration,
            epoch=epoch,
            offset=iteration,
            wall_seconds=1.0 + iteration,
            forward_seconds=float(iteration),
            wait_vote_seconds=1.0,
            tokens=20,
            sum_of_squares=100.0,
            loss=float(iteration),
        )
        for iteration in iterations
    ]
    if at_once:
        return add(aggregator, samples, now_seconds)
    return [found for each in samples for found in add(aggregator, [each], now_seconds)]


def test_a_window_starts_at_a_multiple_of_its_length_and_ends_with_the_next_one() -> None:
    [window] = feed(RollupAggregator("job", window_iterations=4), [0, 1, 2, 3, 4])
    record = window.record
    assert (record.first_iteration, record.stop_iteration, record.num_iterations) == (0, 4, 4)
    assert (record.wall_seconds, record.wall_seconds_min, record.wall_seconds_max) == (2.5, 1.0, 4.0)
    assert (record.forward_seconds, record.vote_wait_seconds, record.loss) == (1.5, 1.0, 1.5)
    assert (record.tokens, record.sum_of_squares) == (80, 400.0)


@pytest.mark.parametrize("at_once", [False, True])
def test_what_comes_twice_counts_once(at_once: bool) -> None:
    [window] = feed(RollupAggregator("job", window_iterations=4), [0, 1, 1, 0, 2, 3, 3, 4], at_once=at_once)
    assert window.record.num_iterations == 4


def test_what_was_lost_shows_in_the_count() -> None:
    [window] = feed(RollupAggregator("job", window_iterations=4), [0, 3, 5])
    assert window.record.num_iterations == 2
    assert window.record.wall_seconds == pytest.approx(2.5)


def test_an_epoch_has_windows_of_its_own() -> None:
    aggregator = RollupAggregator("job", window_iterations=4)
    finished = feed(aggregator, [0, 1]) + feed(aggregator, [2, 3, 4], epoch=1)
    assert [(each.record.epoch, each.record.num_iterations) for each in finished] == [(0, 2), (1, 2)]


def test_a_replay_makes_the_same_rows() -> None:
    first, second = (feed(RollupAggregator("job", window_iterations=4), list(range(9))) for _ in range(2))
    assert [each.record for each in first] == [each.record for each in second]


def test_an_idle_window_is_written_and_what_follows_is_a_row_of_its_own() -> None:
    aggregator = RollupAggregator("job", window_iterations=4)
    feed(aggregator, [0, 1])
    assert aggregator.finish_idle(55.0) == []
    [idle] = aggregator.finish_idle(61.0)
    [rest] = feed(aggregator, [2, 3, 4], now_seconds=62.0)
    assert (idle.record.first_iteration, idle.record.num_iterations) == (0, 2)
    assert (rest.record.first_iteration, rest.record.num_iterations) == (2, 2)


def test_the_window_of_a_process_that_is_gone_is_written_at_once() -> None:
    aggregator = RollupAggregator("job", window_iterations=4)
    feed(aggregator, [0, 1])
    slot = feed(RollupAggregator("job", window_iterations=1), [0, 1])[0].record
    [gone] = aggregator.finish_process(slot.rank, slot.incarnation)
    assert (gone.record.first_iteration, gone.record.stop_iteration, gone.record.num_iterations) == (0, 4, 2)
    assert aggregator.finish_process(slot.rank, slot.incarnation) == []


def test_what_a_process_sent_before_its_end_does_not_wait_long_when_it_arrives_after_it() -> None:
    aggregator = RollupAggregator("job", window_iterations=4)
    feed(aggregator, [0, 1], now_seconds=100.0)
    slot = feed(RollupAggregator("job", window_iterations=1), [0, 1])[0].record
    aggregator.finish_process(slot.rank, slot.incarnation)
    feed(aggregator, [2], now_seconds=101.0)
    assert aggregator.finish_idle(now_seconds=102.0) == []
    [late] = aggregator.finish_idle(now_seconds=104.0)
    assert (late.record.first_iteration, late.record.num_iterations) == (2, 1)


def test_an_open_window_says_where_a_restart_must_begin_to_read() -> None:
    aggregator = RollupAggregator("job", window_iterations=4)
    assert aggregator.first_offsets == []
    feed(aggregator, [0, 1, 2])
    assert aggregator.first_offsets == [0]
    feed(aggregator, [3, 4, 5])
    assert aggregator.first_offsets == [4]


def numbered(process: tuple[int, int], sequence: int, num_dropped: int) -> Sample:
    return Sample(process[0], 0, incarnation=process[1], sequence=sequence, num_dropped=num_dropped)


def test_gaps_in_batch_numbers_are_counted_per_process() -> None:
    sequences = BatchSequences()
    assert sequences.add(batches_of([numbered((0, 0), 10, 0)])) == (0, 0)
    assert sequences.add(batches_of([numbered((0, 0), 11, 0)])) == (0, 0)
    assert sequences.add(batches_of([numbered((0, 0), 14, 5)])) == (2, 5)
    assert sequences.add(batches_of([numbered((0, 0), 14, 5)])) == (0, 0)
    assert sequences.add(batches_of([numbered((0, 1), 0, 0)])) == (0, 0)


processes = st.tuples(st.integers(-1, 400), st.sampled_from([0, 1, 1_000_000_000]))


@settings(deadline=None)
@given(
    st.lists(st.tuples(processes, st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=40), st.integers(0, 40)
)
def test_lost_batches_are_counted_the_same_however_they_come_together(
    told: list[tuple[tuple[int, int], int, int]], cut: int
) -> None:
    at_once, in_parts = BatchSequences(), BatchSequences()
    expected = [0, 0]
    newest = dict[tuple[int, int], tuple[int, int]]()
    for process, number, dropped in told:
        seen, lost = newest.get(process, (-1, 0))
        if 0 <= seen < number:
            expected = [expected[0] + number - seen - 1, expected[1] + max(0, dropped - lost)]
        if number > seen:
            newest[process] = number, dropped if seen < 0 else max(dropped, lost)
    samples = [numbered(*each) for each in told]
    assert [*at_once.add(batches_of(samples))] == expected
    parts = [in_parts.add(batches_of(part)) for part in (samples[:cut], samples[cut:])]
    assert [sum(pair) for pair in zip(*parts, strict=True)] == expected


def summed_one_by_one(told: Sequence[Sample], window_iterations: int) -> dict[tuple[int, ...], object]:
    """What the windows that end should hold, by the plainest code there is."""
    open_windows: dict[int, list[Sample]] = {}
    finished: dict[tuple[int, ...], object] = {}
    for sample in told:
        rank, key = sample.rank, (sample.epoch, sample.iteration - sample.iteration % window_iterations)
        held = open_windows.get(rank, [])
        if held:
            known = (held[0].epoch, held[0].iteration - held[0].iteration % window_iterations)
            if key < known:
                continue
            if key > known:
                finished[rank, *known] = (
                    len(held),
                    sum(each.wall_seconds for each in held),
                    max(each.wall_seconds for each in held),
                    sum(each.backward_seconds for each in held),
                    sum(each.tokens for each in held),
                    [each.loss for each in held if each.loss is not None],
                )
                held = open_windows[rank] = []
        if not held or sample.iteration > held[-1].iteration:
            open_windows.setdefault(rank, []).append(sample)
    return finished


@st.composite
def told_samples(draw: st.DrawFn) -> list[Sample]:
    return [
        Sample(
            draw(st.integers(0, 3)),
            draw(st.integers(0, 12)),
            epoch=draw(st.sampled_from([0, 0, 0, 1])),
            wall_seconds=(seconds := draw(st.integers(0, 100)) / 8),
            backward_seconds=seconds / 2,
            tokens=draw(st.integers(0, 18)),
            loss=draw(st.sampled_from([None, 1.0, math.nan])),
        )
        for _ in range(draw(st.integers(1, 60)))
    ]


@settings(deadline=None)
@given(told_samples(), st.integers(1, 4), st.integers(1, 60))
def test_what_comes_together_is_summed_up_as_if_one_by_one(
    told: list[Sample], window_iterations: int, most_at_once: int
) -> None:
    aggregator = RollupAggregator("job", window_iterations=window_iterations)
    found = {}
    for first in range(0, len(told), most_at_once):
        for window in add(aggregator, told[first : first + most_at_once], 0.0):
            record = window.record
            key = (record.rank, record.epoch, record.first_iteration)
            assert key not in found
            found[key] = record
    expected = summed_one_by_one(told, window_iterations)
    assert set(found) == set(expected)
    for key, (count, wall, highest, backward, tokens, losses) in expected.items():  # type: ignore[misc]
        record = found[key]
        assert (record.num_iterations, record.tokens, record.wall_seconds_max) == (count, tokens, highest)
        assert record.wall_seconds == pytest.approx(wall / count)
        assert record.backward_seconds == pytest.approx(backward / count)
        assert record.loss == (pytest.approx(sum(losses) / len(losses), nan_ok=True) if losses else None)
