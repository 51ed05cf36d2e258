"""Which of the two ways a job's process groups are built: what its configuration says."""

from collections.abc import Callable

import torch

from evenkeel.trainer_sdk.elastic.config import GroupBuilding, TrainingConfig
from evenkeel.trainer_sdk.groups.building.builder import GroupBuilder, StoreGroupBuilder
from evenkeel.trainer_sdk.groups.building.reconfigure_builder import ReconfigureGroupBuilder
from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.groups.waiting import Waiter

_BUILDERS: dict[GroupBuilding, type[StoreGroupBuilder]] = {
    GroupBuilding.REBUILD: StoreGroupBuilder,
    GroupBuilding.RECONFIGURE: ReconfigureGroupBuilder,
}


def group_builder(
    config: TrainingConfig, rank: int, rendezvous: Rendezvous, waiter: Waiter, is_over: Callable[[], bool]
) -> GroupBuilder:
    """The builder that ``config.groups`` names.

    Args:
        config: Job.
        rank: This rank.
        rendezvous: Connection to the store, used by the training thread.
        waiter: How to wait.
        is_over: True when nobody will come to a meeting any more.

    Raises:
        ValueError: This torch cannot build groups that way on the job's device.
    """
    return _BUILDERS[config.groups](
        rank,
        rendezvous,
        device=torch.device(config.device),
        waiter=waiter,
        is_over=is_over,
        widest=config.vote_width,
    )
