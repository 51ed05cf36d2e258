"""The entry point of an elastic job's ranks: ``evenkeel.trainer_sdk.elastic.worker:train``.

The launcher imports this module once, before it forks ranks, so everything that is slow to load is loaded here.
"""

from functools import partial

import torch

from evenkeel.trainer_sdk.elastic.config import TrainingConfig, config_from_json
from evenkeel.trainer_sdk.elastic.engine import Engine
from evenkeel.trainer_sdk.elastic.model.runnable import check_runnable
from evenkeel.trainer_sdk.elastic.preload import preload
from evenkeel.trainer_sdk.launcher.processes.context import RankContext


def train(context: RankContext) -> None:
    """Train until the job is done or the rank is evicted.

    Args:
        context: The rank's surroundings; ``config`` is what
            :func:`~evenkeel.trainer_sdk.elastic.config.config_to_json` made.

    Raises:
        ValueError: The configuration is not usable.
    """
    torch.set_num_threads(1)
    if context.torch_device.startswith("cuda"):
        torch.cuda.set_device(context.torch_device)
    context.mailbox.require(partial(check_runnable, config_from_json(context.config)))
    Engine(context).run()


preload(TrainingConfig())
