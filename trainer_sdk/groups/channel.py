"""What one rank measures of the operations of one group: when it entered each, and how long it was in it.

Two stamps an operation on the training thread, kept in plain lists; everything else is somebody else's work.
"""

import time
from collections.abc import Callable

from evenkeel.trainer_sdk.devices.links import Links
from evenkeel.trainer_sdk.emit.measured import Stamps


class Channel:
    """One group in one use. Training thread only.

    Args:
        kind: Number of the ``ChannelKind`` on the wire.
        party: The neighbour's rank, or the group's number.
        ranks: Who takes part, in the order of the group.
        sends: This rank sends: the end of an operation is not seen here.
        links: Hold back what arrives, where they are emulated.
        check: Given to them.
    """

    __slots__ = ("_check", "_entered", "_kind", "_links", "_num_bytes", "_party", "_ranks", "_took", "sends")

    def __init__(
        self,
        *,
        kind: int,
        party: int,
        ranks: tuple[int, ...],
        sends: bool,
        links: Links,
        check: Callable[[], None],
    ) -> None:
        self.sends = sends
        self._kind = kind
        self._party = party
        self._ranks = ranks
        self._links = links
        self._check = check
        self._entered: list[float] = []
        self._took: list[float] = []
        self._num_bytes: list[int] = []

    def sent(self, entered_seconds: float, num_bytes: int) -> None:
        """This rank entered an operation in which it sends, at that moment of ``perf_counter``."""
        self._entered.append(entered_seconds)
        self._num_bytes.append(num_bytes)

    def ended(self, entered_seconds: float, num_bytes: int) -> None:
        """An operation that this rank entered at that moment of ``perf_counter`` has ended."""
        self._links.hold(self._ranks, num_bytes, self._check)
        self._entered.append(entered_seconds)
        self._took.append(time.perf_counter() - entered_seconds)
        self._num_bytes.append(num_bytes)

    def take(self) -> Stamps:
        """Everything since the last take, and begin anew."""
        stamps = Stamps(self._kind, self._party, len(self._ranks), self._entered, self._took, self._num_bytes)
        self._entered, self._took, self._num_bytes = [], [], []
        return stamps
