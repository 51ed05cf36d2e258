"""Who holds the whole state sends it to one newcomer."""

import threading
from collections.abc import Callable

import torch

from evenkeel.trainer_sdk.groups.building.building import Building
from evenkeel.trainer_sdk.groups.errors import WaitBroken
from evenkeel.trainer_sdk.groups.group import Group
from evenkeel.trainer_sdk.replicas.state.training_state import TrainingState

_LOOK_SECONDS = 0.02

CANNOT_SEND = -1
"""In place of the number of units: the state cannot be sent, and the newcomer will never have it."""


class Donor:
    """Sends the state to one newcomer, between :meth:`begin` and :meth:`pause` of each step.

    Args:
        side: The group of both.
        rank: This rank.
        state: What to send.
        first: The unit to begin with.
        check: Raises where the epoch is over.

    Attributes:
        num_sent: Units that the newcomer has been sent, those before ``first`` included, or ``CANNOT_SEND``.
    """

    def __init__(self, side: Building, rank: int, state: TrainingState, first: int, check: Callable[[], None]) -> None:
        self.num_sent = first
        self._side = side
        self._rank = rank
        self._state = state
        self._check = check
        self._changed = threading.Condition()
        self._step: int | None = None  # None = parameters may change
        self._is_sending = False
        self._is_over = False
        threading.Thread(target=self._run, name="evenkeel-donor", daemon=True).start()

    def begin(self, step: int) -> None:
        """Parameters stay as they are until :meth:`pause`: send."""
        with self._changed:
            self._step = step
            self._changed.notify_all()

    def pause(self) -> int:
        """Parameters may change when this returns, after the unit that is on its way: how many were sent.

        Raises:
            Interrupted: The epoch is over.
        """
        with self._changed:
            self._step = None
            while self._is_sending and not self._is_over:
                self._check()
                self._changed.wait(_LOOK_SECONDS)
            return self.num_sent

    def give_up(self) -> None:
        """The epoch is over, or the newcomer has everything. Returns at once."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._side.give_up()

    def _run(self) -> None:
        group = self._side.wait()
        try:
            self._send_all(group)
        except WaitBroken:  # the next epoch has another donor
            self._is_over = True
        except BaseException:  # ends the thread, which prints it; the vote tells the newcomer
            self.num_sent = CANNOT_SEND
            raise

    def _send_all(self, group: Group | None) -> None:
        while group is not None and self.num_sent < self._state.num_units:
            with self._changed:
                while self._step is None and not self._is_over:
                    self._changed.wait()
                if self._is_over or self._step is None:
                    return
                self._is_sending, step = True, self._step
            try:
                self._send(group, self.num_sent, step)
                self.num_sent += 1
            finally:
                with self._changed:
                    self._is_sending = False
                    self._changed.notify_all()

    def _send(self, group: Group, unit: int, step: int) -> None:
        text, tensors = self._state.pack(unit)
        words = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        head = torch.tensor([unit, step, len(words)])
        for tensor in (head, words, *tensors):
            group.start_broadcast(tensor, self._rank).wait()
