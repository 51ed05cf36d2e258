"""The sequential test of one series, towards slower and towards faster, on plain numbers.

One-sided cumulative sums of log-likelihood ratios, with a budget for false alarms. Under the null an iteration is
Student-t around 0; under the alternatives it sits around a fixed small shift, or around a shift drawn afresh from a
log-uniform range (large ones), with 5 % of a Cauchy under it for what falls outside. Each ratio has mean 1 under the
null, so a sum that restarts at 0 crosses ``threshold`` less often than once in exp(threshold) iterations (Lorden 1971;
Page 1954). Ratios are discounted by the pauses among healthy iterations (:mod:`pauses`). Not thread-safe.
"""

import math

from evenkeel.offline.series.noise import Noise
from evenkeel.offline.series.pauses import Pauses

SMALL_SHIFTS = (0.045, 0.09)
"""Shifts, in log units of time, that small lasting slowdowns are tested for."""

NUM_TESTS = len(SMALL_SHIFTS) + 1
"""Alternatives that are tested against: the small shifts and the range of large ones."""

SMALLEST_LARGE_SHIFT, LARGEST_SHIFT = 0.06, 3.0
# What one iteration may add, of the way: two slow ones decide nothing.
_ONE_STEP_SHARE = 0.36
_CAUCHY = 0.05 / math.pi
_UNIFORM = 0.95


def threshold(iterations_per_false_alarm: float) -> float:
    """Height at which a sum decides, in nats; the operator's budget is shared among the tests."""
    return math.log(max(iterations_per_false_alarm, 10.0) * NUM_TESTS)


class SeriesEvidence:
    """Sums of evidence that a series is slower, or faster, than it was.

    Attributes:
        highest: The highest sum, nats.
    """

    def __init__(self) -> None:
        self.highest = 0.0
        self.expect(Noise(), Pauses())
        # Towards slower, then towards faster; one sum for each alternative, and the iterations in it.
        self._sums = [[0.0] * NUM_TESTS, [0.0] * NUM_TESTS]
        self._ages = [[0] * NUM_TESTS, [0] * NUM_TESTS]

    def expect(self, noise: Noise, pauses: Pauses) -> None:
        """Takes what healthy iterations are like from now on.

        Args:
            noise: Their noise.
            pauses: What pauses among them.
        """
        freedom, scale = noise.freedom, noise.scale
        self._half = (freedom + 1) / 2
        self._body = freedom * scale**2
        # Of the log density of the null, what does not depend on the residual.
        self._peak = math.lgamma(self._half) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
        self._peak += self._half * math.log(self._body) - math.log(scale)
        self._low = min(max(SMALLEST_LARGE_SHIFT, 3.0 * scale), 1.0)
        self._uniform = _UNIFORM / math.log(LARGEST_SHIFT / self._low)
        self._share, self._rest = math.log(pauses.share), math.log1p(-pauses.share)
        # Nearer to 0 than half of the smallest shift no alternative is likelier than the null.
        self._quiet = min(SMALL_SHIFTS) / 2
        if self._peak - self._half * math.log(self._body + self._quiet**2) < math.log(_CAUCHY):
            self._quiet = -1.0

    def advance(self, apart: float, *, slower: float, faster: float) -> bool:
        """Takes an iteration and says whether one of the sums decides.

        Args:
            apart: Its distance from the level that is established, log units of time.
            slower: Evidence that decides that the series is slower, nats.
            faster: The same for faster.
        """
        if self.highest == 0.0 and abs(apart) <= self._quiet:
            return False
        square = apart * apart
        null = self._half * math.log(self._body + square)
        tail = _CAUCHY / (1.0 + square)
        highest, decided = 0.0, False
        for side, (z, height) in enumerate(((apart, slower), (-apart, faster))):
            large = tail + self._uniform / z if self._low <= z <= LARGEST_SHIFT else tail
            ratios = [null - self._half * math.log(self._body + (z - shift) ** 2) for shift in SMALL_SHIFTS]
            ratios.append(math.log(large) - self._peak + null)
            best = self._add(side, ratios, _ONE_STEP_SHARE * height)
            decided |= best >= height
            highest = max(highest, best)
        self.highest = highest
        return decided

    def _add(self, side: int, ratios: list[float], most: float) -> float:
        """Adds the evidence of one iteration to the sums of a side; the highest of them."""
        sums, ages = self._sums[side], self._ages[side]
        for test, ratio in enumerate(ratios):
            # The logarithm of the mean of "no slowdown" and "one more pause".
            low = self._rest - ratio
            high = max(low, self._share)
            less = -(high + math.log1p(math.exp(min(low, self._share) - high)))
            total = sums[test] + min(less, most)
            sums[test], ages[test] = (total, ages[test] + 1) if total > 0 else (0.0, 0)
        return max(sums)

    @property
    def age_of_highest(self) -> int:
        """Iterations in the highest sum."""
        return max(zip(self._sums[0] + self._sums[1], self._ages[0] + self._ages[1], strict=True), key=_first)[1]

    def decisive(self) -> tuple[float, int]:
        """The highest sum, and over how many iterations its side has changed: large shifts are the best to say."""
        side = 0 if max(self._sums[0]) >= max(self._sums[1]) else 1
        sums, nats = self._sums[side], max(self._sums[side])
        test = NUM_TESTS - 1 if sums[-1] >= 0.5 * nats else sums.index(nats)
        return nats, self._ages[side][test]

    def clear(self) -> None:
        """Forgets the evidence."""
        self.highest = 0.0
        for sums, ages in zip(self._sums, self._ages, strict=True):
            sums[:], ages[:] = [0.0] * NUM_TESTS, [0] * NUM_TESTS


def _first(pair: tuple[float, int]) -> float:
    return pair[0]
