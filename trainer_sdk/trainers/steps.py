"""What every trainer needs of replicas: its own step of several micro-batches, of which each replica runs its share."""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from evenkeel.trainer_sdk.api import start

if TYPE_CHECKING:
    from evenkeel.trainer_sdk.replicas.state.training_state import Kept

_log = logging.getLogger("evenkeel.replicas")


class TrainerSteps:
    """A trainer's steps, run by all replicas. Training thread.

    The trainer believes that it is alone: it reads the whole batch of a step, and its accumulation of gradients is
    that of the whole job. A newcomer's trainer goes through its loop without computing until it is where the others
    are, so that its loader and schedules are there too.

    Args:
        model: What is trained.
        num_micro_batches: The most that a step has, over all replicas.
        kept: Schedules, scalers; None among them is left out.

    Attributes:
        is_behind: The newest step was one that the others had finished before this process began.

    Raises:
        ValueError: The model or the environment cannot be used; the message says why.
    """

    def __init__(self, model: nn.Module, num_micro_batches: int, kept: "Sequence[Kept | None]" = ()) -> None:
        from evenkeel.trainer_sdk.replicas import Place  # noqa: PLC0415 - it loads all of the groups

        if Place.from_environment().size > 1:
            raise ValueError("a replica under a trainer is one process: give each torchrun --nproc-per-node 1")
        run = start()
        run.replicate(model, num_micro_batches=num_micro_batches)
        run.keep(*(each for each in kept if each is not None))
        self.is_behind = False
        self._run, self._replicas = run, run.replicas
        self._device = next(model.parameters()).device
        self._number = -1

    @property
    def is_first(self) -> bool:
        """This process saves, if anybody does."""
        return self._replicas.is_first

    @property
    def has_model(self) -> bool:
        """The model is the job's: it may be evaluated."""
        return self._replicas.is_complete and not self.is_behind

    def end(self) -> None:
        """Training is over."""
        if self._replicas.has_begun and not self.has_model:
            _log.warning("this replica came too late to receive the whole model: what it evaluates now says nothing")

    def is_passed(self, number: int) -> bool:
        """Whether the others had finished a step before this process began; the first question meets them.

        Args:
            number: Steps that the trainer has finished.
        """
        if not self._replicas.has_begun:
            self._replicas.step = number
            self._replicas.begin()
        self.is_behind = number < self._replicas.step
        return self.is_behind

    def run(self, number: int, batches: Sequence[Any], backward: Callable[[Any], Tensor]) -> Tensor:
        """A step: when it returns, every parameter's ``grad`` is the sum over all batches.

        Args:
            number: Steps that the trainer has finished.
            batches: All of the step, the same on every replica.
            backward: Runs forward and backward of one, and returns its loss, a scalar.

        Returns:
            Sum of all losses; 0, and no gradients, where this process is behind.

        Raises:
            RuntimeError: The trainer's steps are not those of the job.
        """
        replicas = self._replicas
        is_passed = self.is_passed(number)
        if number <= self._number or number > replicas.step or len(batches) > replicas.num_micro_batches:
            raise RuntimeError(
                f"the trainer is at step {number} with {len(batches)} micro-batches, after its step {self._number}; "
                f"the job is at step {replicas.step}, with {replicas.num_micro_batches}: train once in a process, "
                "with the same arguments everywhere"
            )
        self._number = number
        if is_passed:
            return torch.zeros((), device=self._device)
        part = 1.0 / len(batches)
        with torch.random.fork_rng():  # afterwards random numbers are the same everywhere, whoever ran what
            for index in self._run.micro_batches(lambda _, index: index):
                if index < len(batches):
                    replicas.add(backward(batches[index]), part)
                else:  # the last step of an epoch is a short one
                    replicas.add(torch.zeros((), device=self._device), 0.0)
        return torch.tensor(replicas.loss, device=self._device)
