"""What one rank holds of the model in one epoch: slices of parameters and of their optimizer moments."""

from dataclasses import dataclass

import torch
from torch import Tensor

from evenkeel.layouts.layout import Layout
from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.model.model import initial_slice, parameter_specs
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap

TENSORS_PER_PARAMETER = 3


@dataclass(slots=True, kw_only=True)
class ParameterState:
    """A slice of a parameter and of its moments, all of the same shape."""

    value: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Value and moments."""
        return self.value, self.exp_avg, self.exp_avg_sq


@dataclass(slots=True, kw_only=True)
class ShardState:
    """A rank's complete state of one epoch.

    Attributes:
        epoch: Epoch.
        layout: Its layout.
        steps_applied: Optimizer steps in these values.
        parameters: By name, in the order of the model.
    """

    epoch: int
    layout: Layout
    steps_applied: int
    parameters: dict[str, ParameterState]


def empty_state(
    config: TrainingConfig, ownership: OwnershipMap, rank: int, *, epoch: int, steps_applied: int
) -> ShardState:
    """The state of ``rank`` with tensors that are still to be filled."""
    dtype = torch.float64 if config.dtype == "float64" else torch.float32
    device = torch.device(config.device)
    parameters = {}
    for name, held in ownership.held_by(rank).items():
        shape = ownership.specs[name].slice_shape(len(held))
        value, exp_avg, exp_avg_sq = (
            torch.empty(shape, dtype=dtype, device=device) for _ in range(TENSORS_PER_PARAMETER)
        )
        parameters[name] = ParameterState(value=value, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq)
    return ShardState(epoch=epoch, layout=ownership.layout, steps_applied=steps_applied, parameters=parameters)


def initial_state(config: TrainingConfig, layout: Layout, rank: int) -> ShardState:
    """The state at the start of the job: the same model under every layout."""
    specs = parameter_specs(config.model)
    ownership = OwnershipMap(specs, layout)
    state = empty_state(config, ownership, rank, epoch=0, steps_applied=0)
    for name, held in ownership.held_by(rank).items():
        parameter = state.parameters[name]
        parameter.value.copy_(initial_slice(config, ownership.specs[name], held))
        parameter.exp_avg.zero_()
        parameter.exp_avg_sq.zero_()
    return state
