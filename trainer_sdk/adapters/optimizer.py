"""An optimizer's step as a phase."""

from typing import Any

from torch.optim import Optimizer

from evenkeel.trainer_sdk.adapters.hook import hook_of
from evenkeel.trainer_sdk.devices.device import ComputeKind
from evenkeel.trainer_sdk.emit.phases import Phases

_MOST_WRAPPERS = 8


def watch_optimizer(optimizer: Any, phases: Phases) -> None:
    """From now on its steps are measured. An optimizer that waits for others in its step must not be watched.

    Args:
        optimizer: One of torch's, or what a library has wrapped around it and gives as ``optimizer``.
        phases: Told.

    Raises:
        ValueError: There is none of torch's in it.
    """

    def optimizer_begins(*_: Any) -> None:
        phases.compute(ComputeKind.OPTIMIZER)

    def optimizer_ends(*_: Any) -> None:
        phases.rest()

    inner = _unwrapped(optimizer)
    inner.register_step_pre_hook(hook_of(phases, optimizer_begins))
    inner.register_step_post_hook(hook_of(phases, optimizer_ends))


def _unwrapped(optimizer: Any) -> Optimizer:
    """The optimizer that has hooks: a wrapper may be an Optimizer by its class and never have been made one."""
    inner = optimizer
    for _ in range(_MOST_WRAPPERS):
        if isinstance(inner, Optimizer) and hasattr(inner, "_optimizer_step_pre_hooks"):
            return inner
        inner = getattr(inner, "optimizer", None)
    raise ValueError(f"{type(optimizer).__qualname__} is no torch optimizer, nor is one its .optimizer: not measured")
