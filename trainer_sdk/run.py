"""A process's part of a watched job, for plain training loops."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from evenkeel.trainer_sdk.devices.device import Device
from evenkeel.trainer_sdk.devices.matrix_probe import MatrixProbe
from evenkeel.trainer_sdk.devices.real_device import CpuDevice
from evenkeel.trainer_sdk.emit.iteration import Iteration, check_mark, make_segments
from evenkeel.trainer_sdk.emit.null_emitter import NullEmitter
from evenkeel.trainer_sdk.emit.phases import Phases

if TYPE_CHECKING:
    import torch

    from evenkeel.trainer_sdk.control.mailbox import Mailbox
    from evenkeel.trainer_sdk.emit.kafka_emitter import KafkaEmitter

_PUBLISH_INTERVAL_SECONDS = 0.5  # nobody acts on a plain loop's step count; it is there to be looked at


class Run:
    """This process's part of a watched job. Made by :func:`~evenkeel.trainer_sdk.api.start`, for the training thread.

    Args:
        emitter: Where samples go.
        mailbox: What the rank controller reads and asks; None without one.
        device: Measures compute segments.
        torch_device: Where probes run.
        close: Ends what runs in the background, after a word on how the process ends.
    """

    def __init__(
        self,
        *,
        emitter: "KafkaEmitter | NullEmitter",
        mailbox: "Mailbox | None" = None,
        device: Device | None = None,
        torch_device: str = "cpu",
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._emitter = emitter
        self._mailbox = mailbox
        self._device = device or CpuDevice()
        self._probe = MatrixProbe(self._device, torch_device)
        self._phases = Phases(self._device, emitter.progress)
        self._segments = make_segments(self._phases)
        self._published_at_seconds = float("-inf")
        self._close = close
        self._next_iteration = 0
        self._process_id = os.getpid()

    @property
    def asked_to_leave(self) -> bool:
        """True once the fleet asked this process to end; the loop may look at it and stop."""
        return self._mailbox is not None and self._mailbox.leaving()

    def iteration(
        self, *, tokens: int, sum_of_squares: float = 0.0, index: int | None = None, mark: str = ""
    ) -> Iteration:
        """A context around one optimizer step.

        Args:
            tokens: Tokens of this rank's batch.
            sum_of_squares: Sum of squared document lengths, if batches hold several documents or vary in length.
            index: Number of the iteration, for loops that resume; by default counted from 0.
            mark: ``evaluation`` or ``checkpoint`` when such a pause falls into it.

        Raises:
            ValueError: Unknown mark.
        """
        number = self._next_iteration if index is None else index
        self._next_iteration = number + 1
        return Iteration(
            number,
            tokens=tokens,
            sum_of_squares=sum_of_squares,
            mark=mark,
            phases=self._phases,
            segments=self._segments,
            finished=self._finished,
        )

    @contextmanager
    def pause(self, mark: str) -> Iterator[None]:
        """A context around an evaluation or a checkpoint between two iterations: who is in it does not hang.

        Args:
            mark: ``evaluation`` or ``checkpoint``.

        Raises:
            ValueError: Unknown mark.
        """
        check_mark(mark)
        self._phases.pause(mark)
        try:
            yield
        finally:
            self._phases.pause("")

    def watch(self, model: "torch.nn.Module", optimizer: "torch.optim.Optimizer | None" = None) -> None:
        """Measure what this model computes in every iteration, and mark where it waits for other ranks.

        Knows models wrapped by ``DistributedDataParallel`` or ``fully_shard``, and models that wait for nobody. The
        model's results stay as they are.

        Args:
            model: As the loop calls it; more than one may be watched.
            optimizer: Its optimizer, to be measured too.

        Raises:
            ValueError: Only modules in it are sharded, not the whole model.
        """
        from evenkeel.trainer_sdk.adapters.registry import adapter_for  # noqa: PLC0415 - the SDK loads without torch

        adapter_for(model).watch(model, self._phases)
        if optimizer is not None:
            from evenkeel.trainer_sdk.adapters.optimizer import watch_optimizer  # noqa: PLC0415

            watch_optimizer(optimizer, self._phases)

    def close(self) -> None:
        """Send what is queued, for at most a second, and end the background threads. At exit it happens by itself."""
        if os.getpid() != self._process_id:
            return  # a forked child has none of the threads
        self._close()

    def _finished(self, iteration: Iteration) -> None:
        self._emitter.emit_later(iteration.sample)
        if self._mailbox is not None:
            self._mailbox.probes.serve(self._probe)
            now = time.monotonic()
            if now >= self._published_at_seconds + _PUBLISH_INTERVAL_SECONDS:
                self._published_at_seconds = now
                done = iteration.index + 1
                self._mailbox.publish(replace(self._mailbox.state, iteration=done, steps_applied=done))
