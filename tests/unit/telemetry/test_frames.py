from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.telemetry.domain.frame_rules import FrameRules
from services.telemetry.domain.frames import FrameJoiner, Outcome
from services.telemetry.domain.observed import ArrivedSample, ClosedFrame
from tests.unit.telemetry.blocks import block_of_arrived
from tests.unit.telemetry.samples import sample


def settled_joiner(num_ranks: int, *, rules: FrameRules | None = None) -> FrameJoiner:
    """A joiner that has closed iteration 0 with all ranks; iteration 1 has begun with rank 0 up to the last but one."""
    joiner = FrameJoiner(rules)
    for rank in range(num_ranks):
        assert joiner.add(sample(rank, 0), 0.0) == []
    closed: list[ClosedFrame] = []
    for rank in range(num_ranks):
        closed += joiner.add(sample(rank, 1), 0.1)
    assert [(each.iteration, ranks_of(each), each.missing_ranks) for each in closed] == [
        (0, list(range(num_ranks)), ()),
        (1, list(range(num_ranks)), ()),
    ]
    return joiner


def ranks_of(frame: ClosedFrame) -> list[int]:
    return [entry.rank for entry in frame.entries]


def add_all(joiner: FrameJoiner, samples: list[ArrivedSample], now_seconds: float) -> list[ClosedFrame]:
    return [frame for each in samples for frame in joiner.add(each, now_seconds)]


def test_a_frame_closes_with_its_last_sample() -> None:
    joiner = settled_joiner(3)
    assert add_all(joiner, [sample(2, 2), sample(0, 2)], 1.0) == []
    [frame] = joiner.add(sample(1, 2), 1.2)
    assert (frame.epoch, frame.iteration, ranks_of(frame), frame.missing_ranks) == (0, 2, [0, 1, 2], ())
    assert frame.closed_at_seconds == frame.last_sample_at_seconds == 1.2


def test_the_first_frame_waits_for_ranks_nobody_has_heard_of() -> None:
    joiner = FrameJoiner()
    assert joiner.add(sample(0, 0), 0.0) == []
    assert joiner.add(sample(0, 1), 0.1) != []


def test_a_rank_that_went_on_without_a_sample_is_missing_at_once() -> None:
    joiner = settled_joiner(3)
    assert add_all(joiner, [sample(0, 2), sample(1, 2)], 1.0) == []
    [frame] = joiner.add(sample(2, 3), 1.0)
    assert (frame.iteration, ranks_of(frame), frame.missing_ranks) == (2, [0, 1], (2,))


def test_a_dead_rank_is_not_waited_for() -> None:
    joiner = settled_joiner(3)
    assert add_all(joiner, [sample(0, 2), sample(1, 2)], 1.0) == []
    [frame] = joiner.gone(2, 0, 1.0)
    assert frame.missing_ranks == (2,)
    [frame] = add_all(joiner, [sample(0, 3), sample(1, 3)], 1.1)
    assert (frame.iteration, frame.missing_ranks) == (3, ())


def test_news_of_an_older_process_of_a_rank_changes_nothing() -> None:
    joiner = FrameJoiner()
    for iteration in range(2):
        add_all(joiner, [sample(rank, iteration, incarnation=1) for rank in range(2)], 0.0)
    joiner.add(sample(0, 2, incarnation=1), 0.1)
    assert joiner.gone(1, 0, 0.1) == []
    [frame] = joiner.add(sample(1, 2, incarnation=1), 0.1)
    assert ranks_of(frame) == [0, 1]


def test_a_silent_rank_costs_one_patience_and_then_no_more_waiting() -> None:
    joiner = settled_joiner(2, rules=FrameRules(least_patience_seconds=0.5, max_missed=1))
    joiner.add(sample(0, 2), 1.0)
    assert joiner.tick(1.4) == []
    [frame] = joiner.tick(1.5)
    assert frame.missing_ranks == (1,)
    [frame] = joiner.add(sample(0, 3), 1.6)
    assert frame.missing_ranks == (1,)


def test_a_silent_rank_that_comes_back_is_waited_for_again() -> None:
    joiner = settled_joiner(2, rules=FrameRules(max_missed=1))
    joiner.add(sample(0, 2), 1.0)
    joiner.tick(9.0)
    [frame] = add_all(joiner, [sample(1, 3), sample(0, 3)], 9.1)
    assert ranks_of(frame) == [0, 1]
    assert joiner.add(sample(0, 4), 9.2) == []


def test_patience_follows_the_pace_of_the_job() -> None:
    joiner = FrameJoiner()
    for iteration in range(30):
        add_all(joiner, [sample(rank, iteration, wall_seconds=10.0) for rank in range(2)], 10.0 * iteration)
    assert joiner.patience_seconds == pytest.approx(20.0)


def test_one_long_pause_does_not_make_the_job_slow() -> None:
    joiner = FrameJoiner()
    for iteration in range(30):
        wall_seconds = 1000.0 if iteration == 20 else 0.1
        add_all(joiner, [sample(rank, iteration, wall_seconds=wall_seconds) for rank in range(2)], float(iteration))
    assert joiner.iteration_seconds < 0.2


def test_a_layout_that_shrank_does_not_stall_its_first_frame() -> None:
    joiner = settled_joiner(4)
    assert add_all(joiner, [sample(rank, 2, epoch=1) for rank in (0, 1, 2)], 1.0) == []
    closed = add_all(joiner, [sample(rank, 3, epoch=1) for rank in (0, 1, 2)], 1.1)
    assert [(each.epoch, each.iteration, ranks_of(each), each.missing_ranks) for each in closed] == [
        (1, 2, [0, 1, 2], ()),
        (1, 3, [0, 1, 2], ()),
    ]


def test_a_layout_that_grew_has_its_joiner_in_the_first_frame() -> None:
    joiner = settled_joiner(2)
    add_all(joiner, [sample(rank, 2, epoch=1) for rank in (0, 1)], 1.0)
    add_all(joiner, [sample(2, 2, epoch=1)], 1.05)
    closed = add_all(joiner, [sample(rank, 3, epoch=1) for rank in (0, 1, 2)], 1.1)
    assert [ranks_of(each) for each in closed] == [[0, 1, 2], [0, 1, 2]]


def test_an_iteration_that_a_newer_epoch_runs_again_supersedes_the_open_frame() -> None:
    joiner = settled_joiner(3)
    add_all(joiner, [sample(0, 2), sample(1, 2)], 1.0)
    add_all(joiner, [sample(0, 2, epoch=1), sample(1, 2, epoch=1)], 1.5)
    closed = add_all(joiner, [sample(0, 3, epoch=1), sample(1, 3, epoch=1)], 1.6)
    assert [(each.epoch, each.iteration) for each in closed] == [(1, 2), (1, 3)]
    assert joiner.num_superseded == 2
    assert joiner.add(sample(2, 2), 1.7) == []
    assert joiner.outcomes[Outcome.LATE] == 1


def test_the_last_frame_of_an_older_epoch_closes_before_the_newer_ones() -> None:
    joiner = settled_joiner(3)
    add_all(joiner, [sample(0, 2), sample(1, 2)], 1.0)
    add_all(joiner, [sample(0, 3, epoch=1), sample(1, 3, epoch=1)], 1.1)
    assert joiner.tick(1.2) == []
    closed = joiner.tick(1.36) + add_all(joiner, [sample(0, 4, epoch=1), sample(1, 4, epoch=1)], 1.4)
    assert [(each.epoch, each.iteration, each.missing_ranks) for each in closed] == [
        (0, 2, (2,)),
        (1, 3, ()),
        (1, 4, ()),
    ]


def test_what_came_twice_is_counted_and_dropped() -> None:
    joiner = settled_joiner(2)
    joiner.add(sample(0, 2), 1.0)
    assert joiner.add(sample(0, 2), 1.0) == []
    [frame] = joiner.add(sample(1, 2), 1.0)
    assert len(frame.entries) == 2
    assert joiner.outcomes[Outcome.DUPLICATE] == 1


def test_a_rank_that_was_given_up_and_is_always_a_little_later_than_the_others_is_waited_for_again() -> None:
    joiner = settled_joiner(2)
    frames: list[ClosedFrame] = []
    for iteration in range(2, 20):
        at = 0.3 * iteration
        frames += joiner.tick(at)
        frames += joiner.add(sample(0, iteration), at)
        if iteration >= 8:  # silent before, and from here on 0.1 s behind
            frames += joiner.add(sample(1, iteration), at + 0.1)
    whole = [frame.iteration for frame in frames if ranks_of(frame) == [0, 1]]
    assert whole == list(range(whole[0], 20))
    assert whole[0] <= 10


def test_what_comes_after_its_frame_closed_is_late() -> None:
    joiner = settled_joiner(2)
    assert joiner.add(sample(0, 1), 1.0) == []
    assert joiner.outcomes[Outcome.LATE] == 1


def test_one_rank_with_a_spoiled_counter_does_not_end_the_job() -> None:
    joiner = settled_joiner(2)
    joiner.add(sample(0, 10**12), 1.0)
    assert joiner.tick(100.0) != []
    frames = []
    for iteration in range(2, 60):
        frames += add_all(joiner, [sample(0, iteration), sample(1, iteration)], 100.0 + iteration)
    assert joiner.num_restarts == 1
    assert frames[-1].iteration == 59
    assert ranks_of(frames[-1]) == [0, 1]


def test_too_many_open_frames_close_the_oldest() -> None:
    joiner = settled_joiner(3, rules=FrameRules(max_open_frames=4))
    closed = []
    for iteration in range(2, 10):
        closed += add_all(joiner, [sample(0, iteration), sample(1, iteration)], 1.0)
    assert [each.iteration for each in closed][:4] == [2, 3, 4, 5]
    assert all(each.missing_ranks == (2,) for each in closed)


def test_the_oldest_offset_is_that_of_the_oldest_open_frame() -> None:
    joiner = settled_joiner(2)
    assert joiner.oldest_offset is None
    joiner.add(sample(0, 2, offset=70), 1.0)
    joiner.add(sample(0, 3, offset=71), 1.0)
    assert joiner.oldest_offset == 70
    joiner.add(sample(1, 2, offset=72), 1.0)
    assert joiner.oldest_offset == 71


def test_a_restarted_joiner_repeats_nothing_and_expects_the_same_ranks() -> None:
    before = settled_joiner(3)
    add_all(before, [sample(0, 2, offset=20), sample(1, 2, offset=21)], 1.0)
    [last] = before.add(sample(2, 2, offset=22), 1.0)
    after = FrameJoiner()
    after.resume(last, until_offset=22)
    assert add_all(after, [sample(0, 2, offset=20), sample(2, 2, offset=22)], 5.0) == []
    assert after.outcomes[Outcome.REPLAYED] == 2
    assert add_all(after, [sample(0, 3, offset=23), sample(1, 3, offset=24)], 5.0) == []
    [frame] = after.add(sample(2, 3, offset=25), 5.0)
    assert (frame.iteration, frame.missing_ranks) == (3, ())


@st.composite
def journeys(draw: st.DrawFn) -> tuple[int, int, list[ArrivedSample], set[tuple[int, int]]]:
    """Ranks, iterations, an interleaving that keeps each rank's order, and the (rank, iteration) that are lost."""
    num_ranks = draw(st.integers(1, 5))
    num_iterations = draw(st.integers(1, 8))
    pairs = [(rank, iteration) for rank in range(num_ranks) for iteration in range(num_iterations)]
    lost = draw(st.sets(st.sampled_from(pairs), max_size=4))
    queues: dict[int, list[ArrivedSample]] = defaultdict(list)
    for rank, iteration in pairs:
        if (rank, iteration) not in lost:
            # A record that is sent again comes right after itself or later, but never out of its rank's order.
            copies = draw(st.integers(1, 2))
            queues[rank].extend([sample(rank, iteration)] * copies)
    order: list[ArrivedSample] = []
    # The vote keeps ranks at most one iteration apart; transport may lag a little more.
    while any(queues.values()):
        slowest = min(queue[0].iteration for queue in queues.values() if queue)
        ready = [rank for rank, queue in queues.items() if queue and queue[0].iteration <= slowest + 2]
        order.append(queues[draw(st.sampled_from(ready))].pop(0))
    return num_ranks, num_iterations, order, lost


@settings(max_examples=300, deadline=None)
@given(journeys())
def test_however_samples_interleave_each_complete_frame_closes_once_and_in_order(
    journey: tuple[int, int, list[ArrivedSample], set[tuple[int, int]]],
) -> None:
    num_ranks, num_iterations, order, lost = journey
    joiner = settled_joiner(num_ranks)
    shifted = [each._replace(iteration=each.iteration + 2) for each in order]
    closed = add_all(joiner, shifted, 1.0)
    while tail := joiner.tick(1e6):
        closed += tail
    keys = [(each.epoch, each.iteration) for each in closed]
    assert keys == sorted(set(keys))
    seen = [(entry.rank, entry.iteration - 2) for each in closed for entry in each.entries]
    assert len(seen) == len(set(seen))
    arrived = {(rank, iteration) for rank in range(num_ranks) for iteration in range(num_iterations)} - lost
    assert set(seen) == arrived
    for frame in closed:
        iteration = frame.iteration - 2
        assert set(ranks_of(frame)) == {rank for rank in range(num_ranks) if (rank, iteration) not in lost}
        gone_missing = {rank for rank in range(num_ranks) if (rank, iteration) in lost}
        assert set(frame.missing_ranks) == gone_missing


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 2), st.booleans()), max_size=60))
def test_whatever_comes_no_sample_is_used_twice_and_frames_never_go_back(
    arrivals: list[tuple[int, int, int, bool]],
) -> None:
    joiner = FrameJoiner()
    closed: list[ClosedFrame] = []
    for index, (rank, iteration, epoch, dies) in enumerate(arrivals):
        now_seconds = index * 0.05
        closed += joiner.add(sample(rank, iteration, epoch=epoch), now_seconds)
        if dies:
            closed += joiner.gone(rank, 0, now_seconds)
        closed += joiner.tick(now_seconds)
    closed += joiner.tick(1e6)
    keys = [(each.epoch, each.iteration) for each in closed]
    assert keys == sorted(set(keys))
    used = [(entry.rank, entry.epoch, entry.iteration) for each in closed for entry in each.entries]
    assert len(used) == len(set(used))
    assert all(not set(ranks_of(each)) & set(each.missing_ranks) for each in closed)
    assert joiner.oldest_offset is None


def test_a_rank_that_lost_samples_and_reports_again_is_not_silent() -> None:
    joiner = settled_joiner(2)
    for iteration in range(2, 6):
        joiner.add(sample(0, iteration), 1.0)
    closed = joiner.add(sample(1, 5), 1.0)
    assert [(each.iteration, each.missing_ranks) for each in closed] == [(2, (1,)), (3, (1,)), (4, (1,)), (5, ())]
    assert joiner.add(sample(0, 6), 1.1) == []


def test_a_rank_that_starts_over_while_the_others_go_on_is_told_once_and_is_in_again_when_it_has_caught_up() -> None:
    joiner = settled_joiner(3)
    seconds = 1.0
    for iteration in range(2, 30):
        seconds += 1.0
        add_all(joiner, [sample(0, iteration), sample(1, iteration)], seconds)
        joiner.add(sample(2, iteration - 2, incarnation=1), seconds)
        joiner.tick(seconds + 0.9)
    fallen, back = joiner.laggards.news(seconds)
    assert [(one.rank, one.incarnation, one.started_over, back) for one in fallen] == [(2, 1, True, [])]
    assert joiner.outcomes[Outcome.LATE] == fallen[0].num_samples == 28
    assert (fallen[0].iteration, fallen[0].behind_iteration) == (27, 28)
    assert joiner.laggards.news(seconds + 100) == ([], [])
    frames = add_all(joiner, [sample(0, 40), sample(1, 40), sample(2, 40, incarnation=1)], seconds + 1)
    assert ranks_of(frames[-1]) == [0, 1, 2]
    fallen, back = joiner.laggards.news(seconds + 2)
    assert (fallen, [one.rank for one in back], joiner.laggards.behind(seconds + 100)) == ([], [2], [])
    assert joiner.num_restarts == 0


def test_a_rank_that_is_late_once_is_no_laggard() -> None:
    joiner = settled_joiner(3)
    joiner.add(sample(2, 1), 0.2)
    add_all(joiner, [sample(rank, 2) for rank in range(3)], 50.0)
    assert joiner.laggards.news(100.0) == ([], [])


def test_a_job_all_of_whose_ranks_are_later_processes_that_count_from_0_is_joined_afresh_at_once() -> None:
    joiner = settled_joiner(3)
    for iteration in range(2, 9):
        add_all(joiner, [sample(rank, iteration) for rank in range(3)], 1.0)
    joiner.gone(1, 0, 2.0)
    frames = add_all(
        joiner,
        [sample(rank, iteration, incarnation=1) for iteration in range(4) for rank in range(3)],
        3.0,
    )
    assert joiner.num_restarts == 1
    assert [(frame.iteration, ranks_of(frame)) for frame in frames][-1] == (3, [0, 1, 2])
    assert joiner.laggards.news(100.0) == ([], [])


def test_two_of_three_ranks_that_start_over_do_not_begin_the_job_anew() -> None:
    joiner = settled_joiner(3)
    for iteration in range(2, 9):
        joiner.add(sample(0, iteration), 1.0)
        add_all(joiner, [sample(rank, iteration - 2, incarnation=1) for rank in (1, 2)], 1.0)
    assert joiner.num_restarts == 0


def test_one_late_sample_over_and_over_starts_nothing_afresh() -> None:
    joiner = settled_joiner(2)
    for repetition in range(500):
        assert joiner.add(sample(0, 1), float(repetition)) == []
    assert joiner.num_restarts == 0


@st.composite
def crowds(draw: st.DrawFn) -> list[tuple[str, list[ArrivedSample]]]:
    """Batches of samples as a job of many ranks sends them, nearly in order, with deaths and passing time between."""
    told, incarnations = [], [0] * 8
    num_ranks, num_iterations = draw(st.integers(5, 8)), draw(st.integers(3, 6))
    # What is odd about a few of the samples, by number.
    odd = draw(
        st.dictionaries(st.integers(0, 47), st.sampled_from(["later", "early", "again", "lost", "twice"]), max_size=4)
    )
    newer_epoch_from = draw(st.sampled_from([3, 9, 9, 9]))
    for iteration in range(num_iterations):
        for rank in draw(st.permutations(range(num_ranks))):
            oddity = odd.get(iteration * num_ranks + rank)
            incarnations[rank] += oddity == "again"
            for _ in range({"lost": 0, "twice": 2}.get(oddity or "", 1)):
                told.append(
                    sample(
                        rank,
                        max(0, iteration + (oddity == "early") - (oddity == "later")),
                        epoch=int(iteration >= newer_epoch_from),
                        incarnation=incarnations[rank],
                        offset=len(told),
                    )
                )
    if draw(st.booleans()):  # ranks tell several iterations at once
        at_once = draw(st.integers(2, 4))
        told = sorted(told, key=lambda each: (each.iteration // at_once, each.rank))
    batches = []
    while told:
        size = draw(st.integers(1, 40))
        what = draw(st.sampled_from(["samples"] * 8 + ["tick", "long tick", "death"]))
        batches.append((what, told[:size]))
        told = told[size:]
    return batches


@settings(max_examples=200, deadline=None)
@given(crowds())
def test_samples_that_come_together_make_the_frames_of_samples_one_by_one(
    batches: list[tuple[str, list[ArrivedSample]]],
) -> None:
    together, one_by_one, now_seconds = FrameJoiner(), FrameJoiner(), 100.0
    for what, samples in batches:
        now_seconds += 1.0 if what == "long tick" else 0.05
        block = block_of_arrived(samples)
        at_once = together.add_rows(block, 0, len(samples), now_seconds)
        assert at_once == add_all(one_by_one, block.samples(0, len(samples)), now_seconds)
        if what == "death":
            gone = samples[0].rank, samples[0].incarnation
            assert together.gone(*gone, now_seconds) == one_by_one.gone(*gone, now_seconds)
        elif "tick" in what:
            assert together.tick(now_seconds) == one_by_one.tick(now_seconds)
        assert together.outcomes == one_by_one.outcomes
        assert together.oldest_offset == one_by_one.oldest_offset
    assert together.tick(1e6) == one_by_one.tick(1e6)
