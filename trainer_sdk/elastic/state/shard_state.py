"""What one rank holds of the model in one epoch: slices of parameters and of their optimizer moments, in one buffer.

The buffer is what is sent to a peer in one piece, and what a copy of the slices is made of.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from evenkeel.layouts.layout import Layout
from evenkeel.trainer_sdk.elastic.config import ModelConfig, TrainingConfig
from evenkeel.trainer_sdk.elastic.model.model import parameter_specs
from evenkeel.trainer_sdk.elastic.model.parameters import ParameterSpec
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap, Slice

_ALIGNED_ELEMENTS = 16  # 64 bytes of float32: sums come out the same wherever a tensor lies


class ParameterState(NamedTuple):
    """A slice of a parameter and of its moments, all of the same shape."""

    value: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor


TENSORS_PER_PARAMETER = len(ParameterState._fields)


@dataclass(slots=True, kw_only=True)
class ShardState:
    """A rank's complete state of one epoch.

    Attributes:
        epoch: Epoch.
        steps_applied: Optimizer steps in these values.
        ownership: Who holds what in the epoch.
        held: What this rank holds, by parameter, in the order of the model.
        buffer: All values and moments.
        parameters: Views of it by name, in the order of the model.
    """

    epoch: int
    steps_applied: int
    ownership: OwnershipMap
    held: Mapping[str, Slice]
    buffer: Tensor
    parameters: dict[str, ParameterState]

    @property
    def layout(self) -> Layout:
        """The epoch's."""
        return self.ownership.layout

    def views(self, name: str, start: int, stop: int) -> list[Tensor]:
        """``[start, stop)`` of a parameter's cut axis, counted in the whole parameter, and of its moments."""
        axis, first = self.ownership.specs[name].cut_axis, start - self.held[name].start
        return [tensor.narrow(axis, first, stop - start) for tensor in self.parameters[name]]

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
    held = ownership.held_by(rank)
    shapes = {name: ownership.specs[name].slice_shape(len(one)) for name, one in held.items()}
    if buffer is None:
        dtype = torch.float64 if config.dtype == "float64" else torch.float32
        buffer = torch.empty(num_elements(ownership, rank), dtype=dtype, device=torch.device(config.device))
    return ShardState(
        epoch=epoch,
        steps_applied=steps_applied,
        ownership=ownership,
        held=held,
        buffer=buffer,
        parameters=_views(buffer, shapes),
    )


def initial_state(config: TrainingConfig, layout: Layout, rank: int) -> ShardState:
    """The state at the start of the job: the same model under every layout."""
    specs = parameter_specs(config.model)
    ownership = OwnershipMap(specs, layout)
    state = empty_state(config, ownership, rank, epoch=0, steps_applied=0)
    state.buffer.zero_()
    for name, held in state.held.items():
        state.parameters[name].value.copy_(initial_slice(config, ownership.specs[name], held))
    return state


def initial_slice(config: TrainingConfig, spec: ParameterSpec, held: Slice) -> Tensor:
    """First values of a slice: a pure function of (seed, parameter), made whole and then cut, on the CPU."""
    dtype = torch.float64 if config.dtype == "float64" else torch.float32
    if spec.name.endswith("norm"):
        whole = torch.ones(spec.shape, dtype=torch.float64)
    else:
        digest = hashlib.sha256(f"{config.seed}/{spec.name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        whole = torch.randn(spec.shape, dtype=torch.float64, generator=generator) * _spread(config.model, spec)
    return whole.narrow(spec.cut_axis, held.start, len(held)).to(dtype).contiguous()


def num_elements(ownership: OwnershipMap, rank: int) -> int:
    """Length of the buffer for what a rank holds."""
    held = ownership.held_by(rank).items()
    return TENSORS_PER_PARAMETER * sum(_room(ownership.specs[name].slice_shape(len(one))) for name, one in held)


def _views(buffer: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, ParameterState]:
    views, start = {}, 0
    for name, shape in shapes.items():
        room = _room(shape)
        rows = buffer[start : start + TENSORS_PER_PARAMETER * room].view(TENSORS_PER_PARAMETER, room)
        views[name] = ParameterState(
            *(rows[place, : math.prod(shape)].view(shape) for place in range(TENSORS_PER_PARAMETER))
        )
        start += rows.numel()
    return views


def _room(shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) // _ALIGNED_ELEMENTS) * _ALIGNED_ELEMENTS


def _spread(model: ModelConfig, spec: ParameterSpec) -> float:
    """Standard deviation: small embeddings, fan-in elsewhere, branches that end in the residual scaled by depth."""
    if spec.block == 0:
        return 0.1
    spread = 1.0 / math.sqrt(spec.shape[1])
    if spec.name.endswith((".wo", ".w_down")):
        return spread / math.sqrt(2 * model.num_layers)
    return spread * 0.5
