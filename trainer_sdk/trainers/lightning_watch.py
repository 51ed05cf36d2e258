"""A callback by which the Trainer of Lightning, as it comes, is watched."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import lightning.pytorch

from evenkeel.trainer_sdk.trainers.lightning import EvenkeelStrategy
from evenkeel.trainer_sdk.trainers.watched_steps import WatchedSteps

if TYPE_CHECKING:
    from evenkeel.trainer_sdk.watch.run import Run

_READING = "train_dataloader_next"
"""What Lightning's loop tells its profiler when it reads a micro-batch."""


class Watch(lightning.pytorch.Callback):
    """``L.Trainer(callbacks=[Watch()])``: what a rank computes and waits for is told; nothing is repaired.

    Args:
        run: This process's part of the job; None = what ``evenkeel.start()`` gives when training begins.
    """

    def __init__(self, run: "Run | None" = None) -> None:
        self._steps = WatchedSteps(run)
        self._step = self._num_optimized = 0
        self._loop: Any = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The module is as it will be called.

        Raises:
            ValueError: The strategy is Evenkeel's.
        """
        if isinstance(trainer.strategy, EvenkeelStrategy):
            raise ValueError("EvenkeelStrategy is watched by itself: leave Watch out of the callbacks")
        self._steps.start()
        self._steps.run.watch(trainer.strategy.model, next(iter(trainer.optimizers), None))
        self._step = self._num_optimized = trainer.global_step
        if self._loop is not trainer.fit_loop.epoch_loop:
            self._loop = trainer.fit_loop.epoch_loop
            self._watch_loop(self._loop, trainer.profiler)

    def _watch_loop(self, loop: Any, profiler: Any) -> None:
        """Callbacks do not see that ranks wait for the first one before each micro-batch, nor that they read it."""
        advance, start, stop, reading = loop.advance, profiler.start, profiler.stop, ExitStack()

        def watched_advance(*args: Any, **kwargs: Any) -> None:
            self._steps.begin(self._step)
            self._steps.wait()
            try:
                advance(*args, **kwargs)
            except StopIteration:  # there was none
                self._steps.start()
                raise

        def watched_start(action_name: str) -> None:
            if action_name.endswith(_READING):
                reading.enter_context(self._steps.reading())
            start(action_name)

        def watched_stop(action_name: str) -> None:
            stop(action_name)
            if action_name.endswith(_READING):
                reading.close()

        loop.advance, profiler.start, profiler.stop = watched_advance, watched_start, watched_stop

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A micro-batch has been read."""
        self._steps.take(batch)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """It has been trained on, and with the last of a step the optimizer has stepped."""
        self._steps.add(outputs["loss"] if isinstance(outputs, dict) and "loss" in outputs else outputs)
        if trainer.global_step != self._num_optimized:
            # Which counts the steps of each optimizer.
            self._step, self._num_optimized = self._step + 1, trainer.global_step
            self._steps.end()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Between two steps, in the middle of one's micro-batches, or before the first."""
        self._steps.pause("evaluation")

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Every rank comes here, whoever writes."""
        self._steps.pause("checkpoint")
