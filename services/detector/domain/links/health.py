"""Do transfers over a link or in a group take longer than they did? Judged against their own past and their class.

A residual is the log of measured over expected seconds, less what its row has always been off the average of its class,
less what the whole class has in common in this iteration (so a busy fabric accuses nobody). Tests and noise are those
of the devices (:mod:`sequential_test`, :mod:`noise`), noise class by class: one exchange an iteration varies more than
the middle of many transfers. Links vary more than devices, so the smallest slowdown is larger.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain import sequential_test
from evenkeel.services.detector.domain.level import INTERVAL_SCALES, could_be_below, locate_change, robust_level
from evenkeel.services.detector.domain.links.bank import WINDOW, LinkBank
from evenkeel.services.detector.domain.links.complaint import LinkChange
from evenkeel.services.detector.domain.links.transfers.cost import NUM_CLASSES
from evenkeel.services.detector.domain.memory.state import GIVEN
from evenkeel.services.detector.domain.noise import Noise, estimate, row_scales

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SMALLEST_SLOWDOWN = 0.08
"""Levels below this, in log units of time, are not told."""

REFERENCE_OBSERVATIONS = 8
_LARGEST_OFFSET = 0.05
_PRIOR_SCALE = 0.05
_NOISE_EVERY = 8
_FEWEST_OF_A_CLASS = 3
# Residuals of a class that must be known before anything of it is tested: young noise is not known to be small.
_FEWEST_RESIDUALS = 48
# A burst of load lasts an iteration or two: it takes four at least, however slow, and more where that is not clear.
_ONE_STEP_SHARE = 0.3
_STRONG_SUSPICION = 0.2
_NATS_TO_RECOVER = 8.0
_NATS_PER_RELAPSE = 3.0
_FEWEST_TO_HEAL = 3
_YOUNG_OBSERVATIONS = 96
_NATS_FOR_YOUTH = 8.0
# A level must stand out from one iteration's noise by so many scales: what is smaller may be noise that wanders.
_SCALES_APART = 1.5
# How far off a row's reference may be, in standard errors, before it speaks against the row.
_REFERENCE_DOUBT = 1.5


@dataclass(slots=True, eq=False, kw_only=True)
class LinkHealth:
    """Judges all links and groups of one job, frame by frame.

    Args:
        iterations_per_false_alarm: Budget for all of them together.
    """

    iterations_per_false_alarm: float = field(metadata=GIVEN)
    bank: LinkBank = field(default_factory=LinkBank)
    noises: list[Noise] = field(default_factory=lambda: [Noise(scale=_PRIOR_SCALE)] * NUM_CLASSES)
    _known: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(NUM_CLASSES, dtype=np.bool_))
    _num_frames: int = 0

    def begin_epoch(self) -> None:
        """The layout changed, and with it how much goes over what: the healthy get a new reference."""
        bank = self.bank
        healthy = ~bank.ill
        bank.num_to_reference[healthy] = REFERENCE_OBSERVATIONS
        bank.clear_tests(np.arange(len(bank)))
        bank.residuals[healthy] = np.nan
        bank.since[healthy] = -1

    def observe(self, iteration: int, rows: Ints, log_ratios: Floats) -> list[LinkChange]:
        """Takes one frame and returns whose level changed.

        Args:
            iteration: The frame's iteration.
            rows: Rows measured, each at most once.
            log_ratios: Log of measured over expected seconds of each.
        """
        bank = self.bank
        if not len(rows):
            return []
        self._num_frames += 1
        bank.num_observed[rows] += 1
        waiting = bank.num_to_reference[rows] > 0
        base = log_ratios - np.where(waiting, 0.0, bank.reference[rows] + bank.offset[rows])
        settled = rows[~waiting]
        residuals = base[~waiting] - self._centres(settled, base[~waiting])
        base[~waiting] = residuals
        bank.push(iteration, rows, base)
        bank.num_to_reference[rows[waiting]] -= 1
        ready = rows[waiting & (bank.num_to_reference[rows] == 0)]
        if len(ready):
            bank.reference[ready] = np.nanmedian(bank.residuals[ready], axis=1)
            bank.offset[ready], bank.num_settled[ready] = 0.0, 0
            bank.residuals[ready] -= bank.reference[ready, None]
        if self._num_frames % _NOISE_EVERY == 0 or len(ready):
            self._estimate_noise()
        known = self._known[bank.class_of[settled]]
        changes = self._test(settled[known], residuals[known])
        self._follow(settled, residuals)
        return changes

    def calm(self, rows: Ints) -> npt.NDArray[np.bool_]:
        """True for rows that are healthy and under no suspicion: those to learn from."""
        limit = self._limit() / 4
        sums = np.maximum(self.bank.sums_slower[rows].max(axis=1), self.bank.sums_faster[rows].max(axis=1))
        return np.asarray(~self.bank.ill[rows] & (sums <= limit))

    def evidence(self) -> Floats:
        """Evidence against each row, as a part of what it takes to call a healthy one slow."""
        if not len(self.bank):
            return np.zeros(0)
        found: Floats = self.bank.sums_slower.max(axis=1) / self._limits(np.arange(len(self.bank)))
        return found

    def _limit(self) -> float:
        return sequential_test.threshold(
            iterations_per_false_alarm=self.iterations_per_false_alarm, num_ranks=len(self.bank)
        )

    def _limits(self, rows: Ints) -> Floats:
        youth: Floats = np.maximum(1.0 - self.bank.num_observed[rows] / _YOUNG_OBSERVATIONS, 0.0)
        limits: Floats = self._limit() + _NATS_FOR_YOUTH * youth
        return limits

    def _centres(self, rows: Ints, base: Floats) -> Floats:
        """What each row's class has in common: the lower median of its healthy rows, since faults only slow.

        Where a class has too few to tell, all rows stand in: what slows a whole node slows everything on it.
        """
        classes, healthy = self.bank.class_of[rows], ~self.bank.ill[rows]
        centres = np.full(len(rows), _centre(base[healthy]))
        for index in np.unique(classes).tolist():
            mine = classes == index
            if int((mine & healthy).sum()) >= _FEWEST_OF_A_CLASS:
                centres[mine] = _centre(base[mine & healthy])
        return centres

    def _estimate_noise(self) -> None:
        bank = self.bank
        # The slow rows have noise too, around their level; the newest residuals of the suspected may be no noise.
        window = np.where(bank.iterations[None, :] >= bank.since[:, None], bank.residuals - bank.level[:, None], np.nan)
        sums = np.concatenate([bank.sums_slower, bank.sums_faster], axis=1)
        ages = np.concatenate([bank.ages_slower, bank.ages_faster], axis=1)
        suspected = np.where(sums > _STRONG_SUSPICION * self._limit(), ages, 0).max(axis=1)
        window[np.arange(WINDOW - 1, -1, -1)[None, :] < suspected[:, None]] = np.nan
        settled = bank.num_to_reference == 0
        for index in np.unique(bank.class_of).tolist():
            mine = bank.class_of == index
            noise = self.noises[index] = estimate(window[mine], settled[mine], prior_scale=_PRIOR_SCALE)
            bank.scale[mine] = row_scales(window[mine], noise)
            self._known[index] |= int(np.isfinite(window[mine & settled]).sum()) >= _FEWEST_RESIDUALS

    def _test(self, rows: Ints, residuals: Floats) -> list[LinkChange]:
        bank = self.bank
        if not len(rows):
            return []
        scale = self._scales(rows)
        doubt = _REFERENCE_DOUBT * scale / np.sqrt(REFERENCE_OBSERVATIONS + bank.num_settled[rows])
        apart = residuals - bank.level[rows]
        apart = np.sign(apart) * np.maximum(np.abs(apart) - doubt, 0.0)
        limits = self._limits(rows)
        back = _NATS_TO_RECOVER + _NATS_PER_RELAPSE * np.minimum(bank.num_relapses[rows], 5)
        back = np.where(bank.ill[rows], back, limits)
        decided = np.zeros(len(rows), dtype=np.bool_)
        for sums_of, ages_of, sign, height in (
            (bank.sums_slower, bank.ages_slower, 1.0, limits),
            (bank.sums_faster, bank.ages_faster, -1.0, back),
        ):
            sums, ages = sums_of[rows], ages_of[rows]
            sequential_test.advance(sums, ages, self._log_ratios(rows, sign * apart, scale), height)
            sums_of[rows], ages_of[rows] = sums, ages
            decided |= sums.max(axis=1) >= height
        changes = [self._change(int(row), float(one)) for row, one in zip(rows[decided], scale[decided], strict=True)]
        return [change for change in changes if change is not None]

    def _log_ratios(self, rows: Ints, residuals: Floats, scale: Floats) -> Floats:
        ratios = np.empty((len(rows), sequential_test.NUM_TESTS))
        classes = self.bank.class_of[rows]
        for index in np.unique(classes).tolist():
            mine = classes == index
            ratios[mine] = sequential_test.log_ratios(residuals[mine], scale[mine], self.noises[index].freedom)
        return np.minimum(ratios, _ONE_STEP_SHARE * self._limit())

    def _change(self, row: int, scale: float) -> LinkChange | None:
        """Moves a row to the level its residuals now stand at; None where that is nobody's business."""
        bank = self.bank
        slower = bool(bank.sums_slower[row].max() >= bank.sums_faster[row].max())
        sums = (bank.sums_slower if slower else bank.sums_faster)[row]
        ages = (bank.ages_slower if slower else bank.ages_faster)[row]
        nats, age = float(sums.max()), int(ages[int(np.argmax(sums))])
        columns = np.flatnonzero(np.isfinite(bank.residuals[row]))
        change = locate_change(
            bank.residuals[row, columns], before=float(bank.level[row]), scale=scale, age=min(age, len(columns))
        )
        start, level, was_ill = int(columns[change.start]), change.level, bool(bank.ill[row])
        since = bank.residuals[row, columns[change.start :]]
        floor = max(SMALLEST_SLOWDOWN, _SCALES_APART * scale)
        if slower and not was_ill and level < floor and self._could_be_above(since, floor, scale):
            return None  # Neither is certain yet: the tests stand, and the next iteration is asked again.
        bank.clear_tests(np.array([row]))
        if was_ill and not slower and could_be_below(since, scale, SMALLEST_SLOWDOWN / 2):
            level = 0.0
        if level < floor:
            if not was_ill:
                self._absorb(row, level)
                return None
            level = 0.0
            bank.residuals[row, :start] = np.nan
        elif not was_ill:
            bank.num_relapses[row] += 1
        bank.level[row] = level
        bank.since[row] = bank.iterations[start] if level > 0 else -1
        return LinkChange(
            row=row,
            recovered=not bank.ill[row],
            level=level,
            first_iteration=int(bank.iterations[start]),
            nats=nats,
            num_observations=change.num_residuals,
        )

    @staticmethod
    def _could_be_above(residuals: Floats, level: float, scale: float) -> bool:
        """Does the interval of what was just found to be slower reach up to ``level``, as far as a window can tell?"""
        reach = INTERVAL_SCALES * scale / float(np.sqrt(len(residuals)))
        return len(residuals) < WINDOW and robust_level(residuals) + reach >= level

    def heal_too(self, row: int, first_iteration: int) -> LinkChange | None:
        """Clears a slow row if it looks as healthy as others of the same fault have been since ``first_iteration``.

        By itself a noisy row takes long to convince its test: what is left to ask is whether it has left its level.
        """
        bank, scale = self.bank, float(self._scales(np.array([row]))[0])
        columns = np.flatnonzero((bank.iterations >= first_iteration) & np.isfinite(bank.residuals[row]))
        since = bank.residuals[row, columns]
        if len(since) < _FEWEST_TO_HEAL or not could_be_below(since, scale, SMALLEST_SLOWDOWN / 2):
            return None
        if robust_level(since) + INTERVAL_SCALES * scale / float(np.sqrt(len(since))) >= bank.level[row]:
            return None
        nats = float(bank.sums_faster[row].max())
        bank.clear_tests(np.array([row]))
        bank.residuals[row, : columns[0]] = np.nan
        bank.level[row], bank.since[row] = 0.0, -1
        return LinkChange(
            row=row,
            recovered=True,
            level=0.0,
            first_iteration=int(bank.iterations[columns[0]]),
            nats=nats,
            num_observations=len(since),
        )

    def refined_level(self, row: int) -> float:
        """The level of a slow row as everything shows it since that level began."""
        bank = self.bank
        since = bank.residuals[row, (bank.iterations >= bank.since[row]) & np.isfinite(bank.residuals[row])]
        # The first iteration may mix both levels.
        return robust_level(since[1:] if len(since) > 2 else since) if len(since) else float(bank.level[row])

    def _absorb(self, row: int, level: float) -> None:
        """A healthy row turned out to be a little off its reference."""
        bank = self.bank
        reach = max(_LARGEST_OFFSET, float(bank.scale[row]))
        kept = min(max(bank.offset[row] + level, -reach), reach)
        bank.residuals[row] -= kept - bank.offset[row]
        bank.offset[row] = kept

    def _follow(self, rows: Ints, residuals: Floats) -> None:
        """Offsets of healthy rows follow slowly, within bounds, so that a lasting slowdown is never absorbed."""
        bank = self.bank
        calm = self.calm(rows)
        rows, residuals = rows[calm], residuals[calm]
        scale = self._scales(rows)
        bank.num_settled[rows] += 1
        rate = np.maximum(1.0 / (bank.num_settled[rows] + REFERENCE_OBSERVATIONS), 1.0 / 64.0)
        moved = bank.offset[rows] + rate * np.clip(residuals, -2 * scale, 2 * scale)
        reach = np.maximum(_LARGEST_OFFSET, scale)
        bank.offset[rows] = np.clip(moved, -reach, reach)

    def _scales(self, rows: Ints) -> Floats:
        floors = np.array([0.5 * noise.scale for noise in self.noises])
        scales: Floats = np.maximum(self.bank.scale[rows], floors[self.bank.class_of[rows]])
        return scales


def _centre(values: Floats) -> float:
    return float(np.sort(values)[(len(values) - 1) // 2]) if len(values) >= _FEWEST_OF_A_CLASS else 0.0
