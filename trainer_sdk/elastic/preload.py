"""What a process that forks ranks does once, so that a new rank is training within milliseconds of its fork.

``python -m evenkeel.trainer_sdk.elastic.preload`` does it for those that follow: Python keeps what it compiled of all
that.
"""

import os

import torch

from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.model.corpus import load_corpus


def preload(config: TrainingConfig) -> None:
    """Import what training needs and read the corpus. Starts no thread and touches no accelerator.

    The first ``torch.optim.AdamW`` of a process imports some 900 modules, which takes seconds.
    """
    # torch's store looks up the name of every peer that connects, one after the other in its only thread: a lost DNS
    # packet would stop all ranks for the resolver's default of five seconds. Read when a process first resolves.
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    torch.set_num_threads(1)
    load_corpus(config.workload.corpus_bytes)
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)], foreach=False)


if __name__ == "__main__":
    preload(TrainingConfig())
