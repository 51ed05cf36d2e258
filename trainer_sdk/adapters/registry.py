"""The adapters that there are."""

from torch import nn

from evenkeel.trainer_sdk.adapters.adapter import Adapter
from evenkeel.trainer_sdk.adapters.distributed_data_parallel import DistributedDataParallelAdapter
from evenkeel.trainer_sdk.adapters.fully_sharded import FullyShardedAdapter
from evenkeel.trainer_sdk.adapters.single_device import SingleDeviceAdapter

ADAPTERS: tuple[Adapter, ...] = (DistributedDataParallelAdapter(), FullyShardedAdapter(), SingleDeviceAdapter())
"""The first that matches is asked; the last one takes any model."""


def adapter_for(model: nn.Module) -> Adapter:
    """The adapter that knows this model."""
    return next(adapter for adapter in ADAPTERS if adapter.matches(model))
