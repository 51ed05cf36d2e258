"""Tells compute from waiting in a model, whatever wraps it, by its public hooks."""

from torch import nn

from evenkeel.trainer_sdk.adapters.backward_pass import BackwardPass, watch_passes
from evenkeel.trainer_sdk.adapters.distributed_data_parallel import distributed_in, watch_distributed
from evenkeel.trainer_sdk.adapters.fully_sharded import is_sharded, watch_sharded
from evenkeel.trainer_sdk.emit.phases import Phases


def watch_model(model: nn.Module, phases: Phases) -> None:
    """From now on the model's forward and backward passes switch the phases.

    In a model that neither DDP nor ``fully_shard`` knows, what it waits for inside of its passes is taken for compute.

    Raises:
        ValueError: It waits for others where no hook shows it.
    """
    wrapper = distributed_in(model)
    if wrapper is not None:
        watch_distributed(model, wrapper, phases)
    elif is_sharded(model):
        watch_sharded(model, phases)
    else:
        watch_passes(model, phases, BackwardPass(phases, waits_for=tuple))
