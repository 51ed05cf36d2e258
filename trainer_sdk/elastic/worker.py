"""The entry point of an elastic job's ranks: ``evenkeel.trainer_sdk.elastic.worker:train``.

The launcher imports this module once, before it forks ranks, so everything that is slow to load is loaded here, and a
new rank trains within milliseconds of its fork. ``python -m`` of it lets Python keep what it compiled of all that.
"""

import importlib
import os
from functools import partial

import torch

from evenkeel.trainer_sdk.elastic.config import TrainingConfig, config_from_json
from evenkeel.trainer_sdk.elastic.engine import Engine
from evenkeel.trainer_sdk.elastic.model.corpus import load_corpus
from evenkeel.trainer_sdk.elastic.model.runnable import check_runnable
from evenkeel.trainer_sdk.launcher.processes.context import RankContext


def preload(config: TrainingConfig) -> None:
    """Load what training needs and read the corpus. Starts no thread and touches no accelerator."""
    # torch's store looks up the name of every peer that connects, one after the other in its only thread: a lost DNS
    # packet would stop all ranks for the resolver's default of five seconds. Read when a process first resolves.
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    torch.set_num_threads(1)
    importlib.import_module("torch.fx.experimental.symbolic_shapes")  # as the first backward does: some 500 modules
    importlib.import_module("numpy.random")  # as the first documents drawn do
    load_corpus(config.workload.corpus_bytes)


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
