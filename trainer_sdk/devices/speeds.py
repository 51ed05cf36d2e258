"""Each device's speed, whether it hangs, how slow its input is.

It exists for emulated devices only: the launcher creates it, fault injection writes it, devices read it at once.
"""

from evenkeel.trainer_sdk.devices.rank_table import RankTable


class SpeedTable(RankTable):
    """Speed, hang flag and input delay per rank, shared between processes through a file."""

    WHAT = "speed table"
    PER_RANK = 3  # speed, where 0, which a new table is full of, is healthy; hangs (0 or 1); input seconds

    def speed(self, rank: int) -> float:
        """Speed of the rank's device, 1.0 = healthy."""
        return self._values[self._first_value(rank)] or 1.0

    def set_speed(self, rank: int, speed: float) -> None:
        """Set the speed, which is above 0; ranks see it at their next compute segment.

        Raises:
            ValueError: The rank is not in the table.
        """
        self._values[self._first_value(rank)] = speed

    def hangs(self, rank: int) -> bool:
        """Whether the rank's device accepts work and never finishes it."""
        return self._values[self._first_value(rank) + 1] != 0.0

    def set_hangs(self, rank: int, hangs: bool) -> None:
        """Let the rank's device hang, or go on.

        Raises:
            ValueError: The rank is not in the table.
        """
        self._values[self._first_value(rank) + 1] = 1.0 if hangs else 0.0

    def input_seconds(self, rank: int) -> float:
        """How long a read of the rank's input takes at least; 0 = only what it really takes."""
        return self._values[self._first_value(rank) + 2]

    def set_input_seconds(self, rank: int, seconds: float) -> None:
        """Let each read of the rank's input take at least so long; 0 makes it healthy.

        Raises:
            ValueError: The rank is not in the table.
        """
        self._values[self._first_value(rank) + 2] = seconds

    def _first_value(self, rank: int) -> int:
        if not 0 <= rank < self.num_ranks:
            raise ValueError(f"rank {rank} is not in 0..{self.num_ranks - 1}")
        return self.PER_RANK * rank
