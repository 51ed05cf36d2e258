"""Where the slices of a commit come from: alive holders, copies that peers keep, or the checkpoint on disk."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.rank_state import StandIn
from evenkeel.trainer_sdk.control.state import Commit
from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.copies.checkpoint_folder import CheckpointFolder
from evenkeel.trainer_sdk.elastic.copies.checkpoint_reader import read_state
from evenkeel.trainer_sdk.elastic.copies.peer_copies import PeerCopies
from evenkeel.trainer_sdk.elastic.model.model import parameter_specs
from evenkeel.trainer_sdk.elastic.model.parameters import ParameterSpec
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap
from evenkeel.trainer_sdk.elastic.state.shard_state import ShardState, empty_state, initial_state
from evenkeel.trainer_sdk.elastic.state.transfers import Copy, MissingSliceError, plan_transfers


class Restorer:
    """One rank's sources. Training thread only.

    Args:
        config: Job.
        rank: This rank.
        peer_copies: What it keeps, of others and of itself.
        folder: The job's checkpoints; None without.
    """

    def __init__(
        self, config: TrainingConfig, rank: int, peer_copies: PeerCopies, folder: CheckpointFolder | None
    ) -> None:
        self._config = config
        self._rank = rank
        self._peer_copies = peer_copies
        self._folder = folder
        self._specs = parameter_specs(config.model)
        self._device = torch.device(config.device)

    def plan(self, commit: Commit) -> tuple[Copy, ...]:
        """All copies between ranks that a commit asks for; none when everything is read from disk.

        Raises:
            MissingSliceError: Nobody has a slice that is needed.
        """
        if commit.from_checkpoint:
            return ()
        return plan_with_stand_ins(
            self._specs, commit.from_layout, commit.reshape.to_layout, commit.sources, commit.stand_ins
        )

    def kept_for(self, commit: Commit) -> Mapping[int, ShardState]:
        """The copies that this rank is asked to give, by owner.

        Raises:
            MissingSliceError: It does not keep one of them.
        """
        found = {}
        for one in commit.stand_ins:
            if one.keeper == self._rank:
                kept = self._peer_copies.kept_state(one.owner, commit.from_epoch, commit.steps_applied, self._device)
                if kept is None:
                    raise MissingSliceError(
                        f"rank {self._rank} keeps no copy of rank {one.owner} at step {commit.steps_applied} of epoch "
                        f"{commit.from_epoch}: it keeps {list(self._peer_copies.kept)}"
                    )
                found[one.owner] = kept
        return found

    def read(self, layout: Layout, *, epoch: int, steps_applied: int) -> ShardState:
        """This rank's slices under a layout from the checkpoint of so many steps; of none, from the job's seed.

        Raises:
            MissingSliceError: The job has no such checkpoint, or it is damaged.
        """
        if not steps_applied:
            return replace(initial_state(self._config, layout, self._rank), epoch=epoch)
        if self._folder is None:
            raise MissingSliceError("this job has no checkpoints: set config.checkpoint.directory in its job file")
        ownership = OwnershipMap(self._specs, layout)
        state = empty_state(self._config, ownership, self._rank, epoch=epoch, steps_applied=steps_applied)
        try:
            read_state(self._folder, self._folder.find(steps_applied), ownership, self._rank, state)
        except ValueError as error:
            raise MissingSliceError(str(error)) from error
        return state


def plan_with_stand_ins(
    specs: Sequence[ParameterSpec],
    old: Layout,
    new: Layout,
    sources: Sequence[int],
    stand_ins: Sequence[StandIn],
) -> tuple[Copy, ...]:
    """As :func:`~.transfers.plan_transfers`, with copies in place of ranks that are gone.

    An owner that is gone counts as a rank of its own that does not stay, so a copy is read only where nobody who stays
    holds the slice, and a replacement with the owner's number does not pass for it.

    Raises:
        MissingSliceError: Nobody has a slice that is needed.
    """
    if not stand_ins:
        return plan_transfers(specs, old, new, sources)
    beyond = 1 + max(*old.ranks, *new.ranks, *old.standbys, *new.standbys, 0)
    ghosts = {one.owner: beyond + one.owner for one in stand_ins}
    copies = plan_transfers(specs, _renamed(old, ghosts), new, [*sources, *ghosts.values()])
    keepers = {ghosts[one.owner]: one for one in stand_ins}
    return tuple(
        replace(copy, source=keepers[copy.source].keeper, copy_of=keepers[copy.source].owner)
        if copy.source in keepers
        else copy
        for copy in copies
    )


def _renamed(layout: Layout, names: Mapping[int, int]) -> Layout:
    replicas = []
    for one in layout.replicas:
        stages = [replace(stage, ranks=tuple(names.get(rank, rank) for rank in stage.ranks)) for stage in one.stages]
        replicas.append(replace(one, stages=tuple(stages)))
    return replace(layout, replicas=tuple(replicas))
