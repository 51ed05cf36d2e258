"""What a frame says of operations between ranks: all ranks' channels and stamps as flat arrays."""

import hashlib
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from evenkeel.numeric.arrays import Floats, Ints


class ChannelKind(IntEnum):
    """What goes through a channel; the numbers are those of the wire."""

    ACTIVATION_SENT = 1
    ACTIVATION_RECEIVED = 2
    GRADIENT_SENT = 3
    GRADIENT_RECEIVED = 4
    COLLECTIVE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficObservation:
    """Channels in the order of the frame's entries, and the stamps of all channels one after the other.

    Attributes:
        started_at_unix_seconds: Start of the iteration on each entry's own clock.
        owners: Entry of each channel.
        kinds: See ``ChannelKind``; others are left alone.
        parties: The neighbour's rank, or the group's number.
        num_members: Ranks that take part.
        num_operations: Operations of the iteration.
        num_stamped: How many of them have stamps.
        entered_seconds: Of each stamped operation that is no collective, since the start.
        took_seconds: Of each stamped operation that does not send, from entering to the end.
        num_bytes: Of each operation in ``took_seconds``.
    """

    started_at_unix_seconds: Floats
    owners: Ints
    kinds: Ints
    parties: Ints
    num_members: Ints
    num_operations: Ints
    num_stamped: Ints
    entered_seconds: Floats
    took_seconds: Floats
    num_bytes: Floats

    def structure(self, ranks: Ints) -> bytes:
        """A digest that two frames have in common when the same channels carried the same numbers of operations.

        Args:
            ranks: Rank of each entry of the frame.
        """
        digest = hashlib.blake2b(ranks.tobytes(), digest_size=16)
        for column in (self.owners, self.kinds, self.parties, self.num_members, self.num_operations, self.num_stamped):
            digest.update(column.tobytes())
        return digest.digest()


def stamps_entered(kinds: Ints, num_stamped: Ints) -> Ints:
    """How many entry stamps each channel has."""
    return np.where(kinds == ChannelKind.COLLECTIVE, 0, num_stamped)


def stamps_took(kinds: Ints, num_stamped: Ints) -> Ints:
    """How many durations each channel has."""
    sends = (kinds == ChannelKind.ACTIVATION_SENT) | (kinds == ChannelKind.GRADIENT_SENT)
    return np.where(sends, 0, num_stamped)
