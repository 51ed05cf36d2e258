import pytest

from evenkeel.services.telemetry.domain import joiner as joiner_module
from evenkeel.services.telemetry.domain import open_table
from evenkeel.services.telemetry.domain.joiner import FrameJoiner, Outcome
from tests.unit.telemetry.joining import Seen, add, add_all, seen, settled_joiner
from tests.unit.telemetry.samples import sample


def test_a_frame_closes_with_its_last_sample() -> None:
    joiner = settled_joiner(3)
    assert add_all(joiner, [sample(2, 2), sample(0, 2)], 1.0) == []
    [frame] = add_all(joiner, [sample(1, 2)], 1.2)
    assert (frame.epoch, frame.iteration, frame.ranks, frame.missing) == (0, 2, [0, 1, 2], [])


def test_the_first_frame_waits_for_ranks_nobody_has_heard_of() -> None:
    joiner = FrameJoiner()
    assert add_all(joiner, [sample(0, 0)], 0.0) == []
    assert add_all(joiner, [sample(0, 1)], 0.1) != []


def test_a_rank_that_went_on_without_a_sample_is_missing_at_once() -> None:
    joiner = settled_joiner(3)
    assert add_all(joiner, [sample(0, 2), sample(1, 2)], 1.0) == []
    [frame] = add_all(joiner, [sample(2, 3)], 1.0)
    assert (frame.iteration, frame.ranks, frame.missing) == (2, [0, 1], [2])


def test_a_dead_rank_is_not_waited_for() -> None:
    joiner = settled_joiner(3)
    assert add_all(joiner, [sample(0, 2), sample(1, 2)], 1.0) == []
    [frame] = seen(joiner.gone(2, 0, 1.0))
    assert frame.ranks == [0, 1]
    [frame] = add_all(joiner, [sample(0, 3), sample(1, 3)], 1.1)
    assert (frame.iteration, frame.missing) == (3, [])


def test_news_of_an_older_process_of_a_rank_changes_nothing() -> None:
    joiner = FrameJoiner()
    for iteration in range(2):
        add_all(joiner, [sample(rank, iteration, incarnation=1) for rank in range(2)], 0.0)
    add_all(joiner, [sample(0, 2, incarnation=1)], 0.1)
    assert seen(joiner.gone(1, 0, 0.1)) == []
    [frame] = add_all(joiner, [sample(1, 2, incarnation=1)], 0.1)
    assert frame.ranks == [0, 1]


def test_a_silent_rank_costs_one_patience_and_then_no_more_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_table, "MAX_MISSED", 1)
    joiner = settled_joiner(2)
    add_all(joiner, [sample(0, 2)], 1.0)
    assert seen(joiner.tick(1.4)) == []
    [frame] = seen(joiner.tick(1.5))
    assert frame.missing == [1]
    [frame] = add_all(joiner, [sample(0, 3)], 1.6)
    assert frame.missing == [1]


def test_a_silent_rank_that_comes_back_is_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_table, "MAX_MISSED", 1)
    joiner = settled_joiner(2)
    add_all(joiner, [sample(0, 2)], 1.0)
    seen(joiner.tick(9.0))
    [frame] = add_all(joiner, [sample(1, 3), sample(0, 3)], 9.1)
    assert frame.ranks == [0, 1]
    assert add_all(joiner, [sample(0, 4)], 9.2) == []


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
    assert [(each.epoch, each.iteration, each.ranks, each.missing) for each in closed] == [
        (1, 2, [0, 1, 2], []),
        (1, 3, [0, 1, 2], []),
    ]


def test_a_layout_that_grew_has_its_joiner_in_the_first_frame() -> None:
    joiner = settled_joiner(2)
    add_all(joiner, [sample(rank, 2, epoch=1) for rank in (0, 1)], 1.0)
    add_all(joiner, [sample(2, 2, epoch=1)], 1.05)
    closed = add_all(joiner, [sample(rank, 3, epoch=1) for rank in (0, 1, 2)], 1.1)
    assert [each.ranks for each in closed] == [[0, 1, 2], [0, 1, 2]]


def test_an_iteration_that_a_newer_epoch_runs_again_supersedes_the_open_frame() -> None:
    joiner = settled_joiner(3)
    add_all(joiner, [sample(0, 2), sample(1, 2)], 1.0)
    add_all(joiner, [sample(0, 2, epoch=1), sample(1, 2, epoch=1)], 1.5)
    closed = add_all(joiner, [sample(0, 3, epoch=1), sample(1, 3, epoch=1)], 1.6)
    assert [(each.epoch, each.iteration) for each in closed] == [(1, 2), (1, 3)]
    assert joiner.num_superseded == 2
    assert add_all(joiner, [sample(2, 2)], 1.7) == []
    assert joiner.outcomes[Outcome.LATE] == 1


def test_the_last_frame_of_an_older_epoch_closes_before_the_newer_ones() -> None:
    joiner = settled_joiner(3)
    add_all(joiner, [sample(0, 2), sample(1, 2)], 1.0)
    add_all(joiner, [sample(0, 3, epoch=1), sample(1, 3, epoch=1)], 1.1)
    assert seen(joiner.tick(1.2)) == []
    closed = seen(joiner.tick(1.36)) + add_all(joiner, [sample(0, 4, epoch=1), sample(1, 4, epoch=1)], 1.4)
    assert [(each.epoch, each.iteration, each.missing) for each in closed] == [
        (0, 2, [2]),
        (1, 3, []),
        (1, 4, []),
    ]


def test_what_came_twice_is_counted_and_dropped() -> None:
    joiner = settled_joiner(2)
    add_all(joiner, [sample(0, 2)], 1.0)
    assert add_all(joiner, [sample(0, 2)], 1.0) == []
    [frame] = add_all(joiner, [sample(1, 2)], 1.0)
    assert frame.ranks == [0, 1]
    assert joiner.outcomes[Outcome.DUPLICATE] == 1


def test_a_rank_that_was_given_up_and_is_always_a_little_later_than_the_others_is_waited_for_again() -> None:
    joiner = settled_joiner(2)
    frames: list[Seen] = []
    for iteration in range(2, 20):
        at = 0.3 * iteration
        frames += seen(joiner.tick(at))
        frames += add_all(joiner, [sample(0, iteration)], at)
        if iteration >= 8:  # silent before, and from here on 0.1 s behind
            frames += add_all(joiner, [sample(1, iteration)], at + 0.1)
    whole = [frame.iteration for frame in frames if frame.ranks == [0, 1]]
    assert whole == list(range(whole[0], 20))
    assert whole[0] <= 10


def test_what_comes_after_its_frame_closed_is_late() -> None:
    joiner = settled_joiner(2)
    assert add_all(joiner, [sample(0, 1)], 1.0) == []
    assert joiner.outcomes[Outcome.LATE] == 1


def test_one_rank_with_a_spoiled_counter_does_not_end_the_job() -> None:
    joiner = settled_joiner(2)
    add_all(joiner, [sample(0, 10**12)], 1.0)
    assert seen(joiner.tick(100.0)) != []
    frames = []
    for iteration in range(2, 60):
        frames += add_all(joiner, [sample(0, iteration), sample(1, iteration)], 100.0 + iteration)
    assert joiner.num_restarts == 1
    assert frames[-1].iteration == 59
    assert frames[-1].ranks == [0, 1]


def test_what_ranks_kept_while_kafka_was_away_makes_whole_frames_though_they_send_it_one_after_the_other() -> None:
    joiner = settled_joiner(8)
    backlog = [sample(rank, iteration) for rank in range(8) for iteration in range(2, 102)]
    closed = add_all(joiner, backlog, 1.0)
    assert [(each.iteration, each.ranks, each.missing) for each in closed] == [
        (iteration, list(range(8)), []) for iteration in range(2, 102)
    ]


def test_too_many_open_frames_close_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joiner_module, "MAX_OPEN_FRAMES", 4)
    monkeypatch.setattr(joiner_module, "MAX_OPEN_ROWS", 12)
    joiner = settled_joiner(3)
    closed = []
    for iteration in range(2, 10):
        closed += add_all(joiner, [sample(0, iteration), sample(1, iteration)], 1.0)
    assert [each.iteration for each in closed][:4] == [2, 3, 4, 5]
    assert all(each.missing == [2] for each in closed)


def test_the_oldest_offset_is_that_of_the_oldest_open_frame() -> None:
    joiner = settled_joiner(2)
    assert joiner.oldest_offset is None
    add_all(joiner, [sample(0, 2, offset=70)], 1.0)
    add_all(joiner, [sample(0, 3, offset=71)], 1.0)
    assert joiner.oldest_offset == 70
    add_all(joiner, [sample(1, 2, offset=72)], 1.0)
    assert joiner.oldest_offset == 71


def test_a_restarted_joiner_repeats_nothing_and_expects_the_same_ranks() -> None:
    before = settled_joiner(3)
    add_all(before, [sample(0, 2, offset=20), sample(1, 2, offset=21)], 1.0)
    [last] = add(before, [sample(2, 2, offset=22)], 1.0)
    after = FrameJoiner()
    after.resume(last, until_offset=22)
    assert add_all(after, [sample(0, 2, offset=20), sample(2, 2, offset=22)], 5.0) == []
    assert after.outcomes[Outcome.REPLAYED] == 2
    assert add_all(after, [sample(0, 3, offset=23), sample(1, 3, offset=24)], 5.0) == []
    [frame] = add_all(after, [sample(2, 3, offset=25)], 5.0)
    assert (frame.iteration, frame.missing) == (3, [])


def test_a_rank_that_lost_samples_and_reports_again_is_not_silent() -> None:
    joiner = settled_joiner(2)
    for iteration in range(2, 6):
        add_all(joiner, [sample(0, iteration)], 1.0)
    closed = add_all(joiner, [sample(1, 5)], 1.0)
    assert [(each.iteration, each.missing) for each in closed] == [(2, [1]), (3, [1]), (4, [1]), (5, [])]
    assert add_all(joiner, [sample(0, 6)], 1.1) == []


def test_a_rank_that_starts_over_while_the_others_go_on_is_told_once_and_is_in_again_when_it_has_caught_up() -> None:
    joiner = settled_joiner(3)
    seconds = 1.0
    for iteration in range(2, 30):
        seconds += 1.0
        add_all(joiner, [sample(0, iteration), sample(1, iteration)], seconds)
        add_all(joiner, [sample(2, iteration - 2, incarnation=1)], seconds)
        seen(joiner.tick(seconds + 0.9))
    fallen, back = joiner.laggards.news(seconds)
    assert [(one.rank, one.incarnation, one.started_over, back) for one in fallen] == [(2, 1, True, [])]
    assert joiner.outcomes[Outcome.LATE] == fallen[0].num_samples == 28
    assert (fallen[0].iteration, fallen[0].behind_iteration) == (27, 28)
    assert joiner.laggards.news(seconds + 100) == ([], [])
    frames = add_all(joiner, [sample(0, 40), sample(1, 40), sample(2, 40, incarnation=1)], seconds + 1)
    assert frames[-1].ranks == [0, 1, 2]
    fallen, back = joiner.laggards.news(seconds + 2)
    assert (fallen, [one.rank for one in back], joiner.laggards.behind(seconds + 100)) == ([], [2], [])
    assert joiner.num_restarts == 0


def test_a_rank_that_is_late_once_is_no_laggard() -> None:
    joiner = settled_joiner(3)
    add_all(joiner, [sample(2, 1)], 0.2)
    add_all(joiner, [sample(rank, 2) for rank in range(3)], 50.0)
    assert joiner.laggards.news(100.0) == ([], [])


def test_a_job_all_of_whose_ranks_are_later_processes_that_count_from_0_is_joined_afresh_at_once() -> None:
    joiner = settled_joiner(3)
    for iteration in range(2, 9):
        add_all(joiner, [sample(rank, iteration) for rank in range(3)], 1.0)
    seen(joiner.gone(1, 0, 2.0))
    frames = add_all(
        joiner,
        [sample(rank, iteration, incarnation=1) for iteration in range(4) for rank in range(3)],
        3.0,
    )
    assert joiner.num_restarts == 1
    assert [(frame.iteration, frame.ranks) for frame in frames][-1] == (3, [0, 1, 2])
    assert joiner.laggards.news(100.0) == ([], [])


def test_two_of_three_ranks_that_start_over_do_not_begin_the_job_anew() -> None:
    joiner = settled_joiner(3)
    for iteration in range(2, 9):
        add_all(joiner, [sample(0, iteration)], 1.0)
        add_all(joiner, [sample(rank, iteration - 2, incarnation=1) for rank in (1, 2)], 1.0)
    assert joiner.num_restarts == 0


def test_one_late_sample_over_and_over_starts_nothing_afresh() -> None:
    joiner = settled_joiner(2)
    for repetition in range(500):
        assert add(joiner, [sample(0, 1)], float(repetition)) == []
    assert joiner.num_restarts == 0
