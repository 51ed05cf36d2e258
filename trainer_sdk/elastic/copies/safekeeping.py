"""All copies of a job's state besides the one that is trained: what the training loop has to say to them, and when.

The slices of a commit come from alive holders, from copies that peers keep, or from the checkpoint on disk.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.rank_state import EarlierState, RankPhase, RankState
from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.copies.checkpoint_folder import CheckpointFolder, require_safetensors
from evenkeel.trainer_sdk.elastic.copies.checkpoint_reader import read_state
from evenkeel.trainer_sdk.elastic.copies.disk_copies import DiskCopies
from evenkeel.trainer_sdk.elastic.copies.peer_copies import PeerCopies
from evenkeel.trainer_sdk.elastic.model.model import parameter_specs
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap
from evenkeel.trainer_sdk.elastic.state.shard_state import ShardState, empty_state, initial_state
from evenkeel.trainer_sdk.elastic.state.transfers import MissingSliceError
from evenkeel.trainer_sdk.groups.group import Group

_LOOK_AGAIN_SECONDS = 2.0
"""Between looks at the folder of checkpoints while parked: a shared file system is slow to list."""


class Safekeeping:
    """One rank's copies on peers and on disk. Training thread only.

    Args:
        config: Job.
        rank: This rank.
        node_of: Node of a rank, so that copies go to another one.

    Raises:
        ValueError: The job wants checkpoints and safetensors is not installed.

    Attributes:
        peers: The copies on peers.
    """

    def __init__(self, config: TrainingConfig, rank: int, node_of: Callable[[int], str]) -> None:
        self._config = config
        self.peers = PeerCopies(config, rank, node_of)
        self._folder: CheckpointFolder | None = None
        self._disk: DiskCopies | None = None
        if config.checkpoint.directory:
            require_safetensors()
            self._folder = CheckpointFolder(Path(config.checkpoint.directory), config.checkpoint.name or config.job_id)
            self._disk = DiskCopies(config, rank, self._folder)
        self._rank = rank
        self._looked_at_seconds = float("-inf")
        self._readable: tuple[int, ...] = ()

    # ---- while training

    def enter(self, groups: Mapping[str, Group], state: ShardState) -> None:
        """The epoch of a state begins."""
        if self._disk is not None:
            self._disk.enter(state.epoch, state.ownership)
        self.peers.enter(groups, state)

    def checkpoint(self, state: ShardState) -> bool:
        """A step was applied: begin a checkpoint if one is due, and say whether it was."""
        return self._disk is not None and self._disk.stepped(state)

    def send(self, state: ShardState) -> None:
        """The epoch goes on after a step: send copies if they are due, and if a vote will follow."""
        if state.steps_applied < self._config.num_iterations:
            self.peers.stepped(state)

    def give_up_round(self) -> None:
        """The groups are abandoned: the round on its way is lost, and the checkpoints on disk may soon be asked for."""
        self.peers.give_up_round()
        self._looked_at_seconds = float("-inf")

    def close(self, timeout_seconds: float) -> None:
        """The rank ends: a checkpoint that is being written gets this long."""
        if self._disk is not None:
            self._disk.close(timeout_seconds)

    # ---- while parked

    def look(self) -> bool:
        """Look at the folder of checkpoints if that is due; whether something changed there."""
        if self._folder is None or time.monotonic() < self._looked_at_seconds + _LOOK_AGAIN_SECONDS:
            return False
        self._looked_at_seconds = time.monotonic()
        before, self._readable = self._readable, self._folder.steps()
        return self._readable != before

    def described(self, state: RankState) -> RankState:
        """A rank's state with what it keeps and what it can go back to."""
        if state.phase in (RankPhase.PARKED, RankPhase.JOINING):
            self.look()
        return replace(
            state,
            copies=self.peers.kept,
            earlier=tuple(
                EarlierState(epoch=held, steps_applied=steps)
                for held in state.held_epochs
                for steps in self.peers.steps_to_go_back_to(held)
            ),
            checkpoint_steps=self._readable,
            keeper_of=self.peers.keeper_of,
        )

    def read(self, layout: Layout, *, epoch: int, steps_applied: int) -> ShardState:
        """This rank's slices under a layout from the checkpoint of so many steps; of none, from the job's seed.

        Raises:
            MissingSliceError: The job has no such checkpoint, or it is damaged.
        """
        if not steps_applied:
            return replace(initial_state(self._config, layout, self._rank), epoch=epoch)
        if self._folder is None:
            raise MissingSliceError("this job has no checkpoints: set config.checkpoint.directory in its job file")
        ownership = OwnershipMap(parameter_specs(self._config.model), layout)
        state = empty_state(self._config, ownership, self._rank, epoch=epoch, steps_applied=steps_applied)
        try:
            read_state(self._folder, self._folder.find(steps_applied), state)
        except ValueError as error:
            raise MissingSliceError(str(error)) from error
        return state
