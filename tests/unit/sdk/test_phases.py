"""Where a plain loop's time goes: phases on a simulated clock."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from evenkeel.trainer_sdk.devices.device import ComputeKind
from evenkeel.trainer_sdk.devices.real_device import CpuDevice
from evenkeel.trainer_sdk.emit.phases import Phases
from evenkeel.trainer_sdk.emit.progress import ProgressMark


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def new_phases() -> tuple[Phases, ProgressMark, Clock]:
    clock, progress = Clock(), ProgressMark()
    return Phases(CpuDevice(clock), progress, clock), progress, clock


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
    _, computed, waited, _ = phases.end_iteration()
    of = {name: sum(seconds for step, seconds in steps if step == name) for name in ENTER}
    assert {kind.value: seconds for kind, seconds in computed.seconds.items() if seconds} == {
        name: of[name] for name in ("forward", "backward") if of[name]
    }
    assert waited == of["wait:gradient"]
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
    _, computed, waited, _ = phases.end_iteration()
    assert (computed.seconds, waited) == ({}, 0.0)
