"""A rank's slices in one flat buffer: what is sent to a peer in one piece, and what a rank can go back to."""

from dataclasses import dataclass

import torch
from torch import Tensor

from evenkeel.layouts.layout import Layout
from evenkeel.trainer_sdk.elastic.state.shard_state import TENSORS_PER_PARAMETER, ParameterState, ShardState


@dataclass(slots=True, kw_only=True)
class FlatState:
    """What ``rank`` held of ``epoch`` after ``steps_applied`` steps, values and moments.

    Attributes:
        rank: Whose slices.
        epoch: Epoch.
        layout: Its layout.
        steps_applied: Optimizer steps in these values.
        buffer: Parameter after parameter in the order of the model: value, first moment, second moment.
        shapes: Shape of each parameter's slice, in that order.
    """

    rank: int
    epoch: int
    layout: Layout
    steps_applied: int
    buffer: Tensor
    shapes: dict[str, tuple[int, ...]]

    def as_state(self, device: torch.device) -> ShardState:
        """The slices as views of the buffer, or of a copy of it where it rests elsewhere than on ``device``."""
        buffer, views, start = self.buffer.to(device), {}, 0
        for name, shape in self.shapes.items():
            tensors = []
            size = torch.Size(shape).numel()
            for _ in range(TENSORS_PER_PARAMETER):
                tensors.append(buffer[start : start + size].view(shape))
                start += size
            views[name] = ParameterState(value=tensors[0], exp_avg=tensors[1], exp_avg_sq=tensors[2])
        return ShardState(epoch=self.epoch, layout=self.layout, steps_applied=self.steps_applied, parameters=views)


def num_elements(shapes: dict[str, tuple[int, ...]]) -> int:
    """Length of the buffer for slices of these shapes."""
    return TENSORS_PER_PARAMETER * sum(torch.Size(shape).numel() for shape in shapes.values())


def shapes_of(state: ShardState) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter's slice."""
    return {name: tuple(parameter.value.shape) for name, parameter in state.parameters.items()}


def flatten(state: ShardState, buffer: Tensor) -> None:
    """Copy a state into a buffer of the right length."""
    with torch.no_grad():
        flat = [tensor.detach().reshape(-1) for one in state.parameters.values() for tensor in one.tensors()]
        torch.cat(flat, out=buffer)
