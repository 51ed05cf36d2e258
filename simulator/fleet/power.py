"""What more power than designed buys: the speed of a device whose domain is boosted.

Source of the figures: NTP-PW (arXiv 2504.06095): up to 1.3 x the design power in a rack that lost devices; 1.1 x costs
2.8 % of the performance per watt, 1.2 x 6.5 %. Between and beyond the two points a quadratic through them and (1, 0):
11.1 % at 1.3 x, so 1.156 x the speed. That last figure is extrapolated.
"""

from dataclasses import dataclass

_STEPS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerBoost:
    """How far the power of a domain may be raised, and what that costs.

    Attributes:
        limit: Most power of a domain, 1 = as designed.
        linear_loss: Part of the performance per watt that is lost, for each 100 % of power beyond the design.
        quadratic_loss: The same, for its square.

    Raises:
        ValueError: The limit is below 1, or more power would make a device slower.
    """

    limit: float = 1.3
    linear_loss: float = 0.235
    quadratic_loss: float = 0.45

    def __post_init__(self) -> None:
        if not self.limit >= 1.0 or self.linear_loss < 0.0 or self.quadratic_loss < 0.0:
            raise ValueError(f"limit is {self.limit:g}: give 1 or more, and losses of 0 or more")
        extra = self.limit - 1.0
        slope = 1.0 - self._loss(extra) - self.limit * (self.linear_loss + 2.0 * self.quadratic_loss * extra)
        if slope < 0.0:
            raise ValueError(f"at {self.limit:g} x the power a device would be slower than with less: lower the limit")

    def _loss(self, extra: float) -> float:
        return self.linear_loss * extra + self.quadratic_loss * extra * extra

    def speed(self, power: float) -> float:
        """Speed at a power, both 1 as designed.

        Raises:
            ValueError: The power is below 1 or above the limit.
        """
        if not 1.0 <= power <= self.limit + 1e-9:
            raise ValueError(f"power {power:g} is not within 1 to {self.limit:g}")
        return power * (1.0 - self._loss(power - 1.0))

    @property
    def most_speed(self) -> float:
        """Speed at the limit."""
        return self.speed(self.limit)

    def power(self, speed: float) -> float:
        """The least power with which a device has this speed; the limit where it takes more."""
        low, high = 1.0, self.limit
        for _ in range(_STEPS):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if self.speed(middle) >= speed else (middle, high)
        return high
