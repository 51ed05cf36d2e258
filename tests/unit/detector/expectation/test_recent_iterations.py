import numpy as np

from evenkeel.services.detector.adapters.snapshot import dump, load
from evenkeel.services.detector.domain.expectation.profile.recent import RecentIterations


def rows(*micro_batches: tuple[int, int, int]) -> np.ndarray:
    return np.array(micro_batches, dtype=np.float64)


def test_each_micro_batch_is_there_once_by_its_index_whoever_named_it() -> None:
    recent = RecentIterations()
    recent.append(7, 0.5, rows((1, 20, 400), (0, 10, 50), (1, 20, 400)))
    (one,) = recent.iterations()
    assert (one.iteration, one.wall_seconds, one.tokens, one.sums_of_squares) == (7, 0.5, (10, 20), (50, 400))


def test_an_iteration_that_lacks_a_micro_batch_is_left_out_wherever_it_lacks_it() -> None:
    recent = RecentIterations()
    recent.append(0, 0.5, rows((0, 1, 1), (2, 1, 1)))
    recent.append(1, 0.5, rows((0, 1, 1), (1, 1, 1), (2, 1, 1)))
    recent.append(2, 0.5, rows((0, 1, 1), (1, 1, 1)))
    recent.append(3, 0.5, None)
    assert [one.iteration for one in recent.iterations()] == [1]


def test_only_the_newest_are_kept_and_the_fewer_the_larger_they_are() -> None:
    small, large, huge = RecentIterations(), RecentIterations(), RecentIterations()
    for iteration in range(40):
        small.append(iteration, 1.0, rows((0, 1, 1)))
        large.append(iteration, 1.0, rows(*[(index, 1, 1) for index in range(1000)]))
        huge.append(iteration, 1.0, rows(*[(index, 1, 1) for index in range(3000)]))
    assert [one.iteration for one in small.iterations()] == list(range(24, 40))
    assert [one.iteration for one in large.iterations()] == [38, 39]
    assert huge.iterations() == ()


def test_a_restored_one_goes_on_as_if_nothing_had_happened() -> None:
    through, killed = RecentIterations(), RecentIterations()
    for iteration in range(60):
        # Mostly the same micro-batches, at times others, named by one or by two, or one of them by nobody.
        named = [(1, iteration, 7), (0, 2 * iteration, 9)]
        if iteration % 23 in (5, 6, 7):
            named = [*named, named[0]]
        if iteration % 29 in (3, 4):
            named = [(2, iteration, 1), *named]
        if iteration % 31 == 30:
            del named[-1]
        through.append(iteration, 1.0, rows(*named))
        killed.append(iteration, 1.0, rows(*named))
        restored = RecentIterations()
        load(restored, dump(killed))
        killed = restored
        assert killed.iterations() == through.iterations()
        assert dump(killed) == dump(through)


def test_what_was_told_stays_as_it_was_when_more_iterations_come() -> None:
    recent = RecentIterations()
    for iteration in range(20):
        recent.append(iteration, 1.0, rows((0, iteration, 1)))
    told = recent.iterations()
    recent.append(20, 1.0, rows((0, 99, 1)))
    assert [one.iteration for one in told] == list(range(4, 20))
    assert told == tuple(told)
    assert told[-1].tokens == (19,)


def test_what_ran_before_devices_changed_is_forgotten() -> None:
    recent = RecentIterations()
    for iteration in range(5):
        recent.append(iteration, 1.0, rows((0, 1, 1)))
    recent.forget_before(3)
    assert [one.iteration for one in recent.iterations()] == [3, 4]
