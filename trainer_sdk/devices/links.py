"""Links between ranks: real ones need nothing, emulated ones hold back what arrived until it would have arrived."""

import math
import time
from collections.abc import Callable
from itertools import pairwise

from evenkeel.trainer_sdk.devices.rank_table import RankTable

_SLICE_SECONDS = 0.02


class Links:
    """What stands between ranks, used by the training thread only: these are real, and take what they take."""

    def hold(self, ranks: tuple[int, ...], num_bytes: int, check: Callable[[], None]) -> None:
        """An operation of these ranks has just ended here: return when it would have on the links it stands for.

        Args:
            ranks: Who took part: two for a transfer, more for a reduction.
            num_bytes: Bytes of the operation.
            check: Called while it is held for long; may raise to end the wait.
        """


class LinkTable(RankTable):
    """How many times slower than healthy the link between each two ranks is, shared between processes through a file.

    It exists for emulated links only: the launcher creates it, fault injection writes it, ranks read it. Writes take
    effect at once. A factor of 0, which a new table is full of, means healthy.
    """

    WHAT = "link table"

    def factor(self, first: int, second: int) -> float:
        """How many times as long as healthy a transfer between two ranks takes, either way."""
        return self._values[self._place(first, second)] or 1.0

    def set_factor(self, first: int, second: int, factor: float) -> None:
        """Set it; ranks see it at their next operation.

        Raises:
            ValueError: A rank is not in the table, or they are the same.
        """
        self._values[self._place(first, second)] = factor

    @classmethod
    def _num_values(cls, num_ranks: int) -> int:
        return num_ranks**2

    @classmethod
    def _num_ranks(cls, num_values: int) -> int:
        return math.isqrt(num_values)

    def _place(self, first: int, second: int) -> int:
        low, high = min(first, second), max(first, second)
        if low < 0 or high >= self.num_ranks:
            raise ValueError(f"ranks {first} and {second}: the job has 0 to {self.num_ranks - 1}")
        if low == high:
            raise ValueError(f"rank {first} has no link to itself: name two ranks")
        return low * self.num_ranks + high


class EmulatedLinks(Links):
    """Links of a stated speed: an operation ends that much after its data is there.

    What this machine needs for it comes on top, so figures are those of the emulated link plus a real copy. A reduction
    goes around a ring: its slowest link decides.

    Args:
        bytes_per_second: Speed of a healthy link.
        latency_seconds: Of each operation, whatever its size.
        factor: How many times slower than healthy the link between two ranks is; read at each operation.
        clock: Monotonic seconds.
        sleep: Blocks for so many seconds.

    Raises:
        ValueError: The speed is not above 0, or the latency is below 0.
    """

    def __init__(
        self,
        *,
        bytes_per_second: float,
        latency_seconds: float = 0.0,
        factor: Callable[[int, int], float] = lambda first, second: 1.0,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not bytes_per_second > 0 or latency_seconds < 0:
            raise ValueError(
                f"a link of {bytes_per_second} bytes per second and {latency_seconds} s latency: "
                "the first must be above 0, the second 0 or more"
            )
        self._bytes_per_second = bytes_per_second
        self._latency_seconds = latency_seconds
        self._factor = factor
        self._clock = clock
        self._sleep = sleep

    def seconds(self, ranks: tuple[int, ...], num_bytes: int) -> float:
        """How long an operation of these ranks lasts."""
        count = len(ranks)
        slowest = max(self._factor(first, second) for first, second in pairwise(ranks))
        steps, passes = 1, 1.0
        if count > 2:
            slowest = max(slowest, self._factor(ranks[-1], ranks[0]))
            steps, passes = 2 * (count - 1), 2.0 * (count - 1) / count
        return slowest * (steps * self._latency_seconds + passes * num_bytes / self._bytes_per_second)

    def hold(self, ranks: tuple[int, ...], num_bytes: int, check: Callable[[], None]) -> None:
        """Wait as long as the operation lasts on these links."""
        until = self._clock() + self.seconds(ranks, num_bytes)
        while (left := until - self._clock()) > 0:
            self._sleep(min(left, _SLICE_SECONDS))
            check()
