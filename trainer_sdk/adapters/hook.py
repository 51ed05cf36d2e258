"""Hooks on torch: what goes wrong in them stays out of the loop, and a compiler leaves them alone."""

from collections.abc import Callable
from typing import Any

import torch

from evenkeel.trainer_sdk.emit.phases import Phases


def hook_of(phases: Phases, function: Callable[..., None]) -> Callable[..., None]:
    """The function, to be registered with torch; compiled, it would end a training that compiles its model whole."""
    apart: Any = torch.compiler.disable(phases.guard.hook(function))  # type: ignore[no-untyped-call]
    return apart  # type: ignore[no-any-return]
