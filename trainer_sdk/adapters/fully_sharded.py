"""``torch.distributed.fsdp.fully_shard``: parameters are gathered before a module, gradients scattered after."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import register_multi_grad_hook
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from evenkeel.trainer_sdk.adapters.backward_pass import BackwardPass, differentiable_tensors
from evenkeel.trainer_sdk.adapters.hook import hook_of
from evenkeel.trainer_sdk.devices.device import ComputeKind
from evenkeel.trainer_sdk.emit.phases import Phases


def is_sharded(model: nn.Module) -> bool:
    """Whether it, or a module in it, is sharded."""
    return any(isinstance(module, FSDPModule) for module in model.modules())


def watch_sharded(model: nn.Module, phases: Phases) -> None:
    """Measure all passes of the model but what its sharded modules wait for.

    Hooks of ours stand on both sides of those of ``fully_shard``; what happens between them is waiting.

    Raises:
        ValueError: Only parts of the model are sharded: the outermost module must be.
    """
    if not isinstance(model, FSDPModule):
        raise ValueError("fully_shard the whole model too, not only modules in it: else its waits are not seen")
    others = _others(model)
    backward = BackwardPass(phases, waits_for=lambda: others)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            _Sharded(module, phases, backward, others).watch(outermost=module is model)


class _Sharded:
    """One sharded module."""

    def __init__(self, module: nn.Module, phases: Phases, backward: BackwardPass, others: tuple[int, ...]) -> None:
        self._module = module
        self._phases = phases
        self._hook = partial(hook_of, phases)
        self._backward = backward
        self._others = others
        self._outputs: tuple[torch.Tensor, ...] = ()
        self._nodes = set[Any]()

    def watch(self, *, outermost: bool) -> None:
        hook = self._hook
        self._module.register_forward_pre_hook(hook(self._before_gather), prepend=True, with_kwargs=True)
        self._module.register_forward_pre_hook(hook(self._after_gather), with_kwargs=True)
        self._module.register_forward_hook(hook(self._computed), prepend=True)
        self._module.register_forward_hook(hook(self._left))
        if outermost:
            self._module.register_forward_hook(hook(self._begins_backward), prepend=True)
            self._module.register_forward_hook(hook(self._ends_forward))

    def _before_gather(self, _: nn.Module, *inputs: Any) -> None:
        self._nodes = {tensor.grad_fn for tensor in self._expected(inputs)}
        self._when_any(inputs, self._compute)
        self._wait()

    def _after_gather(self, _: nn.Module, *inputs: Any) -> None:
        # fully_shard has led them through a node of its own, which runs once the gradients of all are there. A hook of
        # torch's on several tensors would keep their graph for ever.
        before, self._nodes = self._nodes, set()
        for node in {tensor.grad_fn for tensor in self._expected(inputs)} - before:
            if node is not None:
                node.register_prehook(self._hook(self._wait))
        self._compute()

    def _computed(self, _: nn.Module, __: Any, output: Any) -> None:
        # Kept, as fully_shard hooks on these and may cast them afterwards.
        self._outputs = self._expected(output)
        self._when_any(output, self._gathers_again)

    def _left(self, *_: Any) -> None:
        outputs, self._outputs = self._outputs, ()
        self._when_any(outputs, self._compute)

    def _begins_backward(self, _: nn.Module, __: Any, output: Any) -> None:
        self._backward.expect(output)

    def _ends_forward(self, *_: Any) -> None:
        self._phases.rest()

    def _when_any(self, value: Any, then: Callable[..., None]) -> None:
        """Once the first gradient of these is there."""
        tensors = self._expected(value)
        if tensors:
            register_multi_grad_hook(tensors, self._hook(then), mode="any")

    def _expected(self, value: Any) -> tuple[torch.Tensor, ...]:
        """Tensors whose gradients a later backward pass computes; none while one recomputes activations."""
        return () if self._backward.running else tuple(differentiable_tensors(value))

    def _compute(self, *_: Any) -> None:
        self._phases.compute(ComputeKind.BACKWARD if self._backward.running else ComputeKind.FORWARD)

    def _gathers_again(self, *_: Any) -> None:
        # The outermost module may give what this one gave, whose hooks then come first.
        self._backward.begin()
        self._wait()

    def _wait(self, *_: Any) -> None:
        self._phases.wait("parameters", self._others)


def _others(model: nn.Module) -> tuple[int, ...]:
    """The other ranks of the mesh that the model's parameters are sharded over."""
    ranks = {
        int(rank)
        for parameter in model.parameters()
        if isinstance(parameter, DTensor)
        for rank in parameter.device_mesh.mesh.flatten().tolist()
    }
    return tuple(sorted(ranks - {dist.get_rank()}))
