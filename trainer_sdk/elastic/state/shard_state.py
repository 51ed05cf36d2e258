"""What one rank holds of the model in one epoch: slices of parameters and of their optimizer moments, in one buffer.

The buffer is what is sent to a peer in one piece, and what a copy of the slices is made of.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from evenkeel.layouts.layout import Layout
from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.model.model import initial_slice, parameter_specs
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap

TENSORS_PER_PARAMETER = 3
_ALIGNED_ELEMENTS = 16  # 64 bytes of float32: sums come out the same wherever a tensor lies


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
        buffer: All of them.
        parameters: Views of it by name, in the order of the model.
    """

    epoch: int
    layout: Layout
    steps_applied: int
    buffer: Tensor
    parameters: dict[str, ParameterState]

    def copied_to(self, buffer: Tensor) -> Self:
        """The same in another buffer of that length."""
        with torch.no_grad():
            buffer.copy_(self.buffer)
        return self._over(buffer)

    def on(self, device: torch.device) -> Self:
        """The same on a device; this one where it rests there."""
        return self if self.buffer.device == device else self._over(self.buffer.to(device))

    def _over(self, buffer: Tensor) -> Self:
        shapes = {name: tuple(parameter.value.shape) for name, parameter in self.parameters.items()}
        return replace(self, buffer=buffer, parameters=_views(buffer, shapes))


def empty_state(
    config: TrainingConfig,
    ownership: OwnershipMap,
    rank: int,
    *,
    epoch: int,
    steps_applied: int,
    buffer: Tensor | None = None,
) -> ShardState:
    """The state of ``rank`` with tensors that are still to be filled; in a buffer that fits, where one is given."""
    shapes = shapes_of(ownership, rank)
    if buffer is None:
        dtype = torch.float64 if config.dtype == "float64" else torch.float32
        buffer = torch.empty(num_elements(shapes), dtype=dtype, device=torch.device(config.device))
    return ShardState(
        epoch=epoch,
        layout=ownership.layout,
        steps_applied=steps_applied,
        buffer=buffer,
        parameters=_views(buffer, shapes),
    )


def initial_state(config: TrainingConfig, layout: Layout, rank: int) -> ShardState:
    """The state at the start of the job: the same model under every layout."""
    specs = parameter_specs(config.model)
    ownership = OwnershipMap(specs, layout)
    state = empty_state(config, ownership, rank, epoch=0, steps_applied=0)
    state.buffer.zero_()
    for name, held in ownership.held_by(rank).items():
        state.parameters[name].value.copy_(initial_slice(config, ownership.specs[name], held))
    return state


def shapes_of(ownership: OwnershipMap, rank: int) -> dict[str, tuple[int, ...]]:
    """The shape of each slice that a rank holds."""
    return {name: ownership.specs[name].slice_shape(len(held)) for name, held in ownership.held_by(rank).items()}


def num_elements(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Length of the buffer for slices of these shapes."""
    return TENSORS_PER_PARAMETER * sum(_room(shape) for shape in shapes.values())


def _views(buffer: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, ParameterState]:
    views, start = {}, 0
    for name, shape in shapes.items():
        room = _room(shape)
        value, exp_avg, exp_avg_sq = (
            buffer[start + place * room :][: torch.Size(shape).numel()].view(shape)
            for place in range(TENSORS_PER_PARAMETER)
        )
        views[name] = ParameterState(value=value, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq)
        start += TENSORS_PER_PARAMETER * room
    return views


def _room(shape: tuple[int, ...]) -> int:
    return -(-torch.Size(shape).numel() // _ALIGNED_ELEMENTS) * _ALIGNED_ELEMENTS
