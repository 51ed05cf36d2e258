"""Activations and their gradients across stage borders: sends are asynchronous, receives wait interruptibly.

A tensor only travels when its receiver has asked for it. A stage that asks when it needs the tensor waits for every
transfer, also for those whose sender is long done; so each border is asked for its next tensor as soon as the one
before is there, and transfers hide behind what the stage computes meanwhile (as with overlapped point-to-point in
Megatron-LM, arXiv 2104.04473). On an accelerator, whose groups may have to take turns, all ranks ask in one order
(:mod:`evenkeel.trainer_sdk.elastic.program.transfer_order`).
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from evenkeel.layouts.layout import Layout
from evenkeel.trainer_sdk.elastic.measure.wait_kind import WaitKind
from evenkeel.trainer_sdk.elastic.program.topology import Border, borders_of
from evenkeel.trainer_sdk.emit.phases import Phases
from evenkeel.trainer_sdk.groups.group import Group, Pending


class Crossing(NamedTuple):
    """A tensor on its way over a border, as either end sees it.

    Attributes:
        is_gradient: Direction: back to the stage before.
        home: Replica that the micro-batch belongs to.
        other: Replica that runs the stage on the other side.
        border: The stage before the border.
        num_tokens: Rows of the tensor.
        place: In the order of the iteration's transfers; only looked at on an accelerator.
    """

    is_gradient: bool
    home: int
    other: int
    border: int
    num_tokens: int
    place: int = 0


_KEY = 4  # what tells a border from others


class Pipeline:
    """One rank's stage borders in one epoch.

    Args:
        layout: Layout.
        rank: This rank.
        groups: The epoch's groups by name.
        phases: Told of waits.
        width: Model width.
        dtype: Of activations.
        device: Where they live.

    Attributes:
        takes_turns: The borders' groups are an accelerator's: tensors are asked for and sent in one order of all.
    """

    def __init__(
        self,
        layout: Layout,
        rank: int,
        groups: Mapping[str, Group],
        phases: Phases,
        *,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._outgoing: dict[tuple[object, ...], list[Border]] = {}
        self._incoming: dict[tuple[object, ...], Border] = {}
        for border in borders_of(layout):
            if border.sender == rank:
                key = border.is_gradient, border.home, border.receiver_replica, border.stage
                self._outgoing.setdefault(key, []).append(border)
            elif border.receiver == rank:
                self._incoming[border.is_gradient, border.home, border.sender_replica, border.stage] = border
        mine = [*self._incoming.values(), *(border for of in self._outgoing.values() for border in of)]
        self.takes_turns = any(not groups[border.group_name].on_cpu for border in mine)
        self._groups = groups
        self._phases = phases
        self._width = width
        self._dtype = dtype
        self._device = device
        self._sends: list[tuple[Border, Pending]] = []
        self._coming: dict[Border, deque[int]] = {}
        self._ordered: deque[Crossing] = deque()
        self._asked: dict[Border, deque[tuple[Tensor, Pending]]] = {}

    def send(self, tensor: Tensor, crossing: Crossing) -> None:
        """Start sending to every receiver of this rank; the tensor must not change before :meth:`flush`."""
        self._ask_up_to(crossing.place)
        kept = tensor.contiguous()
        for border in self._outgoing.get(crossing[:_KEY], ()):
            pending = self._groups[border.group_name].start_broadcast(kept, border.sender)
            self._sends.append((border, pending))

    def expect(self, arrivals: Iterable[Crossing]) -> None:
        """An iteration begins: ask every border for its first tensor.

        Groups that are measured are left alone, since what their stamps tell is how long a receiver is in a transfer.
        On an accelerator nothing is asked for yet.

        Args:
            arrivals: All that will be received, those of each border in the order in which they come.
        """
        self.forget()
        if self.takes_turns:
            self._ordered.extend(sorted(arrivals, key=lambda arrival: arrival.place))
            return
        for arrival in arrivals:
            border = self._border(arrival)
            if self._groups[border.group_name].channel is None:
                self._coming.setdefault(border, deque()).append(arrival.num_tokens)
        for border in self._coming:
            self._ask_ahead(border)

    def receive(self, arrival: Crossing) -> Tensor:
        """Wait for the next tensor of its border.

        Raises:
            WaitBroken: The rank should park.
        """
        border = self._border(arrival)
        self._ask_up_to(arrival.place)
        asked = self._asked.get(border)
        if not asked:
            asked = self._ask(border, arrival.num_tokens)
        tensor, pending = asked.popleft()
        assert len(tensor) == arrival.num_tokens, f"{arrival} came when {len(tensor)} tokens were expected"
        self._phases.waits(WaitKind.PIPELINE, (border.sender,), pending.wait)
        self._ask_ahead(border)
        return tensor

    def _border(self, arrival: Crossing) -> Border:
        return self._incoming[arrival[:_KEY]]

    def _ask(self, border: Border, num_tokens: int) -> deque[tuple[Tensor, Pending]]:
        """Ask for a tensor; returns all that the border was asked for and that nobody has taken yet."""
        tensor = torch.empty((num_tokens, self._width), dtype=self._dtype, device=self._device)
        asked = self._asked.setdefault(border, deque())
        asked.append((tensor, self._groups[border.group_name].start_broadcast(tensor, border.sender)))
        return asked

    def _ask_ahead(self, border: Border) -> None:
        coming = self._coming.get(border)
        if coming:
            self._ask(border, coming.popleft())

    def _ask_up_to(self, place: int) -> None:
        """Ask for everything that comes no later than a transfer in the order of the iteration."""
        while self._ordered and self._ordered[0].place <= place:
            arrival = self._ordered.popleft()
            self._ask(self._border(arrival), arrival.num_tokens)

    def flush(self) -> None:
        """Wait until all sends of the iteration have arrived.

        Raises:
            WaitBroken: The rank should park.
        """
        for border, pending in self._sends:
            self._phases.waits(WaitKind.PIPELINE, (border.receiver,), pending.wait)
        self._sends.clear()

    def forget(self) -> None:
        """The iteration is given up: whatever is pending stays with its abandoned group."""
        self._sends.clear()
        self._coming.clear()
        self._ordered.clear()
        self._asked.clear()
