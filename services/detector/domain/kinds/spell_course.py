"""How a device came and went: the spells in which it was slow, and what follows from them."""

from dataclasses import dataclass, field
from itertools import pairwise

from evenkeel.services.detector.domain.findings.verdict import Verdict

_LONGEST_CYCLE = 80
_SHORT_CYCLE = 24
_QUIET_CYCLES = 3
_SHORTEST_QUIET = 24
_KEPT = 16
_OUTLASTING, _SHORTEST_LASTING = 2.0, 12.0


@dataclass(slots=True, eq=False)
class SpellCourse:
    """Of one process on one device.

    Attributes:
        incarnation: The process.
        spells: [first slow iteration, first healthy one or -1, throughput while slow] each, oldest first.
        intermittent: The device comes and goes.
        published: Throughput that was told last.
        newest: The newest verdict that it is slow.
        held: The verdict of its recovery, while that is held back.
    """

    incarnation: int
    spells: list[list[float]] = field(default_factory=list)
    intermittent: bool = False
    published: float = 1.0
    newest: Verdict | None = None
    held: Verdict | None = None

    @property
    def is_over(self) -> bool:
        """The newest spell, if there was one, has ended."""
        return not self.spells or self.spells[-1][1] >= 0

    @property
    def cycle(self) -> float:
        """Longest time from one onset to the next."""
        onsets = [spell[0] for spell in self.spells]
        return max((later - earlier for earlier, later in pairwise(onsets)), default=0.0)

    def comes_and_goes(self) -> bool:
        """So many onsets so close together that the next is to be expected."""
        onsets = [spell[0] for spell in self.spells]
        if len(onsets) >= 2 and onsets[-1] - onsets[-2] <= _SHORT_CYCLE:
            return True
        return len(onsets) >= 3 and onsets[-1] - onsets[-3] <= 2 * _LONGEST_CYCLE

    def outlasts(self, iteration: int) -> bool:
        """The newest spell goes on, much longer than any before: the device does not come and go now."""
        if self.is_over:
            return False
        longest = max((stop - start for start, stop, _ in self.spells[:-1]), default=0.0)
        return iteration + 1 - self.spells[-1][0] >= max(_OUTLASTING * longest, _SHORTEST_LASTING)

    def is_forgotten(self, iteration: int) -> bool:
        """What comes after so long is an illness of its own."""
        return not self.spells or iteration - self.spells[-1][0] > 2 * _LONGEST_CYCLE

    @property
    def quiet_iterations(self) -> float:
        """Iterations that the device must stay healthy before it is believed to be."""
        return max(_SHORTEST_QUIET, _QUIET_CYCLES * self.cycle)

    def begin(self, iteration: int, throughput: float) -> None:
        """The next spell begins; a recovery that was held back was none."""
        self.spells = [*self.spells[1 - _KEPT :], [float(iteration), -1.0, throughput]]
        self.held = None

    def duty(self, iteration: int) -> tuple[float, float]:
        """Share of the iterations since the first onset that were slow, and throughput by mean time."""
        slow = cost = 0.0
        for start, stop, throughput in self.spells:
            length = (stop if stop >= 0 else iteration + 1) - start
            slow += length
            cost += length / max(throughput, 0.01)
        total = max(iteration + 1 - self.spells[0][0], 1.0)
        return slow / total, total / (cost + total - slow)
