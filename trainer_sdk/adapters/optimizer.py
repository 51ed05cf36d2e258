"""An optimizer's step as a phase."""

from typing import Any

from torch.optim import Optimizer

from evenkeel.trainer_sdk.devices.device import ComputeKind
from evenkeel.trainer_sdk.emit.phases import Phases


def watch_optimizer(optimizer: Optimizer, phases: Phases) -> None:
    """From now on its steps are measured. An optimizer that waits for others in its step must not be watched."""

    def begins(*_: Any) -> None:
        phases.compute(ComputeKind.OPTIMIZER)

    def ends(*_: Any) -> None:
        phases.rest()

    optimizer.register_step_pre_hook(begins)
    optimizer.register_step_post_hook(ends)
