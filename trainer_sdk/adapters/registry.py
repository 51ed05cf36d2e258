"""The adapters that there are, and their port."""

from typing import Protocol

from torch import nn

from evenkeel.trainer_sdk.adapters.distributed_data_parallel import DistributedDataParallelAdapter
from evenkeel.trainer_sdk.adapters.fully_sharded import FullyShardedAdapter
from evenkeel.trainer_sdk.adapters.single_device import SingleDeviceAdapter
from evenkeel.trainer_sdk.emit.phases import Phases


class Adapter(Protocol):
    """Tells compute from waiting in one kind of model, by its public hooks."""

    def matches(self, model: nn.Module) -> bool:
        """Whether this is such a model."""

    def watch(self, model: nn.Module, phases: Phases) -> None:
        """From now on the model's forward and backward passes switch the phases.

        Raises:
            ValueError: It waits for others where no hook shows it.
        """


ADAPTERS: tuple[Adapter, ...] = (DistributedDataParallelAdapter(), FullyShardedAdapter(), SingleDeviceAdapter())
"""The first that matches is asked; the last one takes any model."""


def adapter_for(model: nn.Module) -> Adapter:
    """The adapter that knows this model."""
    return next(adapter for adapter in ADAPTERS if adapter.matches(model))
