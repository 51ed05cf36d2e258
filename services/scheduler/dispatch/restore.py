"""At which step all survivors can meet, and who is read there: alive holders, copies on peers, or disk. Pure.

A survivor is at its own step; it can take one more when it voted, and go back to steps whose slices it still has. A
copy of a rank that is gone is at one step. The newest step at which everybody meets and nothing is missing wins, so
nobody goes back where that is not needed.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from evenkeel.layouts.cut import cut
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.rank_state import RankState, StandIn


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """A step at which the holders of an epoch can go on.

    Attributes:
        steps_applied: The step.
        stand_ins: Copies that are read there in place of ranks that are gone.
        lost: Blocks that nobody has in part; empty when nothing is missing.
    """

    steps_applied: int
    stand_ins: tuple[StandIn, ...]
    lost: tuple[int, ...]


def steps_within_reach(state: RankState, epoch: int) -> frozenset[int]:
    """Steps of an epoch at which a rank that holds it can be."""
    ahead = {state.steps_applied + 1} if state.voted and state.epoch == epoch else set()
    back = {one.steps_applied for one in state.earlier if one.epoch == epoch}
    return frozenset({state.steps_applied, *ahead, *back})


def find_meeting(
    states: Mapping[int, RankState],
    *,
    epoch: int,
    layout: Layout,
    holders: Collection[int],
    model: ModelSpec,
) -> Meeting | None:
    """The newest step at which all holders can be and nothing is missing; else the newest at which they can be.

    Args:
        states: Answer of every rank that is alive.
        epoch: Epoch whose slices are read.
        layout: Its layout.
        holders: Ranks that hold their slices of it.
        model: To see what is missing.

    Returns:
        None when the holders cannot be at one step.
    """
    common = frozenset.intersection(*(steps_within_reach(states[rank], epoch) for rank in holders))
    # A step that nobody has applied is no step that was decided: it is run again.
    applied = max(states[rank].steps_applied for rank in holders)
    first: Meeting | None = None
    for steps in sorted((one for one in common if one <= applied), reverse=True):
        stand_ins = _stand_ins(states, epoch, steps, (rank for rank in layout.ranks if rank not in holders))
        readable = {*holders, *(one.owner for one in stand_ins)}
        meeting = Meeting(steps_applied=steps, stand_ins=stand_ins, lost=uncovered_blocks(model, layout, readable))
        if not meeting.lost:
            return meeting
        first = first or meeting
    return first


def _stand_ins(
    states: Mapping[int, RankState], epoch: int, steps_applied: int, gone: Iterable[int]
) -> tuple[StandIn, ...]:
    found = []
    for owner in gone:
        keepers = [
            rank
            for rank, state in sorted(states.items())
            for copy in state.copies
            if (copy.owner, copy.epoch, copy.steps_applied) == (owner, epoch, steps_applied)
        ]
        if keepers:
            found.append(StandIn(owner=owner, keeper=keepers[0]))
    return tuple(found)


def newest_common_checkpoint(states: Mapping[int, RankState], ranks: Iterable[int]) -> int | None:
    """Steps of the newest checkpoint on disk that all of ``ranks`` can read; None when there is none."""
    seen = [frozenset(states[rank].checkpoint_steps) for rank in ranks]
    return max(frozenset.intersection(*seen), default=None)


def uncovered_blocks(model: ModelSpec, layout: Layout, holders: Collection[int]) -> tuple[int, ...]:
    """Blocks of which no rank in ``holders`` has some part under ``layout``: they are lost from memory.

    Args:
        model: For the width in which blocks are cut.
        layout: Layout whose slices are held.
        holders: Ranks that hold their slices.
    """
    lost = []
    for block, cost in enumerate(model.blocks):
        held: set[int] = set()
        for replica in layout.replicas:
            for stage in replica.stages:
                if not stage.first_block <= block < stage.stop_block:
                    continue
                borders = cut(cost.max_width, 1, stage.shares)
                for t, rank in enumerate(stage.ranks):
                    if rank in holders:
                        held.update(range(borders[t], borders[t + 1]) if cost.max_width > 1 else range(cost.max_width))
        if len(held) < cost.max_width:
            lost.append(block)
    return tuple(lost)
