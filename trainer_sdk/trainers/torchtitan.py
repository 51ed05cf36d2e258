"""The Trainer of torchtitan, as one of several replicas: everything of it that is not said here is its own."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

try:
    import torchtitan.trainer
except ImportError as error:
    raise ImportError("evenkeel.torchtitan needs torchtitan: pip install torchtitan") from error

from evenkeel.trainer_sdk.trainers.steps import TrainerSteps

_Batch = tuple[dict[str, Any], Tensor]


class Trainer(torchtitan.trainer.Trainer):
    """``torchtitan.trainer.Trainer(config)``; any replica may die, and comes back, while the others train.

    ``training.global_batch_size`` is that of a step over all replicas.

    Args:
        config: As there. CUDA graphs are left out: gradients leave from hooks, which a replayed graph does not call.

    Raises:
        ValueError: The model or the environment cannot be used; the message says why.
    """

    ntokens_seen: int

    def __init__(self, config: Any) -> None:
        super().__init__(replace(config, training=replace(config.training, disable_cuda_graphs=True)))
        self._batches: list[_Batch] = []
        self._steps = steps = TrainerSteps(self.model_parts[0], self.gradient_accumulation_steps, (self.lr_schedulers,))
        save = self.checkpointer.save
        self.checkpointer.save = lambda *args, **kwargs: steps.is_first and save(*args, **kwargs)
        if self.config.validator.enable:
            is_due = self.validator.should_validate
            self.validator.should_validate = lambda step: steps.has_model and is_due(step)

    @property
    def has_model(self) -> bool:
        """False in a newcomer that does not hold the whole state yet: its model says nothing."""
        return self._steps.has_model

    def train(self) -> None:
        """As there, with a word where the model that training leaves is not whole."""
        super().train()
        self._steps.end()

    def train_step(self, data_iterator: Iterator[_Batch]) -> None:
        """As there, but for a step that the others had finished before this process began: it is only read."""
        self._batches = list(islice(data_iterator, self.gradient_accumulation_steps))
        num_seen = self.ntokens_seen + sum(labels.numel() for _, labels in self._batches)
        if self._steps.is_passed(self.step - 1):
            self.optimizers.step()  # without gradients
            self.lr_schedulers.step()
        else:
            super().train_step(iter(self._batches))
        self.ntokens_seen = num_seen

    def forward_backward_step(
        self, *, input_dict: dict[str, Any], labels: Tensor, global_valid_tokens: Tensor
    ) -> Tensor:
        """The step's first call runs this replica's share of its micro-batches; the others have nothing left to do."""
        batches, self._batches = self._batches, []
        if not batches:
            return torch.zeros((), device=self.device)
        share = super().forward_backward_step

        def backward(batch: _Batch) -> Tensor:
            inputs, targets = batch
            tensors = {key: each.to(self.device) for key, each in inputs.items() if isinstance(each, Tensor)}
            loss: Tensor = share(
                input_dict=inputs | tensors, labels=targets.to(self.device), global_valid_tokens=global_valid_tokens
            )
            return loss.detach()

        return self._steps.run(self.step - 1, batches, backward)
