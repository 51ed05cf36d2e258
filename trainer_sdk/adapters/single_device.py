"""Models that compute on one device and wait for nobody."""

from typing import Any

from torch import nn

from evenkeel.trainer_sdk.adapters.backward_pass import BackwardPass
from evenkeel.trainer_sdk.devices.device import ComputeKind
from evenkeel.trainer_sdk.emit.phases import Phases


class SingleDeviceAdapter:
    """Takes any model; what it waits for inside of its passes would be taken for compute."""

    def matches(self, model: nn.Module) -> bool:
        """Always."""
        return True

    def watch(self, model: nn.Module, phases: Phases) -> None:
        """Measure its passes."""
        watch_passes(model, phases, BackwardPass(phases, waits_for=lambda: ()))


def watch_passes(model: nn.Module, phases: Phases, backward: BackwardPass) -> None:
    """Measure forward passes of ``model`` and the backward passes that come from them."""

    def begins(*_: Any) -> None:
        phases.compute(ComputeKind.FORWARD)

    def ends(_: nn.Module, __: Any, output: Any) -> None:
        phases.rest()
        backward.expect(output)

    model.register_forward_pre_hook(phases.guard.hook(begins))
    model.register_forward_hook(phases.guard.hook(ends))
