"""The time of a partition is the broker's, and stands still while nobody knows what is there."""

from hypothesis import given
from hypothesis import strategies as st

from evenkeel.services.telemetry.partition_clock import PartitionClock


def test_time_is_that_of_the_newest_record_however_late_it_is_read() -> None:
    clock = PartitionClock()
    assert clock.read([100.0, 100.5, 101.0], 5000.0) is None
    assert clock.now_seconds == 101.0
    assert clock.read([101.4], 9000.0) is None
    assert clock.now_seconds == 101.4


def test_where_nothing_more_is_there_time_goes_on_as_far_as_the_broker_has_said_so() -> None:
    clock = PartitionClock()
    assert clock.nothing_more(50.0) is None
    assert clock.now_seconds == 0.0, "nothing was read yet"
    clock.read([100.0], 7.0)
    clock.nothing_more(8.5)
    assert clock.now_seconds == 101.5
    clock.nothing_more(6.0)
    assert clock.now_seconds == 101.5


def test_a_time_in_which_nobody_was_heard_is_a_cut_and_several_are_as_long_as_all() -> None:
    clock = PartitionClock()
    clock.read([100.0], 0.0)
    assert clock.read([101.0, 111.0, 112.0, 117.0, 117.5], 1.0) == (117.0, 15.0)
    assert clock.nothing_more(4.0) is None
    assert clock.nothing_more(44.0) == (160.5, 40.0)


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 60.0))))
def test_time_never_goes_back(steps: list[tuple[bool, float]]) -> None:
    clock, before = PartitionClock(), 0.0
    for is_record, seconds in steps:
        if is_record:
            clock.read([1000.0 + seconds], seconds)
        else:
            clock.nothing_more(seconds)
        assert clock.now_seconds >= before
        before = clock.now_seconds
