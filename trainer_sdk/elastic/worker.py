"""The entry point of an elastic job's ranks: ``trainer_sdk.elastic.worker:train``.

The launcher imports this module once, before it forks ranks, so everything that is slow to load is loaded here.
"""

from dataclasses import replace
from functools import partial

import torch

from trainer_sdk.elastic.config import TrainingConfig, config_from_json
from trainer_sdk.elastic.engine import Engine
from trainer_sdk.elastic.preload import preload
from trainer_sdk.elastic.runnable import check_runnable
from trainer_sdk.launcher.context import RankContext


def train(context: RankContext) -> None:
    """Train until the job is done or the rank is evicted.

    Args:
        context: The rank's surroundings; ``config`` is what :func:`~trainer_sdk.elastic.config.config_to_json` made.

    Raises:
        ValueError: The configuration is not usable.
    """
    torch.set_num_threads(1)
    config = replace(config_from_json(context.config), job_id=context.job_id, device=context.torch_device)
    if config.device.startswith("cuda"):
        torch.cuda.set_device(config.device)
    context.mailbox.require(partial(check_runnable, config))
    host, port = context.store_address
    Engine(
        config,
        rank=context.rank,
        incarnation=context.incarnation,
        mailbox=context.mailbox,
        device=context.device,
        emitter=context.emitter,
        store_address=f"{host}:{port}",
        initial_layout=context.initial_layout,
        links=context.links,
        node_of=context.node_of,
    ).run()


preload(TrainingConfig())
