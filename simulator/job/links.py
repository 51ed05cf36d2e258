"""Links between simulated ranks: how long transfers and collectives take, with noise, and with faults drawn in."""

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from evenkeel.simulator.job.noise import rank_noise

Floats = NDArray[np.float64]

OPERATION_SIGMA = 0.05
"""Robust width of the noise of one operation; its tails are Student's with 4 degrees."""

LINK_SIGMA = 0.02
"""Robust width of what all operations of a link have in common in one iteration."""

_QUICKEST = 0.9
"""Share of its usual time that the quickest operation takes: noise slows, and nothing outruns the hardware."""

_SPIKE_PROBABILITY = 0.01
_LARGEST_SPIKE = 3.0


class ChannelUse(StrEnum):
    """What goes through a channel, as seen by the rank that measures it."""

    ACTIVATION_SENT = "activation_sent"
    ACTIVATION_RECEIVED = "activation_received"
    GRADIENT_SENT = "gradient_sent"
    GRADIENT_RECEIVED = "gradient_received"
    COLLECTIVE = "collective"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLinks:
    """What truly happens: every link between two of ``ranks`` (all links of it, if it is one rank) is slow.

    Attributes:
        ranks: One rank is an endpoint, two are a link, more are a group.
        factor: Transfers take so much longer, 1 = healthy.
        onset: First iteration.
        stop: First iteration after it.
    """

    ranks: tuple[int, ...]
    factor: float
    onset: int
    stop: int

    def hits(self, first: int, second: int) -> bool:
        """Whether the link between two ranks is one of them."""
        if len(self.ranks) == 1:
            return self.ranks[0] in (first, second)
        return first in self.ranks and second in self.ranks


@dataclass(slots=True, kw_only=True)
class LinkConditions:
    """How transfers of one run differ from healthy ones.

    Attributes:
        rng: Source of the noise.
        num_iterations: Iterations of the run.
        bytes_per_token: Of an activation and of its gradient.
        exchange_bytes: Of each rank's gradients.
        faults: Slow links.
        common: Factor on every transfer of an iteration, ``[iterations]``; None = 1.
    """

    rng: np.random.Generator
    num_iterations: int
    bytes_per_token: int = 8192
    exchange_bytes: int = 1 << 28
    faults: tuple[SlowLinks, ...] = ()
    common: Floats | None = None
    _own: dict[tuple[int, ...], Floats] = field(default_factory=dict)

    def factors(self, ranks: tuple[int, ...]) -> Floats:
        """Factor on one operation of two or more ranks in every iteration, noise included, ``[iterations]``.

        A collective goes around a ring in the order of the ranks, so the slowest of its links decides.
        """
        links = [*pairwise(ranks)] + ([(ranks[-1], ranks[0])] if len(ranks) > 2 else [])
        slow = np.ones(self.num_iterations)
        for fault in self.faults:
            if any(fault.hits(*link) for link in links):
                part = slow[fault.onset : fault.stop]
                np.maximum(part, fault.factor, out=part)
        if ranks not in self._own:
            self._own[ranks] = rank_noise(self.rng, (self.num_iterations,), sigma=LINK_SIGMA)
        noise = np.maximum(rank_noise(self.rng, (self.num_iterations,), sigma=OPERATION_SIGMA), _QUICKEST)
        spikes = self.rng.random(self.num_iterations) < _SPIKE_PROBABILITY
        noise = np.where(spikes, noise * self.rng.uniform(1.0, _LARGEST_SPIKE, self.num_iterations), noise)
        common = 1.0 if self.common is None else self.common
        return np.asarray(slow * self._own[ranks] * noise * common)


@dataclass(slots=True, kw_only=True)
class ChannelTimes:
    """What one rank measured of its operations with others through one channel.

    Attributes:
        rank: Who measured.
        use: What went through.
        party: The neighbour's rank, or the group's number.
        num_members: Ranks that take part.
        num_bytes: Bytes of each operation in each iteration, one ``[iterations]`` an operation.
        entered: When the rank entered each operation, seconds since the iteration's start, likewise.
        took: From entering to the end; empty for a channel that sends.
    """

    rank: int
    use: ChannelUse
    party: int
    num_members: int = 2
    num_bytes: list[Floats] = field(default_factory=list)
    entered: list[Floats] = field(default_factory=list)
    took: list[Floats] = field(default_factory=list)


class TrafficRecorder:
    """Collects what the ranks of a run measure of their operations, channel by channel."""

    def __init__(self) -> None:
        self._channels: dict[tuple[int, ChannelUse, int], ChannelTimes] = {}

    @property
    def channels(self) -> tuple[ChannelTimes, ...]:
        """All channels, by rank."""
        return tuple(self._channels[key] for key in sorted(self._channels))

    def note(
        self,
        rank: int,
        use: ChannelUse,
        party: int,
        *,
        num_bytes: Floats,
        entered: Floats,
        took: Floats | None = None,
        num_members: int = 2,
    ) -> None:
        """One operation of all iterations."""
        channel = self._channels.setdefault(
            (rank, use, party), ChannelTimes(rank=rank, use=use, party=party, num_members=num_members)
        )
        channel.num_bytes.append(num_bytes)
        channel.entered.append(entered)
        if took is not None:
            channel.took.append(took)
