"""At which level does a device stand? Asked once a sequential test has decided that it is not where it was."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain import sequential_test
from evenkeel.services.detector.domain.bank_noise import unsuspected
from evenkeel.services.detector.domain.device_bank import DeviceBank
from evenkeel.services.detector.domain.device_offsets import absorb
from evenkeel.services.detector.domain.frame_centre import FrameCentre
from evenkeel.services.detector.domain.frame_terms import few_ranks, limits, offset_rests_on, youth
from evenkeel.services.detector.domain.level import (
    SMALLEST_SLOWDOWN,
    Change,
    could_be_below,
    locate_change,
    robust_level,
    throughput_at,
)
from evenkeel.services.detector.domain.noise import Noise
from evenkeel.services.detector.domain.residual.clocks import Clock
from evenkeel.services.detector.domain.wandering import Wandering

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

REPUBLISH_AT = 0.07
"""Change of throughput that is worth telling a planner about."""

SUSPECTED = 0.25
"""Of the way to a verdict: whoever has gone so far is not quite healthy."""

_REFINE_AFTER = (8, 24)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChange:
    """A device whose established throughput changed.

    Attributes:
        row: Its row in the bank.
        recovered: It was ill and is healthy again; otherwise it is slow.
        throughput: Throughput now.
        margin: Half-width of its 95 % interval.
        first_iteration: First iteration that showed it.
        nats: Log-likelihood ratio behind the decision.
        num_observations: Iterations the throughput rests on.
        scale: Scale of the device's noise, log units of time.
        ratios: Times healthy work that each of the thread's clocks adds up to, of those that are slow; none where the
            wall was judged.
    """

    row: int
    recovered: bool
    throughput: float
    margin: float
    first_iteration: int
    nats: float
    num_observations: int
    scale: float
    ratios: tuple[tuple[Clock, float], ...] = ()


class DeviceLevels:
    """Moves devices of a bank to the levels that their residuals show, after a frame's tests.

    Args:
        bank: The devices, with the frame's residuals and sums.
        centre: Of the frame.
        wandering: How their healthy noise hangs together.
        noise: Their noise.
        limit: Evidence that it takes to call a grown-up healthy device slow, nats.
    """

    __slots__ = ("_bank", "_centre", "_limit", "_noise", "_wandering")

    def __init__(
        self, bank: DeviceBank, centre: FrameCentre, wandering: Wandering, *, noise: Noise, limit: float
    ) -> None:
        self._bank, self._centre, self._wandering = bank, centre, wandering
        self._noise, self._limit = noise, limit

    def decide(self, rows: Ints, scales: Floats) -> list[HealthChange]:
        """Takes the rows whose sums have reached their heights, and returns whose throughput changed.

        Args:
            rows: Rows of the bank.
            scales: Scale of the noise of each.
        """
        found = [self._decided(row, scale) for row, scale in zip(rows.tolist(), scales.tolist(), strict=True)]
        return [change for change in found if change is not None]

    def _decided(self, row: int, scale: float) -> HealthChange | None:
        """Moves a device to the level its residuals now stand at; None where that is nobody's business."""
        bank = self._bank
        slower = bool(bank.sums_slower[row].max() >= bank.sums_faster[row].max())
        sums = bank.sums_slower[row] if slower else bank.sums_faster[row]
        ages = bank.ages_slower[row] if slower else bank.ages_faster[row]
        # The range of large shifts knows the start best: one healthy residual ends its sum.
        test = len(sums) - 1 if sums[-1] >= 0.5 * sums.max() else int(np.argmax(sums))
        nats, age = float(sums.max()), int(ages[test])
        columns = np.flatnonzero(np.isfinite(bank.residuals[row]))
        change = locate_change(
            bank.residuals[row, columns], before=float(bank.level[row]), scale=scale, age=min(age, len(columns))
        )
        start = int(columns[change.start])
        level = change.level
        was_ill, few = bool(bank.ill[row]), few_ranks(bank)
        if was_ill and not slower and level < bank.level[row]:
            since = bank.residuals[row, columns[change.start :]]
            if could_be_below(since, scale, SMALLEST_SLOWDOWN):
                level = 0.0
            elif not sequential_test.decides(
                since, scale, self._noise.freedom, limits(bank, np.array([row]), self._limit)
            ):
                return None  # Neither is certain yet: the tests stand, and the next iteration is asked again.
        # Of few, one that strayed to be faster and is believed would be slow when it is back.
        if not was_ill and (slower or few) and self._could_be_wandering(row, change, columns, slower=slower):
            # Evidence beyond what decides would only take longer to go, were it nothing.
            sums = bank.sums[:, 0 if slower else 1, row]
            np.minimum(sums, self._limit, out=sums)
            return None
        bank.clear_tests(np.array([row]))
        # What is smaller than one iteration's noise cannot be told from noise that wanders, unless that is well known.
        if level >= (SMALLEST_SLOWDOWN if few else max(SMALLEST_SLOWDOWN, scale)):
            if not was_ill:
                bank.num_relapses[row] += 1
                # What the other of two was ahead of this one says nothing of its own noise.
                bank.residuals[self._centre.other_than(row), start:] = np.nan
            bank.level[row] = level
            bank.ill[row] = True
            bank.num_since_change[row] = change.num_residuals
        else:
            if not was_ill:
                absorb(bank, row, level)
                return None
            bank.level[row] = 0.0
            bank.ill[row] = False
            bank.residuals[row, :start] = np.nan
            bank.num_since_change[row] = change.num_residuals
        throughput, margin = throughput_at(float(bank.level[row]), scale, change.num_residuals)
        if was_ill and bank.ill[row] and abs(throughput - bank.published[row]) < REPUBLISH_AT:
            return None
        bank.published[row] = throughput
        return HealthChange(
            row=row,
            recovered=not bank.ill[row],
            throughput=throughput,
            margin=margin,
            first_iteration=int(bank.iterations[start]),
            nats=nats,
            num_observations=change.num_residuals,
            scale=scale,
        )

    def _could_be_wandering(self, row: int, change: Change, columns: Ints, *, slower: bool) -> bool:
        """Do healthy devices of this job stray as far over as many iterations?"""
        bank, sign = self._bank, 1.0 if slower else -1.0
        return self._wandering.could_be(
            sign * change.level,
            sign * bank.residuals[row, columns[change.start :]],
            unsuspected(bank, self._limit, self._centre.pair)[bank.settled()],
            noise=self._noise,
            youth=float(youth(bank, np.array([row]))[0]),
            num_settled=offset_rests_on(bank, row),
            few=few_ranks(bank),
        )

    def refine(self, rows: Ints) -> list[HealthChange]:
        """The first estimate rests on few iterations: looks again when there are more, and none of another level.

        Args:
            rows: Ill ones that no test has decided about in this frame.
        """
        bank = self._bank
        steady = np.maximum.reduce(bank.sums[:, 1, rows]) <= SUSPECTED * self._limit
        due = steady & np.isin(bank.num_since_change[rows], _REFINE_AFTER)
        found = [self._refined(int(row)) for row in rows[due]]
        return [change for change in found if change is not None]

    def _refined(self, row: int) -> HealthChange | None:
        bank = self._bank
        columns = np.flatnonzero(np.isfinite(bank.residuals[row]))[-int(bank.num_since_change[row]) :]
        if not len(columns):
            return None
        level = robust_level(bank.residuals[row, columns])
        if level < SMALLEST_SLOWDOWN:
            return None
        bank.level[row] = level
        scale = float(bank.scale[row])
        throughput, margin = throughput_at(level, scale, len(columns))
        if abs(throughput - bank.published[row]) < REPUBLISH_AT:
            return None
        bank.published[row] = throughput
        return HealthChange(
            row=row,
            recovered=False,
            throughput=throughput,
            margin=margin,
            first_iteration=int(bank.iterations[columns[0]]),
            nats=self._limit,
            num_observations=len(columns),
            scale=scale,
        )
