"""From one epoch to the next: new groups, then every slice where the new layout wants it. Training thread only.

What is decided by whom is in docs/architecture.md, "How a plan is applied". A transition that fails leaves the old
epoch's state as it was: the rank parks, and the next plan starts from there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from layouts.layout import Layout
from trainer_sdk.control.state import Commit
from trainer_sdk.elastic.config import TrainingConfig
from trainer_sdk.elastic.exchange import plan_exchange
from trainer_sdk.elastic.model import parameter_specs
from trainer_sdk.elastic.mover import move_state
from trainer_sdk.elastic.ownership import OwnershipMap
from trainer_sdk.elastic.shard_state import ShardState, empty_state
from trainer_sdk.elastic.topology import TRANSFER, WORLD, groups_of, transfer_participants
from trainer_sdk.elastic.transfers import Copy, plan_transfers
from trainer_sdk.groups.builder import GroupBuilder
from trainer_sdk.groups.group import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What a rank has when a transition is done.

    Attributes:
        groups: The new epoch's groups by name.
        state: Its slices; None for a rank without a position in the new layout, which only handed over.
    """

    groups: dict[str, Group]
    state: ShardState | None


class Transition:
    """Takes one rank from epoch to epoch.

    Args:
        config: Job.
        rank: This rank.
        builder: Builds the groups.
    """

    def __init__(self, config: TrainingConfig, rank: int, builder: GroupBuilder) -> None:
        self._config = config
        self._rank = rank
        self._builder = builder
        self._specs = parameter_specs(config.model)

    def begin(self, layout: Layout) -> dict[str, Group]:
        """The groups of epoch 0, whose slices every rank makes itself.

        Raises:
            Interrupted: The rank should park.
            PeerLost: A peer is gone.
        """
        specs = groups_of(layout, plan_exchange(self._specs, layout), ())
        return self._builder.build(0, layout.ranks, specs, 0).groups

    def follow(self, commit: Commit, source: ShardState | None) -> Arrival:
        """Go over to the epoch of a committed plan.

        Args:
            commit: The plan.
            source: What this rank holds of ``commit.from_epoch``; None when it holds nothing or may not be read.

        Raises:
            MissingSliceError: Nobody who may be read holds a slice that is needed; nothing has changed.
            Interrupted: The rank should park; ``source`` is untouched.
            PeerLost: A participant is gone; ``source`` is untouched.
        """
        layout = commit.reshape.to_layout
        copies = plan_transfers(self._specs, commit.from_layout, layout, commit.sources)
        participants = transfer_participants(layout, copies)
        if self._rank not in participants:
            return Arrival(groups={}, state=None)
        specs = groups_of(layout, plan_exchange(self._specs, layout), copies)
        steps = commit.steps_applied if source is None else source.steps_applied
        built = self._builder.build(commit.reshape.epoch, participants, specs, steps)
        try:
            target = self._move(commit, copies, source, built.groups, _agreed_steps(built.announced))
        except BaseException:
            self._builder.abandon(built.groups)
            raise
        return Arrival(groups=built.groups, state=target if target.parameters else None)

    def _move(
        self,
        commit: Commit,
        copies: Sequence[Copy],
        source: ShardState | None,
        groups: Mapping[str, Group],
        steps_applied: int,
    ) -> ShardState:
        epoch, ownership = commit.reshape.epoch, OwnershipMap(self._specs, commit.reshape.to_layout)
        target = empty_state(self._config, ownership, self._rank, epoch=epoch, steps_applied=steps_applied)
        mover_group = groups.get(TRANSFER, groups.get(WORLD)) if copies else None
        with torch.no_grad():
            move_state(self._specs, copies, source, target, self._rank, mover_group)
        return target


def _agreed_steps(announced: Mapping[int, int]) -> int:
    """The number of applied steps that everybody who knows it named; a joiner named -1."""
    known = {steps for steps in announced.values() if steps >= 0}
    if len(known) != 1:
        raise RuntimeError(f"ranks disagree on the steps applied before the epoch: {dict(announced)}")
    return known.pop()
