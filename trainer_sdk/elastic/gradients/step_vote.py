"""The step vote: nobody steps before every rank of the epoch said that it holds the reduced gradients.

What is said is put together level by level (:mod:`evenkeel.trainer_sdk.groups.building.assembly`), so no group of the
vote holds more
ranks than ``vote_width``. Who hears the outcome knows that everybody voted; who voted and did not hear it holds what it
needs to step alone, once a recovery finds that somebody did.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from evenkeel.layouts.layout import Layout
from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.measure.wait_kind import WaitKind
from evenkeel.trainer_sdk.elastic.program.topology import WORLD
from evenkeel.trainer_sdk.emit.phases import Phases
from evenkeel.trainer_sdk.groups.building.assembly import Assembly
from evenkeel.trainer_sdk.groups.group import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Armed:
    """Who is ready for a probe of a link.

    Attributes:
        newest: Highest id that a rank named; 0 = nobody named one.
        total: Sum of the ids.
        num_ranks: How many named one.
    """

    newest: int
    total: int
    num_ranks: int

    def agree_on(self, probe_id: int, num_ranks: int) -> bool:
        """Whether so many ranks named this id, and nobody another one."""
        return (self.newest, self.total, self.num_ranks) == (probe_id, num_ranks * probe_id, num_ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What everybody knows once a vote has passed.

    Attributes:
        committed_epoch: The newest epoch whose commit every rank carries.
        loss: Mean loss of the iteration.
        gradient_norm: Global norm of its gradients.
        armed: Probes of links that ranks are ready for.
    """

    committed_epoch: int
    loss: float
    gradient_norm: float
    armed: Armed


class StepVote:
    """One rank's votes in one epoch. Training thread only.

    Args:
        config: Job.
        layout: Layout of the epoch.
        rank: This rank.
        groups: The epoch's groups by name.
        phases: Told of waits.
    """

    def __init__(
        self, config: TrainingConfig, layout: Layout, rank: int, groups: Mapping[str, Group], phases: Phases
    ) -> None:
        self._assembly = Assembly(
            WORLD,
            layout.ranks,
            config.vote_width,
            rank=rank,
            groups=groups,
            device=torch.device(config.device),
            wait=partial(phases.waits, WaitKind.VOTE),
        )

    def gradient_norm(self, squared_part: float) -> float:
        """The global norm, from everybody's part of its square.

        Raises:
            WaitBroken: The rank should park.
        """
        (squared,) = self._assembly.fold([squared_part], _sums)
        return math.sqrt(squared)

    def hold(self, committed_epoch: int, loss_part: float, squared_norm_part: float, probe_id: int = 0) -> Outcome:
        """Say that this rank holds the reduced gradients; returns when everybody did.

        Args:
            committed_epoch: Of the newest commit that this rank carries.
            loss_part: Its part of the mean loss.
            squared_norm_part: Its part of the squared gradient norm.
            probe_id: Of the probe of a link that this rank is ready for; 0 = none.

        Raises:
            WaitBroken: The rank should park; others may have heard the outcome.
        """
        mine = [float(committed_epoch), float(probe_id), loss_part, squared_norm_part, float(probe_id), probe_id > 0]
        epoch, newest, loss, squared, total, armed = self._assembly.fold(mine, _least_most_and_sums)
        return Outcome(
            committed_epoch=int(epoch),
            loss=loss,
            gradient_norm=math.sqrt(squared),
            armed=Armed(newest=int(newest), total=int(total), num_ranks=int(armed)),
        )


def _sums(rows: Tensor) -> Tensor:
    return rows.sum(dim=0)


def _least_most_and_sums(rows: Tensor) -> Tensor:
    return torch.cat((rows[:, :1].min(dim=0).values, rows[:, 1:2].max(dim=0).values, rows[:, 2:].sum(dim=0)))
