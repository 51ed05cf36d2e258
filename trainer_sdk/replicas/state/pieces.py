"""A large parameter in pieces, so that none takes long to send. Pure.

Pieces may be sent in different steps, and a newcomer's optimizer steps a parameter as soon as one is there: what it
makes of the rest is overwritten when that arrives. This holds for optimizers that treat each element by itself; under
others a parameter goes whole, in place of its last piece.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, optim
from torch.optim.optimizer import Optimizer

from evenkeel.trainer_sdk.replicas.buckets import local

PIECE_BYTES = 1 << 20
"""Of a parameter's values. With Adam's moments 3 MiB go at once: 25 ms where a link carries 1 Gbit/s."""

_ELEMENTWISE = {
    optim.SGD,
    optim.ASGD,
    optim.Adam,
    optim.AdamW,
    optim.NAdam,
    optim.RAdam,
    optim.Adamax,
    optim.Adadelta,
    optim.Adagrad,
    optim.RMSprop,
    optim.Rprop,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some consecutive elements of a rank's part of a parameter.

    Attributes:
        parameter: Place of the parameter.
        start: First element.
        stop: The element after the last.
        is_last: None of the parameter comes after it.
    """

    parameter: int
    start: int
    stop: int
    is_last: bool


def cut(parameters: Sequence[Tensor], piece_bytes: int) -> Iterator[Piece]:
    """All pieces of all parameters, in order: the same wherever the model is the same."""
    for place, parameter in enumerate(parameters):
        mine = local(parameter.detach())
        size = mine.numel()
        step = max(1, piece_bytes // mine.element_size() if mine.is_contiguous() else size)
        for start in range(0, max(size, 1), step):
            yield Piece(parameter=place, start=start, stop=min(start + step, size), is_last=start + step >= size)


def is_elementwise(optimizer: Optimizer | None) -> bool:
    """Whether an optimizer treats each element by itself, as far as it is known; so does none at all."""
    return optimizer is None or type(optimizer) in _ELEMENTWISE


def flat(tensor: Tensor) -> Tensor:
    """This rank's elements of a tensor in a row."""
    return local(tensor.detach()).contiguous().view(-1)


def write_from(start: int, value: Tensor, whole: Tensor) -> None:
    """Elements in a row, from one on; where memory has another order, it is all of them."""
    place = whole.view(-1)[start : start + value.numel()] if whole.is_contiguous() else whole
    place.copy_(value.view(place.shape))


def like(whole: Tensor, parameter: Tensor) -> Tensor:
    """A state tensor of a sharded parameter is sharded as it is."""
    if local(parameter) is parameter:
        return whole
    sharded: Any = parameter
    made: Tensor = type(sharded).from_local(
        whole, sharded.device_mesh, sharded.placements, shape=sharded.shape, stride=sharded.stride(), run_check=False
    )
    return made
