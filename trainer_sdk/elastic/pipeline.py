"""Activations and their gradients across stage borders: sends are asynchronous, receives wait interruptibly."""

from collections.abc import Mapping

import torch
from torch import Tensor

from layouts.layout import Layout
from trainer_sdk.elastic.clock import Clock, WaitKind
from trainer_sdk.elastic.topology import Border, borders_of
from trainer_sdk.groups.group import Group, Pending


class Pipeline:
    """One rank's stage borders in one epoch.

    Args:
        layout: Layout.
        rank: This rank.
        groups: The epoch's groups by name.
        clock: Told of waits.
        width: Model width.
        dtype: Of activations.
        device: Where they live.
    """

    def __init__(
        self,
        layout: Layout,
        rank: int,
        groups: Mapping[str, Group],
        clock: Clock,
        *,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._outgoing: dict[tuple[bool, int, int, int], list[Border]] = {}
        self._incoming: dict[tuple[bool, int, int, int], Border] = {}
        for border in borders_of(layout):
            if border.sender == rank:
                key = border.is_gradient, border.home, border.receiver_replica, border.stage
                self._outgoing.setdefault(key, []).append(border)
            elif border.receiver == rank:
                self._incoming[border.is_gradient, border.home, border.sender_replica, border.stage] = border
        self._groups = groups
        self._clock = clock
        self._width = width
        self._dtype = dtype
        self._device = device
        self._sends: list[tuple[Border, Pending]] = []

    def send(self, tensor: Tensor, *, is_gradient: bool, home: int, to: int, stage: int) -> None:
        """Start sending to every receiver of this rank; the tensor must not change before :meth:`flush`.

        Args:
            tensor: What to send.
            is_gradient: Direction.
            home: Replica that the micro-batch belongs to.
            to: Replica that runs its next stage, or the one before for a gradient.
            stage: Stage that sends.
        """
        kept = tensor.contiguous()
        for border in self._outgoing.get((is_gradient, home, to, stage - is_gradient), ()):
            pending = self._groups[border.group_name].start_broadcast(kept, border.sender)
            self._sends.append((border, pending))

    def receive(self, num_tokens: int, *, is_gradient: bool, home: int, sender: int, stage: int) -> Tensor:
        """Wait for the next tensor of a micro-batch with ``num_tokens`` tokens.

        Args:
            num_tokens: Rows of the tensor.
            is_gradient: Direction.
            home: Replica that the micro-batch belongs to.
            sender: Replica that runs its stage before, or the next one for a gradient.
            stage: Stage that receives.

        Raises:
            Interrupted: The rank should park.
            PeerLost: The sender is gone.
        """
        border = self._incoming[is_gradient, home, sender, stage - (not is_gradient)]
        tensor = torch.empty((num_tokens, self._width), dtype=self._dtype, device=self._device)
        pending = self._groups[border.group_name].start_broadcast(tensor, border.sender)
        self._clock.wait(WaitKind.PIPELINE, (border.sender,), pending.wait)
        return tensor

    def flush(self) -> None:
        """Wait until all sends of the iteration have arrived.

        Raises:
            Interrupted: The rank should park.
            PeerLost: A receiver is gone.
        """
        for border, pending in self._sends:
            self._clock.wait(WaitKind.PIPELINE, (border.receiver,), pending.wait)
        self._sends.clear()

    def forget(self) -> None:
        """The iteration is given up: whatever is pending stays with its abandoned group."""
        self._sends.clear()
