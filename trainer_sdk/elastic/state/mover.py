"""Carries out transfers: one exchange moves every slice of every parameter and moment that has to move."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from evenkeel.trainer_sdk.elastic.model.parameters import ParameterSpec
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap, Slice
from evenkeel.trainer_sdk.elastic.state.shard_state import TENSORS_PER_PARAMETER, ShardState
from evenkeel.trainer_sdk.elastic.state.transfers import Copy
from evenkeel.trainer_sdk.groups.delivery import Delivery


def move_state(
    specs: Sequence[ParameterSpec],
    copies: Sequence[Copy],
    source: ShardState | None,
    target: ShardState,
    rank: int,
    delivery: Delivery,
    kept: Mapping[int, ShardState],
) -> None:
    """Fill ``target`` from the local slices of ``source`` and from what the other ranks send.

    Args:
        specs: The model's parameters.
        copies: All copies of the reshape, in the same order on every rank.
        source: What this rank holds of the old epoch; None for a joiner.
        target: What it will hold of the new one; without parameters for a rank that leaves.
        rank: This rank.
        delivery: Takes slices to other ranks.
        kept: What this rank keeps of ranks that are gone, for copies that name them.

    Raises:
        WaitBroken: The rank should park; ``source`` is untouched.
    """
    by_name = {spec.name: spec for spec in specs}
    given = {owner: _Held(specs, state, owner) for owner, state in kept.items()}
    own, filled = None if source is None else _Held(specs, source, rank), _Held(specs, target, rank)
    if own is not None:
        own.copy_to(filled)
    if not copies:
        return

    def read(copy: Copy) -> list[Tensor]:
        held = own if copy.copy_of is None else given.get(copy.copy_of)
        assert held is not None, f"rank {rank} is a source of {copy} and holds nothing"
        return held.views(copy.name, copy.start, copy.stop)

    def write(copy: Copy, arrived: Tensor) -> None:
        views = filled.views(copy.name, copy.start, copy.stop)
        for view, part in zip(views, arrived.chunk(len(views)), strict=True):
            view.copy_(part.view(view.shape))

    def size(copy: Copy) -> int:
        return (copy.stop - copy.start) * by_name[copy.name].row_elements * TENSORS_PER_PARAMETER

    delivery.carry_out(copies, size=size, read=read, write=write, like=target.buffer)


class _Held:
    """A rank's slices, to be looked into by the places that they have in the whole parameters."""

    def __init__(self, specs: Sequence[ParameterSpec], state: ShardState, rank: int) -> None:
        self._state = state
        ownership = OwnershipMap(specs, state.layout)
        self._axes = {name: spec.cut_axis for name, spec in ownership.specs.items()}
        self._slices: Mapping[str, Slice] = ownership.held_by(rank)

    def views(self, name: str, start: int, stop: int) -> list[Tensor]:
        """``[start, stop)`` of a parameter and of its moments."""
        first = start - self._slices[name].start
        tensors = self._state.parameters[name].tensors()
        return [tensor.narrow(self._axes[name], first, stop - start) for tensor in tensors]

    def copy_to(self, other: "_Held") -> None:
        """What both hold."""
        for name in self._slices.keys() & other._slices.keys():
            old, new = self._slices[name], other._slices[name]
            start, stop = max(old.start, new.start), min(old.stop, new.stop)
            if start < stop:
                pairs = zip(other.views(name, start, stop), self.views(name, start, stop), strict=True)
                for to_tensor, from_tensor in pairs:
                    to_tensor.copy_(from_tensor)
