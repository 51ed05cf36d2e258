"""What a process that forks ranks does once, so that a new rank is training within milliseconds of its fork."""

import torch

from trainer_sdk.elastic.config import TrainingConfig
from trainer_sdk.elastic.corpus import load_corpus


def preload(config: TrainingConfig) -> None:
    """Import what training needs and read the corpus. Starts no thread and touches no accelerator.

    The first ``torch.optim.AdamW`` of a process imports some 900 modules, which takes seconds.
    """
    torch.set_num_threads(1)
    load_corpus(config.workload.corpus_bytes)
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)], foreach=False)
