"""Where a plain loop's time goes: phases on a simulated clock."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.trainer_sdk.devices.device import ComputeKind
from evenkeel.trainer_sdk.devices.real_device import CpuDevice
from evenkeel.trainer_sdk.emit.phases import Phases
from evenkeel.trainer_sdk.emit.progress import Mark, ProgressMark


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def new_phases(**options: str) -> tuple[Phases, ProgressMark, Clock]:
    clock, progress = Clock(), ProgressMark()
    return Phases(CpuDevice(clock), progress, clock, **options), progress, clock


ENTER: dict[str, Callable[[Phases], None]] = {
    "forward": lambda phases: phases.compute(ComputeKind.FORWARD),
    "backward": lambda phases: phases.compute(ComputeKind.BACKWARD),
    "wait:gradient": lambda phases: phases.wait("gradient", (3,)),
    "iteration": Phases.rest,
}


@given(steps=st.lists(st.tuples(st.sampled_from(sorted(ENTER)), st.integers(0, 9)), max_size=12))
def test_each_moment_counts_for_the_phase_that_was_entered_last(steps: list[tuple[str, int]]) -> None:
    phases, progress, clock = new_phases()
    phases.begin_iteration(5)
    for name, seconds in steps:
        ENTER[name](phases)
        assert progress.read().operation == name
        assert progress.read().waiting_for == ((3,) if name.startswith("wait") else ())
        clock.seconds += seconds
    phased = phases.end_iteration()
    of = {name: sum(seconds for step, seconds in steps if step == name) for name in ENTER}
    assert {kind.value: seconds for kind, seconds in phased.computed.seconds.items() if seconds} == {
        name: of[name] for name in ("forward", "backward") if of[name]
    }
    assert sum(phased.waited_seconds.values()) == of["wait:gradient"]
    assert progress.read().iteration == 5


def test_what_is_planned_is_the_operation_of_a_rank_in_no_phase() -> None:
    phases, progress, _ = new_phases()
    phases.begin_iteration(0, mark="evaluation")
    assert progress.read().operation == "evaluation"
    phases.compute(ComputeKind.FORWARD)
    phases.rest()
    assert progress.read().operation == "evaluation"
    phases.end_iteration()
    phases.pause("checkpoint")
    assert progress.read().operation == "checkpoint"
    phases.pause("")
    assert progress.read().operation == "between iterations"


def test_outside_of_an_iteration_nothing_is_measured_or_marked() -> None:
    phases, progress, clock = new_phases()
    phases.begin_iteration(0)
    phases.end_iteration()
    for enter in ENTER.values():
        enter(phases)
        clock.seconds += 1.0
    assert progress.read().operation == "between iterations"
    phases.begin_iteration(1)
    phased = phases.end_iteration()
    assert (phased.computed.seconds, phased.waited_seconds) == ({}, {})


def test_after_a_wait_that_is_over_it_does_what_it_did_before() -> None:
    phases, progress, clock = new_phases(in_none="between operations")
    phases.begin_iteration(0)

    def answer() -> Mark:
        clock.seconds += 2.0
        return progress.read()

    said = phases.waits("gradient", (3,), answer)
    assert (said.operation, said.waiting_for) == ("wait:gradient", (3,))
    assert (progress.read().operation, progress.read().waiting_for) == ("between operations", ())
    with phases.segments[ComputeKind.FORWARD]:
        clock.seconds += 1.0
        assert phases.waits("tensor", (1,), answer).operation == "wait:tensor"
        assert progress.read().operation == ComputeKind.FORWARD
        clock.seconds += 1.0
    phased = phases.end_iteration()
    assert phased.waited_seconds == {"gradient": 2.0, "tensor": 2.0}
    assert phased.computed.seconds == {ComputeKind.FORWARD: 2.0}
    assert phased.wall_seconds == 6.0
    assert progress.read().operation == "between operations"


def test_what_was_broken_off_by_an_error_counts_for_nothing() -> None:
    phases, _, clock = new_phases()

    def fail() -> None:
        clock.seconds += 2.0
        raise ConnectionError

    phases.begin_iteration(0)
    with pytest.raises(ConnectionError), phases.segments[ComputeKind.FORWARD]:
        phases.waits("tensor", (1,), fail)
    phased = phases.end_iteration()
    assert (phased.computed.seconds[ComputeKind.FORWARD], phased.waited_seconds) == (0.0, {})
