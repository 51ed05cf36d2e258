"""All copies of a job's state besides the one that is trained: what the training loop has to say to them, and when."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from evenkeel.layouts.layout import Layout
from evenkeel.layouts.rank_state import EarlierState, RankPhase, RankState
from evenkeel.trainer_sdk.elastic.config import TrainingConfig, config_to_json
from evenkeel.trainer_sdk.elastic.copies.checkpoint_folder import CheckpointFolder, require_safetensors
from evenkeel.trainer_sdk.elastic.copies.checkpoint_manifest import training_identity
from evenkeel.trainer_sdk.elastic.copies.disk_copies import DiskCopies
from evenkeel.trainer_sdk.elastic.copies.peer_copies import PeerCopies
from evenkeel.trainer_sdk.elastic.model.model import parameter_specs
from evenkeel.trainer_sdk.elastic.state.restorer import Restorer
from evenkeel.trainer_sdk.elastic.state.shard_state import ShardState
from evenkeel.trainer_sdk.groups.building.builder import GroupSpec
from evenkeel.trainer_sdk.groups.group import Group

_LOOK_AGAIN_SECONDS = 2.0
"""Between looks at the folder of checkpoints while parked: a shared file system is slow to list."""


class Safekeeping:
    """One rank's copies on peers and on disk. Training thread only.

    Args:
        config: Job.
        rank: This rank.
        node_of: Node of a rank; None when it is not known.

    Raises:
        ValueError: The job wants checkpoints and safetensors is not installed.

    Attributes:
        restorer: Finds the slices of a commit.
    """

    def __init__(self, config: TrainingConfig, rank: int, node_of: Callable[[int], str] | None) -> None:
        specs = parameter_specs(config.model)
        self._config = config
        self._peers = PeerCopies(config, rank, node_of)
        self._folder: CheckpointFolder | None = None
        self._disk: DiskCopies | None = None
        if config.checkpoint.directory:
            require_safetensors()
            self._folder = CheckpointFolder(Path(config.checkpoint.directory), config.checkpoint.name or config.job_id)
            self._disk = DiskCopies(
                self._folder,
                specs,
                rank,
                every_iterations=config.checkpoint.every_iterations,
                keep=config.checkpoint.keep,
                training=training_identity(config_to_json(config)),
            )
        self.restorer = Restorer(config, rank, self._peers, self._folder)
        self._looked_at_seconds = float("-inf")
        self._readable: tuple[int, ...] = ()

    # ---- while training

    def groups_of(self, layout: Layout) -> tuple[GroupSpec, ...]:
        """The groups that an epoch with this layout needs for its copies."""
        return self._peers.groups_of(layout)

    def enter(self, layout: Layout, epoch: int, groups: Mapping[str, Group], state: ShardState) -> None:
        """An epoch begins."""
        if self._disk is not None:
            self._disk.enter(layout, epoch)
        self._peers.enter(layout, groups, state)

    @property
    def partners(self) -> tuple[int, ...]:
        """Whom :meth:`finish_round` waits for."""
        return self._peers.partners

    def finish_round(self) -> None:
        """Before a vote: wait for the copies on their way, so that the vote vouches for them.

        Raises:
            Interrupted: The rank should park.
            PeerLost: A peer is gone.
        """
        self._peers.finish()

    def voted(self) -> None:
        """A vote passed."""
        self._peers.voted()

    def checkpoint(self, state: ShardState) -> bool:
        """A step was applied: begin a checkpoint if one is due, and say whether it was."""
        return self._disk is not None and self._disk.stepped(state)

    def send(self, state: ShardState) -> None:
        """The epoch goes on after a step: send copies if they are due, and if a vote will follow."""
        if state.steps_applied < self._config.num_iterations:
            self._peers.stepped(state)

    def give_up_round(self) -> None:
        """The groups are abandoned: the round on its way is lost, and the checkpoints on disk may soon be asked for."""
        self._peers.give_up_round()
        self._looked_at_seconds = float("-inf")

    def forget(self) -> None:
        """This rank's copies are not needed any more: an epoch without it has voted."""
        self._peers.forget()

    def close(self, timeout_seconds: float) -> None:
        """The rank ends: a checkpoint that is being written gets this long."""
        if self._disk is not None:
            self._disk.close(timeout_seconds)

    # ---- while parked

    def steps_to_go_back_to(self, epoch: int) -> tuple[int, ...]:
        """Earlier steps of an epoch of which this rank has its own slices."""
        return self._peers.steps_to_go_back_to(epoch)

    def earlier_state(self, epoch: int, steps_applied: int) -> ShardState | None:
        """This rank's own slices as they were; None when they are gone."""
        return self._peers.own_state(epoch, steps_applied, self.restorer.device)

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
            copies=self._peers.kept,
            earlier=tuple(
                EarlierState(epoch=held, steps_applied=steps)
                for held in state.held_epochs
                for steps in self._peers.steps_to_go_back_to(held)
            ),
            checkpoint_steps=self._readable,
            keeper_of=self._peers.keeper_of,
        )
