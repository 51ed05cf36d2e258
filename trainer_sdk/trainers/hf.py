"""The Trainer of transformers, as one of several replicas: everything of it that is not said here is its own."""

import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

try:
    import transformers
    from accelerate import PartialState
    from accelerate.utils import DistributedType
except ImportError as error:
    raise ImportError("evenkeel.hf needs transformers and accelerate: pip install 'evenkeel[hf]'") from error

from evenkeel.trainer_sdk.trainers.steps import TrainerSteps

_log = logging.getLogger("evenkeel.replicas")


class Trainer(transformers.Trainer):
    """``transformers.Trainer``; any replica may die, and comes back, while the others train.

    ``gradient_accumulation_steps`` are a step's micro-batches over all replicas: the global batch, and with it the
    loss, is what the arguments say, however many replicas there are.

    Raises:
        ValueError: The arguments or the environment cannot be used; the message says why.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.args.world_size > 1 or self.is_deepspeed_enabled or self.is_fsdp_enabled or self.args.n_gpu > 1:
            raise ValueError(
                "a replica under evenkeel.hf.Trainer is one process with one device, without DeepSpeed and FSDP: "
                "start each under a torchrun of its own, with one device visible"
            )
        # Under torchrun accelerate wraps the model of a process that is alone in its world, too.
        self.accelerator.state.distributed_type = PartialState().distributed_type = DistributedType.NO
        self._steps: TrainerSteps | None = None
        self._batches: list[Any] | None = None
        self.add_callback(_Newcomer(self))

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor | int | None]:
        """As there; what is read belongs to the step that follows."""
        samples, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        # The last of a loader without a length: the library would add them to the next pass's first step.
        is_rest = len(samples) < num_batches
        if samples and is_rest:
            _log.warning("%d batches at the end of a pass are too few for a step: they are left out", len(samples))
        self._batches = None if is_rest else samples
        return samples, num_items

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The step's first call runs this replica's share of its micro-batches; the others have nothing left to do."""
        batches, self._batches = self._batches, None
        if batches is None:
            return torch.zeros((), device=self.args.device)
        if self._steps is None:
            kept = (self.lr_scheduler, getattr(self.accelerator, "scaler", None))
            self._steps = TrainerSteps(model, self.args.gradient_accumulation_steps, kept)
        share = super().training_step
        loss = self._steps.run(
            self.state.global_step, batches, lambda batch: share(model, batch, num_items_in_batch=num_items_in_batch)
        )
        if self._steps.is_behind:  # a log is a mean over the steps since the last one
            self._globalstep_last_logged = self.state.global_step + 1
        self.state.is_world_process_zero = self._steps.is_first
        return loss

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As there, once and not by every replica."""
        if self._steps is None or self._steps.is_first:
            super().save_model(output_dir, _internal_call)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if self._steps is None or self._steps.is_first:
            super()._save_checkpoint(model, trial)

    @property
    def has_model(self) -> bool:
        """False in a newcomer that does not hold the whole state yet: its model says nothing."""
        return self._steps is None or self._steps.has_model


class _Newcomer(transformers.TrainerCallback):
    """Nothing is saved or evaluated of a model that is not whole."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """After everybody else has said what is to be done."""
        if not self._trainer.has_model:
            control.should_evaluate = control.should_save = False
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Likewise."""
        return self.on_step_end(args, state, control, **kwargs)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """What the script does with the model from here on is its own."""
        if self._trainer._steps is not None:
            self._trainer._steps.end()
