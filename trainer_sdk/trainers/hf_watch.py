"""A callback by which the Trainer of transformers, as it comes, is watched."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import transformers

from evenkeel.trainer_sdk.trainers.hf import Trainer
from evenkeel.trainer_sdk.trainers.watched_steps import WatchedSteps

if TYPE_CHECKING:
    from evenkeel.trainer_sdk.watch.run import Run


class Watch(transformers.TrainerCallback):
    """``trainer.add_callback(Watch(trainer))``: what a rank reads, computes and waits for is told; nothing is repaired.

    Args:
        trainer: The library's own, under whatever launches and wraps it.
        run: This process's part of the job; None = what ``evenkeel.start()`` gives when training begins.

    Raises:
        ValueError: The trainer is one of Evenkeel's.
    """

    def __init__(self, trainer: transformers.Trainer, run: "Run | None" = None) -> None:
        if isinstance(trainer, Trainer):
            raise ValueError("evenkeel.hf.Trainer is watched by itself: leave Watch out")
        self._trainer, self._steps = trainer, WatchedSteps(run)
        self._wrapped: Any = None
        # Callbacks see neither batches nor a step's loss.
        self._read, self._train = trainer.get_batch_samples, trainer.training_step
        trainer.get_batch_samples, trainer.training_step = self._get_batch_samples, self._training_step

    def _get_batch_samples(self, epoch_iterator: Iterator[Any], *args: Any, **kwargs: Any) -> Any:
        self._steps.begin(self._trainer.state.global_step)
        return self._steps.read(epoch_iterator, lambda batches: self._read(batches, *args, **kwargs))

    def _training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self._steps.take(inputs)
        loss = self._train(model, inputs, *args, **kwargs)
        self._steps.add(loss)
        return loss

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The model is as it will be called."""
        self._steps.start()
        if self._trainer.model_wrapped is not self._wrapped:
            self._wrapped = self._trainer.model_wrapped
            self._steps.run.watch(self._wrapped, given.get("optimizer"))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A step is over."""
        self._steps.end()
        if control.should_evaluate or control.should_save:
            self._steps.pause("evaluation" if control.should_evaluate else "checkpoint")

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """So is a pass."""
        self.on_step_end(args, state, control)
