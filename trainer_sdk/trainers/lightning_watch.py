"""A callback by which the Trainer of Lightning, as it comes, is watched."""

from typing import TYPE_CHECKING, Any

import lightning.pytorch

from evenkeel.trainer_sdk.trainers.lightning import EvenkeelStrategy
from evenkeel.trainer_sdk.trainers.watched_steps import WatchedSteps

if TYPE_CHECKING:
    from evenkeel.trainer_sdk.watch.run import Run


class Watch(lightning.pytorch.Callback):
    """``L.Trainer(callbacks=[Watch()])``: what a rank computes and waits for is told; nothing is repaired.

    Args:
        run: This process's part of the job; None = what ``evenkeel.start()`` gives when training begins.
    """

    def __init__(self, run: "Run | None" = None) -> None:
        self._steps = WatchedSteps(run)
        self._num_steps = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The module is as it will be called.

        Raises:
            ValueError: The strategy is Evenkeel's.
        """
        if isinstance(trainer.strategy, EvenkeelStrategy):
            raise ValueError("EvenkeelStrategy is watched by itself: leave Watch out of the callbacks")
        self._steps.run.watch(trainer.strategy.model, next(iter(trainer.optimizers), None))
        self._num_steps = trainer.global_step

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A micro-batch has been read."""
        self._steps.begin(trainer.global_step)
        self._steps.take(batch)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """It has been trained on, and with the last of a step the optimizer has stepped."""
        self._steps.add(outputs["loss"] if isinstance(outputs, dict) and "loss" in outputs else outputs)
        if trainer.global_step != self._num_steps:
            self._num_steps = trainer.global_step
            self._steps.end()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Between two steps, or before the first."""
        self._steps.pause()
