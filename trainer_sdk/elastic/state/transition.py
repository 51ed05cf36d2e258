"""From one epoch to the next: new groups, then every slice where the new layout wants it. Training thread only.

What is decided by whom is in docs/architecture.md, "How a plan is applied". A transition that fails leaves the old
epoch's state as it was: the rank parks, and the next plan starts from there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from evenkeel.trainer_sdk.control.state import ApplyMode, Commit
from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.copies.safekeeping import Safekeeping
from evenkeel.trainer_sdk.elastic.gradients.gradient_ledger import GradientLedger, ledger_to_texts, ledgers_from_texts
from evenkeel.trainer_sdk.elastic.gradients.gradient_sums import GradientSums
from evenkeel.trainer_sdk.elastic.gradients.salvage import SalvagePlan, plan_salvage
from evenkeel.trainer_sdk.elastic.model.model import parameter_specs
from evenkeel.trainer_sdk.elastic.program.topology import TRANSFER, WORLD, groups_of
from evenkeel.trainer_sdk.elastic.state.mover import move_state, move_sums
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap
from evenkeel.trainer_sdk.elastic.state.shard_state import ShardState, empty_state
from evenkeel.trainer_sdk.elastic.state.transfers import Copy, plan_transfers
from evenkeel.trainer_sdk.emit.progress import ProgressMark
from evenkeel.trainer_sdk.groups.building.assembly import Assembly
from evenkeel.trainer_sdk.groups.building.builder import RESHAPING, GroupBuilder, GroupSpec
from evenkeel.trainer_sdk.groups.delivery import Delivery
from evenkeel.trainer_sdk.groups.group import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What a rank has when a transition is done.

    Attributes:
        groups: The new epoch's groups by name.
        state: Its slices.
        sums: Its gradient sums of an iteration that a failure interrupted.
        salvaged: How that iteration goes on; None when there was none, or nothing of it is left to go on from.
    """

    groups: dict[str, Group]
    state: ShardState
    sums: GradientSums | None = None
    salvaged: SalvagePlan | None = None


class Transition:
    """Takes one rank from epoch to epoch.

    Args:
        config: Job.
        rank: This rank.
        builder: Builds the groups.
        safekeeping: Where the slices of a commit come from, besides ranks that hold them.
        progress: Told when a checkpoint is read.
    """

    def __init__(
        self,
        config: TrainingConfig,
        rank: int,
        builder: GroupBuilder,
        safekeeping: Safekeeping,
        progress: ProgressMark,
    ) -> None:
        self._config = config
        self._rank = rank
        self._builder = builder
        self._safekeeping = safekeeping
        self._progress = progress
        self._specs = parameter_specs(config.model)

    def begin(self, state: ShardState) -> Arrival:
        """Go to epoch 0, whose slices every rank makes itself.

        Raises:
            WaitBroken: The rank should park.
        """
        self._builder.meet(0, state.layout.ranks, None)
        return Arrival(groups=self._builder.add(0, self._groups_of(state.ownership)), state=state)

    def follow(self, commit: Commit, source: ShardState | None, sums: GradientSums | None) -> Arrival | None:
        """Go over to the epoch of a committed plan; None for a rank without a position in it, which only handed over.

        Args:
            commit: The plan.
            source: What this rank holds of ``commit.from_epoch``; None when it holds nothing or may not be read.
            sums: Its gradient sums of that epoch, if it has any.

        Raises:
            MissingSliceError: A slice that is needed is nowhere where the commit says; nothing has changed.
            WaitBroken: The rank should park; ``source`` is untouched.
        """
        layout = commit.reshape.to_layout
        copies: tuple[Copy, ...] = ()
        if not commit.from_checkpoint:
            copies = plan_transfers(self._specs, commit.from_layout, layout, commit.sources, commit.stand_ins)
        self._progress.enter("checkpoint")  # copies may take long to the device
        kept = self._safekeeping.peers.kept_for(commit)
        self._progress.enter(RESHAPING)
        # Only a recovery can find an iteration unfinished. Its sums are worth having those that leave come along.
        recovers = commit.reshape.mode is ApplyMode.RECOVER
        holders = commit.sources if recovers else ()
        participants = tuple(sorted({*layout.ranks, *(copy.source for copy in copies), *holders}))
        if self._rank not in participants:
            return None
        epoch, from_disk = commit.reshape.epoch, None
        if commit.from_checkpoint:  # before anybody meets: whoever cannot read it does not come
            self._progress.enter("checkpoint")
            from_disk = self._safekeeping.read(layout, epoch=epoch, steps_applied=commit.steps_applied)
        ownership = OwnershipMap(self._specs, layout)
        steps = commit.steps_applied if source is None else source.steps_applied
        has_sums = sums is not None and sums.has_part_of(steps)
        announced = self._builder.meet(epoch, participants, [steps, has_sums])
        groups = self._builder.add(epoch, self._groups_of(ownership, participants))
        if from_disk is not None:
            return Arrival(groups=groups, state=from_disk)
        assembly = Assembly(
            WORLD if participants == layout.ranks else TRANSFER,
            participants,
            self._config.vote_width,
            rank=self._rank,
            groups=groups,
            device=torch.device(self._config.device),
            wait=self._builder.waits,
        )
        delivery = Delivery(self._rank, epoch, self._builder, groups, assembly.whole)
        try:
            steps_applied = _agreed_steps(announced)
            target = empty_state(self._config, ownership, self._rank, epoch=epoch, steps_applied=steps_applied)
            with torch.no_grad():
                move_state(copies, source, target, delivery, kept)
            kept_sums, salvaged = None, None
            if recovers and any(has_sums for _, has_sums in announced):
                kept_sums, salvaged = self._salvage(commit, steps_applied, sums, assembly, delivery)
            if participants != layout.ranks:
                # Whoever leaves closes its connections, which must not meet one who still makes them.
                assembly.gather((b"",))
        except BaseException:
            self._builder.abandon(groups)
            raise
        if not target.parameters:
            self._builder.abandon(groups)
            return None
        return Arrival(groups=groups, state=target, sums=kept_sums, salvaged=salvaged)

    def _groups_of(self, ownership: OwnershipMap, participants: Sequence[int] = ()) -> tuple[GroupSpec, ...]:
        specs = groups_of(ownership, participants, self._config.vote_width)
        return (*specs, *self._safekeeping.peers.groups_of(ownership.layout))

    def _salvage(
        self, commit: Commit, iteration: int, sums: GradientSums | None, assembly: Assembly, delivery: Delivery
    ) -> tuple[GradientSums | None, SalvagePlan | None]:
        """Keep what survivors have of the interrupted iteration; nothing when that is of no use."""
        layout, names = commit.reshape.to_layout, [spec.name for spec in self._specs]
        device = torch.device(self._config.device)
        mine = GradientLedger() if sums is None else sums.ledger()
        told = ledgers_from_texts(assembly.gather(ledger_to_texts(mine, names)), names)
        ledgers = {rank: told[rank] for rank in commit.sources}
        plan = plan_salvage(self._specs, ledgers, layout, iteration=iteration, rank=self._rank)
        if not plan.keeps_any:
            return None, None
        target = None
        if layout.position_of(self._rank) is not None:
            target = GradientSums(OwnershipMap(self._specs, layout), self._rank, device)
            target.resume(plan)
        with torch.no_grad():
            move_sums(plan, sums, target, delivery, device)
        return target, plan


def _agreed_steps(announced: Sequence[tuple[int, bool]]) -> int:
    """The number of applied steps that everybody who knows it named; a joiner named -1."""
    known = {steps for steps, _ in announced if steps >= 0}
    if len(known) != 1:
        raise RuntimeError(f"ranks disagree on the steps applied before the epoch: {announced}")
    return known.pop()
