"""A rank's engine in the surroundings that the launcher gave it."""

from collections.abc import Callable
from dataclasses import replace

from evenkeel.trainer_sdk.elastic.config import TrainingConfig, config_from_json
from evenkeel.trainer_sdk.elastic.engine import Engine, Step
from evenkeel.trainer_sdk.launcher.processes.context import RankContext


def config_in(context: RankContext) -> TrainingConfig:
    """The job's configuration, on this rank's device.

    Raises:
        ValueError: It is not usable.
    """
    return replace(config_from_json(context.config), job_id=context.job_id, device=context.torch_device)


def engine_in(context: RankContext, on_step: Callable[[Step], None] | None = None) -> Engine:
    """The engine of the rank; it trains when it is told to run.

    Args:
        context: The rank's surroundings; ``config`` is what
            :func:`~evenkeel.trainer_sdk.elastic.config.config_to_json` made.
        on_step: Called after each step of this rank, on the training thread.

    Raises:
        ValueError: The configuration is not usable.
    """
    return Engine(
        config_in(context),
        rank=context.rank,
        incarnation=context.incarnation,
        mailbox=context.mailbox,
        device=context.device,
        emitter=context.emitter,
        store_address=context.store_address,
        initial_layout=context.initial_layout,
        links=context.links,
        node_of=context.node_of,
        on_step=on_step,
    )
