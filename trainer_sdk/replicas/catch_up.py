"""A newcomer gets the state while the others train: unit by unit, from one of them, in no hurry.

Parameters and moments do not change between a step's beginning and its vote, so that is when a donor sends them, as
they are. The newcomer is in every exchange with gradients of zero, hears all reduced gradients, and steps what it
holds already. Each vote says how many units were sent before it: those a newcomer must have when it steps.
"""

import threading
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from evenkeel.trainer_sdk.groups.building.side_group import SideGroup
from evenkeel.trainer_sdk.groups.errors import Interrupted, PeerLost
from evenkeel.trainer_sdk.groups.group import Group
from evenkeel.trainer_sdk.replicas.epochs import Epochs
from evenkeel.trainer_sdk.replicas.shares import Standing
from evenkeel.trainer_sdk.replicas.state import TrainingState

_POLL_SECONDS = 0.002
_LOOK_SECONDS = 0.02
_HEAD = 3  # unit, step, bytes of the text

Received = tuple[int, int, str, list[Tensor]]
"""A unit, the step that its values are from before, its text and its tensors."""


class CatchUp:
    """A rank's part in all catching up of an epoch. Training thread.

    Args:
        state: This rank's state.
        epochs: Whom it trains with.
        device: Where tensors live.
    """

    def __init__(self, state: TrainingState, epochs: Epochs, device: torch.device) -> None:
        self._state = state
        self._epochs = epochs
        self._device = device
        self._donors: dict[int, Donor] = {}  # by the newcomer's replica
        self._newcomer: Newcomer | None = None
        self._received: list[Received] = []

    @property
    def num_units(self) -> int:
        """Units that this rank holds, or has received whole."""
        return self._state.num_held + len(self._received)

    def connect(self, standings: Sequence[Standing], complete: Sequence[int]) -> None:
        """A new epoch: each newcomer gets a donor, who sends it what it does not have yet."""
        place = self._epochs.place
        newcomers = {each.replica: each for each in standings if each.index == place.index}
        for number, replica in enumerate(sorted(set(newcomers).difference(complete))):
            giver = complete[number % len(complete)]
            if place.replica not in (giver, replica):
                continue
            side, rank = self._epochs.side(giver, replica), giver * place.size + place.index
            if place.replica == giver:
                first = newcomers[replica].num_units if newcomers[replica].synced else 0
                self._donors[replica] = Donor(side, rank, self._state, first, self._epochs.check)
            else:
                self._newcomer = Newcomer(side, rank, self._state, self._device, self._received)
                self._received = []

    def begin(self, step: int) -> None:
        """Parameters stay as they are until :meth:`pause`."""
        for donor in self._donors.values():
            donor.begin(step)

    def pause(self) -> dict[int, int]:
        """Parameters may change when this returns: what was sent, by the newcomer's replica.

        Raises:
            Interrupted: The epoch is over.
        """
        return {replica: donor.pause() for replica, donor in self._donors.items()}

    def install(self, step: int, num_sent: int | None) -> bool:
        """In a newcomer, see :meth:`Newcomer.install`; whether its replica holds the whole state now."""
        if self._newcomer is not None:
            self._newcomer.install(step, num_sent)
        else:
            self._received = install(self._state, self._received, step)
        return self._epochs.all_mates(self._state.num_held == self._state.num_units)

    def give_up(self) -> None:
        """The epoch is over. Returns at once."""
        for donor in self._donors.values():
            donor.give_up()
        self._donors = {}
        if self._newcomer is not None:
            self._received = self._newcomer.give_up()
            self._newcomer = None


def install(state: TrainingState, received: Sequence[Received], step: int) -> list[Received]:
    """Make units valid that were sent before the vote of a step; returns the rest."""
    for unit, sent_in, text, tensors in received:
        if sent_in <= step:
            state.install(unit, text, tensors)
    return [each for each in received if each[1] > step]


class Donor:
    """Sends the state to one newcomer, between :meth:`begin` and :meth:`pause` of each step.

    Args:
        side: The group of both.
        rank: This rank.
        state: What to send.
        first: The unit to begin with.
        check: Raises where the epoch is over.

    Attributes:
        num_sent: Units that the newcomer has been sent, those before ``first`` included.
    """

    def __init__(self, side: SideGroup, rank: int, state: TrainingState, first: int, check: Callable[[], None]) -> None:
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
        group = _await_group(self._side, lambda: self._is_over)
        try:
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
        except (Interrupted, PeerLost):  # the next epoch has another donor
            self._is_over = True

    def _send(self, group: Group, unit: int, step: int) -> None:
        text, tensors = self._state.pack(unit)
        words = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
        head = torch.tensor([unit, step, len(words)])
        device = tensors[0].device if tensors else head.device
        for tensor in (head.to(device), words.to(device), *tensors):
            group.start_broadcast(tensor, self._rank).wait()


class Newcomer:
    """Receives the state from a donor, and installs what a step may use.

    Args:
        side: The group of both.
        donor: The donor's rank.
        state: What to receive into.
        device: Where tensors live.
        received: What an earlier donor has sent and is not installed.
    """

    def __init__(
        self, side: SideGroup, donor: int, state: TrainingState, device: torch.device, received: Sequence[Received]
    ) -> None:
        self._side = side
        self._donor = donor
        self._state = state
        self._device = device
        self._changed = threading.Condition()
        self._received = list(received)
        self._num_received = state.num_held + len(self._received)
        self._is_over = False
        threading.Thread(target=self._run, name="evenkeel-newcomer", daemon=True).start()

    def install(self, step: int, num_sent: int | None) -> None:
        """Make everything valid that was sent before the vote of a step; returns when it is there.

        Args:
            step: The step whose vote has passed, and whose gradients have not been used.
            num_sent: How many units that is; None when it is not known, and what is there has to do.
        """
        with self._changed:
            while num_sent is not None and self._num_received < num_sent and not self._is_over:
                self._changed.wait(_LOOK_SECONDS)
            self._received = install(self._state, self._received, step)

    def give_up(self) -> list[Received]:
        """The epoch is over; returns at once, with what has arrived whole."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
            received, self._received = self._received, []
        self._side.give_up()
        return received

    def _run(self) -> None:
        group = _await_group(self._side, lambda: self._is_over)
        try:
            while group is not None and not self._is_over and self._num_received < self._state.num_units:
                head = torch.zeros(_HEAD, dtype=torch.int64, device=self._device)
                self._take(group, head)
                unit, step, size = head.tolist()
                words = torch.empty(size, dtype=torch.uint8, device=self._device)
                self._take(group, words)
                text = words.cpu().numpy().tobytes().decode()
                tensors = self._state.space(unit, text)
                for tensor in tensors:
                    self._take(group, tensor)
                with self._changed:
                    if not self._is_over:
                        self._received.append((unit, step, text, tensors))
                        self._num_received += 1
                        self._changed.notify_all()
        except (Interrupted, PeerLost):
            pass
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _take(self, group: Group, tensor: Tensor) -> None:
        group.start_broadcast(tensor, self._donor).wait()


def _await_group(side: SideGroup, is_over: Callable[[], bool]) -> Group | None:
    while side.group is None and not side.error and not is_over():
        time.sleep(_POLL_SECONDS)
    return side.group
