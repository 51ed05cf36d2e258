"""What the progress mark says while the training thread waits, and once it does not any more."""

from evenkeel.trainer_sdk.devices.device import ComputeKind
from evenkeel.trainer_sdk.elastic.measure.clock import BETWEEN_OPERATIONS, Clock, WaitKind
from evenkeel.trainer_sdk.elastic.model.reference import UnpacedDevice
from evenkeel.trainer_sdk.emit.progress import ProgressMark


def test_a_wait_that_is_over_is_nothing_that_a_rank_still_waits_in() -> None:
    progress = ProgressMark()
    clock = Clock(UnpacedDevice(), progress)
    said = clock.wait(WaitKind.GRADIENT, (3,), progress.read)
    assert (said.operation, said.waiting_for) == ("wait:gradient", (3,))
    assert (progress.read().operation, progress.read().waiting_for) == (BETWEEN_OPERATIONS, ())


def test_after_a_wait_inside_compute_it_computes_again() -> None:
    progress = ProgressMark()
    clock = Clock(UnpacedDevice(), progress)
    with clock.computing(ComputeKind.FORWARD):
        said = clock.wait(WaitKind.TENSOR, (1,), progress.read)
        assert said.operation == "wait:tensor"
        assert progress.read().operation == ComputeKind.FORWARD
