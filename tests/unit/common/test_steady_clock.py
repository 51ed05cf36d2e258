"""A clock that is set neither goes back nor makes hours of seconds, and agrees with the machine's again in time."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.services.common.steady_clock import SteadyClock


@dataclass
class Machine:
    """A machine's two clocks."""

    wall_seconds: float = 1.7e9
    monotonic_seconds: float = 50.0

    def clock(self) -> SteadyClock:
        return SteadyClock(lambda: self.wall_seconds, lambda: self.monotonic_seconds)

    def pass_seconds(self, seconds: float) -> None:
        self.wall_seconds += seconds
        self.monotonic_seconds += seconds


@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.sampled_from([0.0, 0.0, 2.0, -2.0, 3600.0, -3600.0])), max_size=30))
def test_durations_are_right_within_a_sixteenth_whenever_the_machines_clock_is_set(
    steps: list[tuple[float, float]],
) -> None:
    machine = Machine()
    clock = machine.clock()
    for seconds, set_by_seconds in steps:
        before = clock()
        machine.wall_seconds += set_by_seconds
        machine.pass_seconds(seconds)
        # Unix seconds of today have steps of a quarter of a microsecond.
        assert abs(clock() - before - seconds) <= seconds / 16 + 2e-6


@pytest.mark.parametrize("set_by_seconds", [2.0, -2.0])
def test_a_step_of_ntp_is_caught_up_with_in_half_a_minute(set_by_seconds: float) -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall_seconds += set_by_seconds
    for _ in range(310):
        machine.pass_seconds(0.1)
        clock()
    assert abs(clock() - machine.wall_seconds) < 0.1
    for _ in range(20):
        machine.pass_seconds(0.1)
    assert clock() == pytest.approx(machine.wall_seconds, abs=1e-6)


def test_while_nobody_sets_it_the_machines_clock_is_followed_however_rarely_one_looks() -> None:
    machine = Machine()
    clock = machine.clock()
    for seconds in (1e-4, 0.05, 30.0, 86_400.0):
        machine.pass_seconds(seconds)
        machine.wall_seconds += seconds * 5e-4  # as NTP does when it is near
        assert clock() == pytest.approx(machine.wall_seconds, abs=1e-6)
