"""Carries out what was planned: slices of the state go where they are wanted."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from evenkeel.trainer_sdk.elastic.state.shard_state import TENSORS_PER_PARAMETER, ShardState
from evenkeel.trainer_sdk.elastic.state.transfers import Copy
from evenkeel.trainer_sdk.groups.delivery import Delivery


def move_state(
    copies: Sequence[Copy],
    source: ShardState | None,
    target: ShardState,
    delivery: Delivery,
    kept: Mapping[int, ShardState],
) -> None:
    """Fill ``target`` from the local slices of ``source`` and from what the other ranks send, in one exchange of all.

    Args:
        copies: All copies of the reshape, in the same order on every rank.
        source: What this rank holds of the old epoch; None for a joiner.
        target: What it will hold of the new one; without parameters for a rank that leaves.
        delivery: Takes slices to other ranks.
        kept: What this rank keeps of ranks that are gone, for copies that name them.

    Raises:
        WaitBroken: The rank should park; ``source`` is untouched.
    """
    if source is not None:
        for name in source.held.keys() & target.held.keys():
            wanted = target.held[name]
            if stays := source.held[name].within(wanted.start, wanted.stop):
                _fill(target, name, stays.start, stays.stop, source.views(name, stays.start, stays.stop))
    if not copies:
        return
    outgoing: dict[int, list[Tensor]] = defaultdict(list)
    expected: Counter[int] = Counter()
    for copy in copies:
        if copy.source == delivery.rank:
            given = source if copy.copy_of is None else kept.get(copy.copy_of)
            assert given is not None, f"this rank is the source of {copy} and holds nothing"
            views = given.views(copy.name, copy.start, copy.stop)
            outgoing[copy.destination] += [view.reshape(-1) for view in views]
        if copy.destination == delivery.rank:
            expected[copy.source] += TENSORS_PER_PARAMETER * copy.num_elements
    arrived = delivery.exchange(outgoing, expected, target.buffer)
    for copy in copies:
        if copy.destination == delivery.rank:
            num_arrived = TENSORS_PER_PARAMETER * copy.num_elements
            mine, arrived[copy.source] = arrived[copy.source][:num_arrived], arrived[copy.source][num_arrived:]
            _fill(target, copy.name, copy.start, copy.stop, mine.chunk(TENSORS_PER_PARAMETER))


def _fill(target: ShardState, name: str, start: int, stop: int, tensors: Iterable[Tensor]) -> None:
    for view, given in zip(target.views(name, start, stop), tensors, strict=True):
        view.copy_(given.view_as(view))
