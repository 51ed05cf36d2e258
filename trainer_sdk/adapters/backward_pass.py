"""A backward pass as phases: it computes from its first gradient to its last, then others may be waited for."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook

from evenkeel.trainer_sdk.adapters.hook import hook_of
from evenkeel.trainer_sdk.devices.device import ComputeKind
from evenkeel.trainer_sdk.emit.phases import Phases


class BackwardPass:
    """Watches the backward passes of one model.

    Autograd runs what was queued during a pass once all gradients are there, in the order of queueing. Ours is queued
    with the first gradient, before that of DDP and FSDP2, which waits for the exchange; what ours queues in turn comes
    after it.

    Args:
        phases: Told.
        waits_for: Ranks that are waited for after the pass; none: nobody is.
    """

    def __init__(self, phases: Phases, waits_for: Callable[[], tuple[int, ...]]) -> None:
        self._phases = phases
        self._hook = partial(hook_of, phases)
        self._waits_for = waits_for
        self.running = False

    def expect(self, output: Any) -> None:
        """A forward pass gave this, from which a backward pass may come; an earlier one that failed is forgotten."""
        self.running = False
        tensors = tuple(differentiable_tensors(output))
        if tensors:
            register_multi_grad_hook(tensors, self._hook(self._begins), mode="any")

    def begin(self) -> None:
        """The first gradient is there; called again during the pass, it does nothing."""
        if not self.running:
            self.running = True
            _when_computed(self._hook(self._computed))

    def _begins(self, _: torch.Tensor) -> None:
        self.begin()
        self._phases.compute(ComputeKind.BACKWARD)

    def _computed(self) -> None:
        ranks = self._waits_for()
        if ranks:
            self._phases.wait("gradient", ranks)
            _when_computed(self._hook(self._over))
        else:
            self._over()

    def _over(self) -> None:
        self.running = False
        self._phases.rest()


def watch_passes(model: nn.Module, phases: Phases, backward: BackwardPass) -> None:
    """Measure forward passes of ``model`` and the backward passes that come from them."""

    def begins(*_: Any) -> None:
        phases.compute(ComputeKind.FORWARD)

    def ends(_: nn.Module, __: Any, output: Any) -> None:
        phases.rest()
        backward.expect(output)

    # Before those of others: what they do is no wait.
    model.register_forward_pre_hook(hook_of(phases, begins), prepend=True)
    model.register_forward_hook(hook_of(phases, ends))


def _when_computed(callback: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def differentiable_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Those in nested tuples, lists, mappings and dataclasses through which a backward pass will come."""
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            yield value
        return
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, (tuple, list)):
        parts = value
    elif is_dataclass(value) and not isinstance(value, type):
        parts = (getattr(value, field.name) for field in fields(value))
    for part in parts:
        yield from differentiable_tensors(part)
