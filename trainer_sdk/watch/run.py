"""A process's part of a watched job, for plain training loops."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evenkeel.layouts.rank_state import RankPhase
from evenkeel.trainer_sdk.devices.device import ComputeKind, Device
from evenkeel.trainer_sdk.devices.matrix_probe import MatrixProbe
from evenkeel.trainer_sdk.devices.real_device import CpuDevice
from evenkeel.trainer_sdk.emit.emitter import Emitter
from evenkeel.trainer_sdk.emit.iteration import Iteration, known_index, known_mark
from evenkeel.trainer_sdk.emit.measured import Place
from evenkeel.trainer_sdk.emit.phases import Phases
from evenkeel.trainer_sdk.watch.guard import say_once

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from evenkeel.trainer_sdk.control.mailbox import Mailbox
    from evenkeel.trainer_sdk.replicas.loop import Replicas
    from evenkeel.trainer_sdk.replicas.state.training_state import Kept

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
        emitter: "Emitter",
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
        self._published_at_seconds = float("-inf")
        self._close = close
        self._next_iteration = 0
        self._process_id = os.getpid()
        self._replicas: Replicas | None = None
        self._kept: list[Kept] = []
        self._seed = 0
        self._weight = 0.0

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
            mark: ``evaluation`` or ``checkpoint`` when such a pause falls into it; another is said once and ignored.
        """
        number = self._next_iteration if index is None else known_index(index, self._next_iteration)
        self._next_iteration = number + 1
        return Iteration(
            number,
            tokens=tokens,
            sum_of_squares=sum_of_squares,
            mark=mark,
            phases=self._phases,
            finished=self._finished,
        )

    @contextmanager
    def pause(self, mark: str) -> Iterator[None]:
        """A context around an evaluation or a checkpoint between two iterations: who is in it does not hang.

        Args:
            mark: ``evaluation`` or ``checkpoint``; another is said once and ignored.
        """
        self._phases.pause(known_mark(mark))
        try:
            yield
        finally:
            self._phases.pause("")

    def watch(self, model: "torch.nn.Module", optimizer: "torch.optim.Optimizer | None" = None) -> None:
        """Measure what this model computes in every iteration, and mark where it waits for other ranks.

        Knows models wrapped by ``DistributedDataParallel`` or ``fully_shard``, and models that wait for nobody. The
        model's results stay as they are. Never raises: what cannot be watched is one line of warning.

        Args:
            model: As the loop calls it; more than one may be watched.
            optimizer: Its optimizer, to be measured too; one that a library has wrapped as well.
        """
        from evenkeel.trainer_sdk.adapters.optimizer import watch_optimizer  # noqa: PLC0415 - the SDK loads without torch
        from evenkeel.trainer_sdk.adapters.registry import watch_model  # noqa: PLC0415

        self._try("the model", lambda: watch_model(model, self._phases))
        if optimizer is not None:
            self._try("the optimizer", lambda: watch_optimizer(optimizer, self._phases))

    @property
    def num_errors(self) -> int:
        """Errors of the watch that were kept from the loop so far; each kind of them was said once."""
        return self._phases.guard.num_errors

    def _try(self, what: str, watch: Callable[[], None]) -> None:
        try:
            watch()
        except ValueError as error:
            self._phases.guard.num_errors += 1
            say_once(f"watch: {what}", "%s is not watched: %s", what, error)
        except Exception as error:
            self._phases.guard.note(f"watching {what}", error)

    def replicate(self, model: "torch.nn.Module", *, num_micro_batches: int = 0, seed: int = 0) -> "torch.nn.Module":
        """Make this process's model one of several replicas, any of which may die; see docs/on_your_loop.md.

        Args:
            model: Plain, or ``fully_shard``-ed over this replica's ranks. It is returned as it is.
            num_micro_batches: Of a step, over all replicas; 0 = one for each replica.
            seed: Of the noise in micro-batches and the order of samples.

        Raises:
            ValueError: The model or the environment cannot be used; the message says why.
            RuntimeError: This process has a model that is a replica's.
        """
        if self._replicas is not None:
            raise RuntimeError("this process is a replica already: train one model in a process, once")
        from evenkeel.trainer_sdk.replicas import join_replicas  # noqa: PLC0415 - the SDK loads without torch
        from evenkeel.trainer_sdk.replicas.place import Place as ReplicaPlace  # noqa: PLC0415

        self._seed = seed
        place = ReplicaPlace.from_environment()
        self._replicas = join_replicas(
            place, model, num_micro_batches=num_micro_batches, seed=seed, kept=self._kept, mailbox=self._mailbox
        )
        return model

    @property
    def mesh(self) -> "DeviceMesh":
        """This replica's ranks, for ``fully_shard(model, mesh=run.mesh)`` before :meth:`replicate`."""
        from evenkeel.trainer_sdk.replicas.place import Place, replica_mesh  # noqa: PLC0415

        return replica_mesh(Place.from_environment())

    def keep(self, *kept: "Kept") -> None:
        """What a replica that comes back must get beside the model and its optimizers: schedules, scalers, averages.

        Args:
            kept: Objects with ``state_dict`` and ``load_state_dict``, in the same order everywhere, before the loop.
        """
        self._kept.extend(kept)

    @property
    def replicas(self) -> "Replicas":
        """What :meth:`replicate` made of this process.

        Raises:
            RuntimeError: It was not called.
        """
        if self._replicas is None:
            raise RuntimeError("call run.replicate(model) first")
        return self._replicas

    @property
    def step(self) -> int:
        """Steps that this replica has finished; set it when a checkpoint was loaded, before the first micro-batch.

        Raises:
            RuntimeError: It is set later, when a step and its samples are the same on all replicas.
        """
        return self.replicas.step

    @step.setter
    def step(self, step: int) -> None:
        if self.replicas.has_begun:
            raise RuntimeError("set run.step before the first micro-batch: from then on all replicas are in one step")
        self.replicas.step = step

    @property
    def loss(self) -> float:
        """Mean loss of the newest step, over all micro-batches of all replicas."""
        return self.replicas.loss

    def micro_batches(
        self,
        source: Any,
        *,
        batch_size: int = 1,
        collate: "Callable[[Sequence[Any]], Any] | None" = None,
    ) -> Iterator[Any]:
        """This replica's share of a step, more of it when a peer's falls to it; ends when the step is voted.

        Args:
            source: A map-style dataset, whose samples are each taken once a pass; or a function of (step, micro-batch).
            batch_size: Samples of a micro-batch, of a dataset.
            collate: Makes a batch of samples; torch's by default.

        Raises:
            TypeError: The source cannot be read twice.
            RuntimeError: :meth:`replicate` was not called, or the loop's body is not one of steps.
        """
        from evenkeel.trainer_sdk.replicas.samples import batches_of  # noqa: PLC0415 - the SDK loads without torch

        replicas = self.replicas
        per_step = replicas.num_micro_batches
        batches = batches_of(source, per_step=per_step, size=batch_size, seed=self._seed, collate=collate)
        return self._measured_step(replicas, batches)

    def _measured_step(self, replicas: "Replicas", batches: "Callable[[int, int], Any]") -> Iterator[Any]:
        replicas.begin()
        phases = self._phases
        with self.iteration(tokens=0, index=replicas.step) as iteration:
            iteration.num_micro_batches, self._weight = 0, 0.0

            def fetch(step: int, micro_batch: int) -> Any:
                phases.compute(ComputeKind.DATA)
                batch = batches(step, micro_batch)
                phases.compute(ComputeKind.FORWARD)
                iteration.num_micro_batches += 1
                return batch

            phases.wait("gradient")
            for batch in replicas.micro_batches(fetch):
                yield batch
                phases.wait("gradient")
            iteration.tokens = max(iteration.num_micro_batches, round(self._weight))
            iteration.place = Place(epoch=0 if self._mailbox is None else max(0, self._mailbox.state.epoch))
            iteration.loss = replicas.loss

    def backward(self, loss: "torch.Tensor", weight: "float | torch.Tensor" = 1.0) -> None:
        """A micro-batch's backward, in place of ``loss.backward()``.

        Args:
            loss: Its loss, a mean.
            weight: Over how much: 1 where micro-batches count the same, its tokens where the mean is over tokens; a
                number, or a tensor of one.

        Raises:
            RuntimeError: :meth:`replicate` was not called, or there is no micro-batch that waits for its backward.
            ValueError: The loss has several values.
        """
        if loss.numel() != 1:
            raise ValueError(f"the loss of a micro-batch is one value, and not {loss.numel()}: give their mean")
        self._weight += (number := float(weight))
        self._phases.compute(ComputeKind.BACKWARD)
        self.replicas.backward(loss.reshape(()), number)
        self._phases.rest()

    def close(self) -> None:
        """Send what is queued, for at most a second, and end the background threads. At exit it happens by itself.

        Raises:
            SystemExit: Of a replica of several ranks, because another one of them is gone.
        """
        if os.getpid() != self._process_id:
            return  # a forked child has none of the threads
        try:
            if self._replicas is not None:
                self._replicas.close()
        finally:
            self._close()

    def _finished(self, iteration: Iteration) -> None:
        self._emitter.emit_later(iteration.measured)
        if self._mailbox is not None:
            self._mailbox.probes.serve(self._probe)
            now = time.monotonic()
            if now >= self._published_at_seconds + _PUBLISH_INTERVAL_SECONDS:
                self._published_at_seconds = now
                done = iteration.index + 1
                said = replace(self._mailbox.state, phase=RankPhase.TRAINING, iteration=done, steps_applied=done)
                self._mailbox.publish(said)
