"""A newcomer receives the state from a donor, and installs what a step may use."""

import threading

import torch
from torch import Tensor

from evenkeel.trainer_sdk.groups.building.building import Building
from evenkeel.trainer_sdk.groups.errors import WaitBroken
from evenkeel.trainer_sdk.groups.group import Group
from evenkeel.trainer_sdk.replicas.state.donor import CANNOT_SEND
from evenkeel.trainer_sdk.replicas.state.packing import space
from evenkeel.trainer_sdk.replicas.state.training_state import Received, TrainingState

_LOOK_SECONDS = 0.02
_HEAD = 3  # unit, step, bytes of the text


class Newcomer:
    """Receives the state from a donor, and installs what a step may use.

    Args:
        side: The group of both.
        donor: The donor's rank.
        state: What to receive into.
    """

    def __init__(self, side: Building, donor: int, state: TrainingState) -> None:
        self._side = side
        self._donor = donor
        self._state = state
        self._changed = threading.Condition()
        self._received: list[Received] = []
        self._num_received = state.num_held
        self._is_over = False
        self._error: Exception | None = None
        threading.Thread(target=self._run, name="evenkeel-newcomer", daemon=True).start()

    def install(self, step: int, num_sent: int | None) -> None:
        """Make everything valid that was sent before the vote of a step; returns when it is there.

        Args:
            step: The step whose vote has passed, and whose gradients have not been used.
            num_sent: How many units that is; None when it is not known, and what is there has to do.

        Raises:
            RuntimeError: It is ``CANNOT_SEND``, or what came cannot be received.
        """
        if num_sent == CANNOT_SEND:
            raise RuntimeError(f"rank {self._donor} cannot send its state to this one: its own output says why")
        with self._changed:
            while num_sent is not None and self._num_received < num_sent and not self._is_over:
                self._changed.wait(_LOOK_SECONDS)
            if self._error is not None:
                raise RuntimeError(
                    f"the state of rank {self._donor} cannot be received: {self._error}"
                ) from self._error
            self._received = self._state.install(self._received, step)

    def give_up(self) -> None:
        """The epoch is over; returns at once."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._side.give_up()

    def _run(self) -> None:
        group = self._side.wait()
        try:
            self._take_all(group)
        except WaitBroken:
            pass
        except Exception as error:
            self._error = error
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _take_all(self, group: Group | None) -> None:
        while group is not None and not self._is_over and self._num_received < self._state.num_units:
            head = torch.zeros(_HEAD, dtype=torch.int64)
            self._take(group, head)
            unit, step, size = head.tolist()
            words = torch.empty(size, dtype=torch.uint8)
            self._take(group, words)
            text = words.numpy().tobytes().decode()
            tensors = space(text)
            for tensor in tensors:
                self._take(group, tensor)
            with self._changed:
                if not self._is_over:
                    self._received.append(Received(unit, step, text, tensors))
                    self._num_received += 1
                    self._changed.notify_all()

    def _take(self, group: Group, tensor: Tensor) -> None:
        group.start_broadcast(tensor, self._donor).wait()
