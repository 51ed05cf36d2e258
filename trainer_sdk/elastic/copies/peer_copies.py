"""Copies of ranks' slices in the memory of peers, and what a rank needs to go back to such a copy.

A round is a step after which every rank whose slices have too few hosts (:mod:`evenkeel.layouts.copies`) sends them to
its
keepers. It is sent behind the next iteration's compute and waited for before the next vote, so whoever saw that vote
pass knows that the round is complete everywhere.
Until then the round before it stays: a keeper has two buffers, and every rank can go back to the last round that is
known to be complete. So after a failure there is always one step at which all survivors and all copies meet.

In-memory checkpoints every iteration: Gemini (SOSP 2023) and ByteRobust (SOSP 2025, arXiv 2509.16293).
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from evenkeel.layouts.copies import Placement, losses_not_survived, place_copies
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.rank_state import KeptCopy
from evenkeel.trainer_sdk.control.state import Commit
from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.model.model import model_spec
from evenkeel.trainer_sdk.elastic.state.shard_state import ShardState, empty_state, num_elements
from evenkeel.trainer_sdk.elastic.state.transfers import MissingSliceError
from evenkeel.trainer_sdk.groups.building.builder import GroupSpec
from evenkeel.trainer_sdk.groups.group import Group, Pending

_log = logging.getLogger(__name__)

_MOST_TOLD = 8
_AT_REST = torch.device("cpu")


@dataclass(slots=True)
class _Round:
    """A round that this rank has begun and not yet waited for: slices by owner, its own and those of others."""

    states: dict[int, ShardState]
    pending: list[Pending]


class PeerCopies:
    """One rank's part in the copies. Training thread only.

    Args:
        config: Job.
        rank: This rank.
        node_of: Node of a rank; the same for all where nobody knows.
    """

    def __init__(self, config: TrainingConfig, rank: int, node_of: Callable[[int], str] = lambda _: "") -> None:
        self._job = config
        self._rank = rank
        self._config = config.copies
        self._node_of = node_of
        self._placements: tuple[Placement, ...] = ()
        self._placed: tuple[Layout, tuple[Placement, ...]] | None = None  # the newest that was worked out
        self._groups: Mapping[str, Group] = {}
        self._kept: dict[tuple[int, int, int], ShardState] = {}  # by owner, who may be this rank, epoch and steps
        self._round: _Round | None = None
        self._finished: tuple[int, int] | None = None  # epoch and steps of a round whose vote is not over
        self._spare: list[Tensor] = []

    def groups_of(self, layout: Layout) -> tuple[GroupSpec, ...]:
        """The groups that the copies of an epoch with this layout need."""
        places = self._place(layout)
        return tuple(GroupSpec(name=_group_name(place), ranks=(place.owner, place.keeper)) for place in places)

    def enter(self, groups: Mapping[str, Group], state: ShardState) -> None:
        """The epoch of a state begins, with its first round. What is kept of older ones stays until its first vote."""
        layout = state.layout
        self._placements, self._groups = self._place(layout), groups
        if self._rank == layout.ranks[0] and self._config.every_iterations:
            self._tell_what_is_not_survived(layout)
        self._begin(state)

    def stepped(self, state: ShardState) -> None:
        """A step was applied in an epoch that goes on: begin a round if one is due."""
        if self._placements and state.steps_applied % self._config.every_iterations == 0:
            self._begin(state)

    def finish(self) -> None:
        """Wait for the round on its way, if there is one; before every vote.

        Raises:
            WaitBroken: The rank should park; the round is not used.
        """
        if self._round is None:
            return
        for pending in self._round.pending:
            pending.wait()
        done, self._round = self._round, None
        for owner, copy in done.states.items():
            self._finished = copy.epoch, copy.steps_applied
            self._kept[owner, *self._finished] = copy.on(_AT_REST)

    def voted(self) -> None:
        """A vote passed: the last round is complete on every rank, and nothing older is needed."""
        if not self._placements:
            self.forget()
            return
        if self._finished is None:
            return
        for key in [key for key in self._kept if key[1:] != self._finished]:
            self._spare.append(self._kept.pop(key).buffer)
        self._finished = None

    @property
    def partners(self) -> tuple[int, ...]:
        """Who takes part in this rank's rounds: whom :meth:`finish` waits for."""
        mine = [place for place in self._placements if self._rank in (place.owner, place.keeper)]
        return tuple(sorted({place.owner + place.keeper - self._rank for place in mine}))

    def give_up_round(self) -> None:
        """The groups are abandoned. Their pending operations may still write, so the round's buffers are dropped."""
        self._round = None
        self._groups = {}

    def forget(self) -> None:
        """Nothing that is kept is needed any more."""
        self._kept.clear()
        self._round = self._finished = None
        self._spare.clear()

    @property
    def keeper_of(self) -> tuple[int, ...]:
        """Ranks of whose slices this one keeps a copy in the epoch that it entered last, ascending."""
        return tuple(place.owner for place in self._placements if place.keeper == self._rank)

    @property
    def kept(self) -> tuple[KeptCopy, ...]:
        """The complete copies that this rank keeps of others."""
        return tuple(
            KeptCopy(owner=owner, epoch=epoch, steps_applied=steps)
            for owner, epoch, steps in sorted(self._kept)
            if owner != self._rank
        )

    def kept_for(self, commit: Commit) -> dict[int, ShardState]:
        """The copies that a plan asks of this rank, by owner.

        Raises:
            MissingSliceError: It does not keep one of them.
        """
        epoch, steps = commit.from_epoch, commit.steps_applied
        owners = [one.owner for one in commit.stand_ins if one.keeper == self._rank]
        for owner in owners:
            if (owner, epoch, steps) not in self._kept:
                raise MissingSliceError(
                    f"rank {self._rank} keeps no copy of rank {owner} at step {steps} of epoch {epoch}: it keeps "
                    f"{list(self.kept)}"
                )
        device = torch.device(self._job.device)
        return {owner: self._kept[owner, epoch, steps].on(device) for owner in owners}

    def steps_to_go_back_to(self, epoch: int) -> tuple[int, ...]:
        """Steps at which this rank still has its own slices of an epoch."""
        return tuple(sorted(steps for owner, held, steps in self._kept if (owner, held) == (self._rank, epoch)))

    def own_state(self, epoch: int, steps_applied: int) -> ShardState:
        """This rank's own slices as they were at one of those steps, to be read only."""
        return self._kept[self._rank, epoch, steps_applied].on(torch.device(self._job.device))

    # ---- inside

    def _place(self, layout: Layout) -> tuple[Placement, ...]:
        if not self._config.every_iterations:
            return ()
        if self._placed is None or self._placed[0] != layout:
            budget_bytes = self._config.budget_bytes or float("inf")
            self._placed = layout, place_copies(model_spec(self._job), layout, self._nodes(layout), budget_bytes)
        return self._placed[1]

    def _nodes(self, layout: Layout) -> dict[int, str]:
        return {rank: self._node_of(rank) for rank in layout.ranks}

    def _tell_what_is_not_survived(self, layout: Layout) -> None:
        losses = losses_not_survived(layout, self._nodes(layout), self._placements)
        if losses:
            text = ", ".join(" + ".join(units) for units in losses[:_MOST_TOLD])
            more = f" and {len(losses) - _MOST_TOLD} more" if len(losses) > _MOST_TOLD else ""
            _log.warning("this layout cannot survive the loss of %s%s without a checkpoint on disk", text, more)

    def _begin(self, state: ShardState) -> None:
        """Send this rank's slices and prepare to receive others'; returns at once."""
        if not self._placements:
            return
        mine = state.copied_to(self._buffer(state.buffer.numel(), state.buffer))
        pending, states = [], {self._rank: mine}
        for place in self._placements:
            if place.owner == self._rank:
                sent = mine.buffer
            elif place.keeper == self._rank:
                sent = self._buffer(num_elements(state.ownership, place.owner), state.buffer)
                states[place.owner] = empty_state(
                    self._job,
                    state.ownership,
                    place.owner,
                    epoch=state.epoch,
                    steps_applied=state.steps_applied,
                    buffer=sent,
                )
            else:
                continue
            pending.append(self._groups[_group_name(place)].start_broadcast(sent, place.owner))
        self._round = _Round(states, pending)

    def _buffer(self, length: int, like: Tensor) -> Tensor:
        for index, buffer in enumerate(self._spare):
            if buffer.numel() == length and buffer.device == like.device:
                return self._spare.pop(index)
        self._spare.clear()
        return torch.empty(length, dtype=like.dtype, device=like.device)


def _group_name(place: Placement) -> str:
    """A group of its own: broadcasts of one group must be issued in the same order at both ends."""
    return f"copy/{place.owner}-{place.keeper}"
