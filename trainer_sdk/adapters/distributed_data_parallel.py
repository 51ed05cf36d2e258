"""``torch.nn.parallel.DistributedDataParallel``: gradients are exchanged while the backward pass computes."""

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from evenkeel.trainer_sdk.adapters.backward_pass import BackwardPass, watch_passes
from evenkeel.trainer_sdk.adapters.hook import hook_of
from evenkeel.trainer_sdk.emit.phases import Phases


def distributed_in(model: nn.Module) -> DistributedDataParallel | None:
    """The wrapper of a model that DDP wraps, compiled or not."""
    # Asking for the class of what is compiled would load the compiler, for seconds.
    original = getattr(model, "_orig_mod", model)
    return original if isinstance(original, DistributedDataParallel) else None


def watch_distributed(model: nn.Module, wrapper: DistributedDataParallel, phases: Phases) -> None:
    """Measure the passes of the model inside, and mark the waits around them.

    Those are for buffers, before a forward pass, and for the exchange, once all gradients are computed.
    """
    others = tuple(rank for rank in dist.get_process_group_ranks(wrapper.process_group) if rank != dist.get_rank())

    def waits_for() -> tuple[int, ...]:
        return others if wrapper.require_backward_grad_sync else ()

    def prepares(*_: Any) -> None:
        phases.wait("buffers", others)

    inside = model  # what is compiled as a whole has no hooks within
    if wrapper is model:
        inside = wrapper.module
        model.register_forward_pre_hook(hook_of(phases, prepares))
    watch_passes(inside, phases, BackwardPass(phases, waits_for))
