"""Carries out transfers: one exchange moves every slice of every parameter and moment that has to move."""

from collections import Counter, defaultdict
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
    kept: Mapping[int, ShardState] | None = None,
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
        Interrupted: The rank should park; ``source`` is untouched.
        PeerLost: A participant is gone; ``source`` is untouched.
    """
    by_name = {spec.name: spec for spec in specs}
    held_by = _HeldBy(specs)
    if source is not None:
        _copy_local(specs, source, target, held_by.of(source, rank), held_by.of(target, rank))
    if not copies:
        return
    outgoing: dict[int, list[Tensor]] = defaultdict(list)
    expected: Counter[int] = Counter()
    for copy in copies:
        if copy.source == rank:
            owner = rank if copy.copy_of is None else copy.copy_of
            read = source if copy.copy_of is None else (kept or {}).get(owner)
            assert read is not None, f"rank {rank} is a source of rank {owner}'s {copy.name} and holds nothing"
            held = held_by.of(read, owner)[copy.name]
            views = _views(by_name[copy.name], read, held, copy)
            outgoing[copy.destination] += [view.reshape(-1) for view in views]
        if copy.destination == rank:
            row_elements = by_name[copy.name].row_elements
            expected[copy.source] += (copy.stop - copy.start) * row_elements * TENSORS_PER_PARAMETER
    some = next(
        iter((target if target.parameters else source or next(iter((kept or {}).values()))).parameters.values())
    ).value
    arrived = delivery.exchange(outgoing, expected, some)
    start: Counter[int] = Counter()
    for copy in copies:
        if copy.destination == rank:
            for view in _views(by_name[copy.name], target, held_by.of(target, rank)[copy.name], copy):
                first = start[copy.source]
                start[copy.source] += view.numel()
                view.copy_(arrived[copy.source][first : start[copy.source]].view(view.shape))


class _HeldBy:
    """What ranks hold under the layouts of some states; each is looked up once."""

    def __init__(self, specs: Sequence[ParameterSpec]) -> None:
        self._specs = specs
        self._found: dict[tuple[int, int], dict[str, Slice]] = {}

    def of(self, state: ShardState, rank: int) -> dict[str, Slice]:
        key = (id(state), rank)
        if key not in self._found:
            self._found[key] = OwnershipMap(self._specs, state.layout).held_by(rank)
        return self._found[key]


def _copy_local(
    specs: Sequence[ParameterSpec],
    source: ShardState,
    target: ShardState,
    before: Mapping[str, Slice],
    after: Mapping[str, Slice],
) -> None:
    for spec in specs:
        if spec.name not in before or spec.name not in after:
            continue
        old, new = before[spec.name], after[spec.name]
        start, stop = max(old.start, new.start), min(old.stop, new.stop)
        if start < stop:
            pair = zip(source.parameters[spec.name].tensors(), target.parameters[spec.name].tensors(), strict=True)
            for from_tensor, to_tensor in pair:
                _narrow(spec, to_tensor, new, start, stop).copy_(_narrow(spec, from_tensor, old, start, stop))


def _views(spec: ParameterSpec, state: ShardState, held: Slice, copy: Copy) -> list[Tensor]:
    return [_narrow(spec, tensor, held, copy.start, copy.stop) for tensor in state.parameters[spec.name].tensors()]


def _narrow(spec: ParameterSpec, tensor: Tensor, held: Slice, start: int, stop: int) -> Tensor:
    return tensor.narrow(spec.cut_axis, start - held.start, stop - start)
