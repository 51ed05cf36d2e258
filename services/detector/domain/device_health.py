"""How fast is each device, relative to healthy? Judged against the expectation, its peers and its own past.

A residual is the log of observed over expected compute seconds, less the frame's centre over healthy devices (so what
slows everybody accuses nobody), less the offset of the device's work and of the device itself. A device's throughput is
exp(-level), where ``level`` is the residual that a sequential test has established.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from services.detector.domain import sequential_test
from services.detector.domain.bank_noise import renew_noise, unsuspected
from services.detector.domain.device_bank import WINDOW, DeviceBank
from services.detector.domain.device_offsets import (
    BASELINE_AFTER_RESHAPE,
    LARGEST_OWN_OFFSET,
    absorb,
    take_baseline,
)
from services.detector.domain.frame_centre import FrameCentre
from services.detector.domain.frame_terms import FrameTerms, few_ranks, limits, youth
from services.detector.domain.level import (
    INTERVAL_SCALES,
    SMALLEST_SLOWDOWN,
    Change,
    could_be_below,
    locate_change,
    robust_level,
    throughput_at,
)
from services.detector.domain.noise import Noise
from services.detector.domain.sequential_test import NUM_TESTS
from services.detector.domain.wandering import Wandering

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

REPUBLISH_AT = 0.07
"""Change of throughput that is worth telling a planner about."""

QUIET = 0.25
"""Share of the way to a verdict up to which a healthy device's iterations are learned from."""

_REFINE_AFTER = (8, 24)
_NOISE_EVERY = 8
# Of the way to a verdict: whoever has gone so far is not quite healthy.
_SUSPECTED = 0.25


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
    """

    row: int
    recovered: bool
    throughput: float
    margin: float
    first_iteration: int
    nats: float
    num_observations: int
    scale: float


class DeviceHealth:
    """Judges all devices of one job, frame by frame.

    Args:
        iterations_per_false_alarm: The operator's budget for the whole job.
    """

    __slots__ = (
        "_centre",
        "_held",
        "_num_frames",
        "_quiet",
        "_reached",
        "_terms",
        "_wandering",
        "bank",
        "iterations_per_false_alarm",
        "noise",
    )

    def __init__(self, *, iterations_per_false_alarm: float) -> None:
        self.iterations_per_false_alarm = iterations_per_false_alarm
        self.bank = DeviceBank()
        self.noise = Noise()
        self._centre = FrameCentre()
        self._wandering = Wandering()
        self._num_frames = 0
        self._terms: FrameTerms | None = None
        self._quiet: tuple[Ints, Bools] | None = None
        self._reached = np.inf
        # Rows and shares of the model of the newest frame: as long as they are those, nobody's work has changed.
        self._held: tuple[Ints | None, Floats | None] = None, None

    def begin_epoch(self) -> None:
        """The layout changed: every device's next observation is left out."""
        np.maximum(self.bank.num_to_skip, 1, out=self.bank.num_to_skip)

    def observe(self, iteration: int, rows: Ints, log_ratios: Floats, work_keys: Floats) -> list[HealthChange]:
        """Takes one frame and returns whose throughput changed.

        Args:
            iteration: The frame's iteration.
            rows: Row of each entry in the bank, each at most once.
            log_ratios: Log of observed over expected compute seconds of each entry.
            work_keys: What share of the model each entry holds.
        """
        bank = self.bank
        self._quiet, self._reached = None, np.inf
        if not len(rows):
            return []
        where = bank.where(rows)
        if self._held[0] is not rows or self._held[1] is not work_keys:
            self._take_work(rows, work_keys)
        self._num_frames += 1
        base = log_ratios - bank.shared_offset[where] - bank.own_offset[where]
        # Whoever was tested under lasting terms has a baseline and is healthy: what ends that ends the terms, too.
        all_settled = self._terms is not None and self._terms.lasting and self._terms.rows is rows
        residuals = self._centre.apart(bank, rows, base, noise_scale=self.noise.scale, all_settled=all_settled)
        bank.push(iteration, where, residuals)
        tested, ready = rows, rows[:0]
        if not all_settled and np.count_nonzero(bank.num_to_baseline[where]):
            waiting = bank.num_to_baseline[where] > 0
            bank.num_to_baseline[rows[waiting]] -= 1
            ready = rows[waiting & (bank.num_to_baseline[where] == 0)]
            tested, residuals = rows[~waiting], residuals[~waiting]
        bank.count(rows, tested)
        if len(ready):
            take_baseline(bank, ready)
            self._terms = None
        changes: list[HealthChange] = []
        if len(tested):
            terms = self._terms = FrameTerms.of(bank, tested, self.noise, limit=self._limit(), known=self._terms)
            changes = self._test(tested, residuals, terms)
            self._follow(tested, residuals, terms)
        # After the tests: what has just come under suspicion is no noise.
        if self._num_frames % _NOISE_EVERY == 0 or len(ready):
            self._renew_noise(ready)
        return changes

    def calm(self, rows: Ints, share: float) -> bool:
        """Whether it is known without a look that nobody is ill or beyond this share of the way to a verdict.

        Args:
            rows: Rows of the newest frame.
            share: Of the evidence that it takes to call a grown-up healthy device slow.
        """
        return self._reached < share and self._terms is not None and self._terms.rows is rows

    def quiet(self, rows: Ints) -> Bools:
        """True for devices that are healthy and under no suspicion: those to learn from."""
        known, self._quiet = self._quiet, None
        if known is not None and known[0] is rows:
            return known[1]
        where = self.bank.where(rows)
        sums = np.maximum.reduce(self.bank.sums[:, :, where].reshape(2 * NUM_TESTS, -1))
        calm: Bools = ~self.bank.ill[where] & (sums <= QUIET * self._limit())
        return calm

    def evidence(self, rows: Ints) -> Floats:
        """Evidence against some devices, as a part of what it takes to call a healthy one slow."""
        where = self.bank.where(rows)
        terms = self._terms
        needed = terms.heights[0] if terms and terms.rows is rows and terms.lasting else self._limits(where)
        found: Floats = np.maximum.reduce(self.bank.sums[:, 0, where]) / needed
        return found

    def throughputs(self, rows: Ints) -> tuple[Floats, Floats]:
        """Throughput of some devices and the half-widths of their 95 % intervals."""
        bank, where = self.bank, self.bank.where(rows)
        count = np.minimum(np.maximum(bank.num_since_change[where], 1), WINDOW)
        scale = bank.scale[where]
        scale = np.where(scale > 0, scale, self.noise.scale)
        found = np.exp(-bank.level[where])
        return found, INTERVAL_SCALES * scale / np.sqrt(count) * found

    def _limit(self) -> float:
        return sequential_test.threshold(
            iterations_per_false_alarm=self.iterations_per_false_alarm, num_ranks=len(self.bank)
        )

    def _limits(self, where: Ints | slice) -> Floats:
        return limits(self.bank, where, self._limit())

    def _renew_noise(self, fresh: Ints) -> None:
        bank, known = self.bank, unsuspected(self.bank, self._limit(), self._centre.pair)
        seasoned, alike, settled = self._num_frames > WINDOW, self._wandering.most_alike, bank.settled()
        self.noise = renew_noise(
            bank, self.noise, known, settled=settled, fresh=fresh, seasoned=seasoned, most_alike=alike
        )
        if self._num_frames % _NOISE_EVERY == 0:
            healthy = known if np.count_nonzero(settled) == len(settled) else known[settled]
            self._wandering.remember(healthy, scale=self.noise.scale, num_new=_NOISE_EVERY, few=few_ranks(bank))

    def _take_work(self, rows: Ints, work_keys: Floats) -> None:
        bank, where = self.bank, self.bank.where(rows)
        moved = bank.work_key[where] != work_keys
        if np.count_nonzero(moved):
            self._begin_work(rows[moved & bank.has_offset[where]])
            bank.work_key[where] = work_keys
        self._held = rows, work_keys

    def _begin_work(self, rows: Ints) -> None:
        """These devices hold another share now: the healthy ones get a new baseline, the ill ones keep theirs."""
        bank, self._terms = self.bank, None
        healthy = rows[~bank.ill[rows]]
        bank.num_to_baseline[healthy] = BASELINE_AFTER_RESHAPE
        bank.suspected[healthy] = np.maximum.reduce(bank.sums[:, 0, healthy]) > _SUSPECTED * self._limit()
        bank.clear_tests(rows)

    def _test(self, rows: Ints, residuals: Floats, terms: FrameTerms) -> list[HealthChange]:
        bank, where = self.bank, self.bank.where(rows)
        # Both directions at once: first all towards slower, then all towards faster.
        apart = np.empty((2, len(rows)))
        np.subtract(residuals, bank.level[where], out=apart[0])
        np.negative(apart[0], out=apart[1])
        if self._centre.pair is not None:
            # Whoever leaves the other of two behind need not have become faster.
            np.minimum(apart[1], 0.0, out=apart[1], where=~bank.ill[where])
        ratios = terms.yardstick.log_ratios(sequential_test.in_doubt(apart, terms.doubt))
        sums, ages = bank.sums[:, :, where], bank.ages[:, :, where]
        highest = sequential_test.advance_rows(sums, ages, ratios, terms.most)
        if where is rows:  # those were copies
            bank.sums[:, :, where], bank.ages[:, :, where] = sums, ages
        if terms.lasting and highest < terms.lowest:
            self._reached = highest / terms.limit
            return []
        reached = np.maximum.reduce(sums) >= terms.heights
        decided = reached[0] | reached[1]
        if not np.count_nonzero(decided | bank.ill[where]):
            return []
        scale = terms.yardstick.scale
        changes = [self._change(int(row), float(s)) for row, s in zip(rows[decided], scale[decided], strict=True)]
        refined = self._refine(rows[bank.ill[rows] & ~decided])
        return [change for change in (*changes, *refined) if change is not None]

    def _change(self, row: int, scale: float) -> HealthChange | None:
        """Moves a device to the level its residuals now stand at; None where that is nobody's business."""
        bank = self.bank
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
            elif not sequential_test.decides(since, scale, self.noise.freedom, self._limits(np.array([row]))):
                return None  # Neither is certain yet: the tests stand, and the next iteration is asked again.
        # Of few, one that strayed to be faster and is believed would be slow when it is back.
        if not was_ill and (slower or few) and self._could_be_wandering(row, change, columns, slower=slower):
            # Evidence beyond what decides would only take longer to go, were it nothing.
            sums = bank.sums[:, 0 if slower else 1, row]
            np.minimum(sums, self._limit(), out=sums)
            return None
        bank.clear_tests(np.array([row]))
        # What is smaller than one iteration's noise cannot be told from noise that wanders, unless that is well known.
        if level >= (SMALLEST_SLOWDOWN if few else max(SMALLEST_SLOWDOWN, scale)):
            if not was_ill:
                bank.num_relapses[row] += 1
                # What the other of two was ahead of this one says nothing of its own noise.
                bank.residuals[self._centre.other_than(row), start:] = np.nan
            bank.level[row] = level
            bank.ill[row], self._terms = True, None
            bank.num_since_change[row] = change.num_residuals
        else:
            if not was_ill:
                absorb(bank, row, level)
                return None
            bank.level[row] = 0.0
            bank.ill[row], self._terms = False, None
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
        bank, sign = self.bank, 1.0 if slower else -1.0
        return self._wandering.could_be(
            sign * change.level,
            sign * bank.residuals[row, columns[change.start :]],
            unsuspected(bank, self._limit(), self._centre.pair)[bank.settled()],
            noise=self.noise,
            youth=float(youth(bank, np.array([row]))[0]),
            few=few_ranks(bank),
        )

    def _refine(self, rows: Ints) -> list[HealthChange | None]:
        """The first estimate rests on few iterations: looks again when there are more, and none of another level."""
        bank = self.bank
        steady = np.maximum.reduce(bank.sums[:, 1, rows]) <= _SUSPECTED * self._limit()
        due = steady & np.isin(bank.num_since_change[rows], _REFINE_AFTER)
        return [self._refined(int(row)) for row in rows[due]]

    def _refined(self, row: int) -> HealthChange | None:
        bank = self.bank
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
            nats=self._limit(),
            num_observations=len(columns),
            scale=scale,
        )

    def _follow(self, rows: Ints, residuals: Floats, terms: FrameTerms) -> None:
        """Healthy devices' own offsets follow slowly, within bounds, so that a lasting slowdown is never absorbed."""
        bank, where = self.bank, self.bank.where(rows)
        steps = np.maximum(residuals, terms.least)
        np.minimum(steps, terms.reach, out=steps)
        steps *= terms.rate
        most = LARGEST_OWN_OFFSET
        if self._centre.pair is not None:
            # Both take their half of what is between them.
            steps, most = steps / 2, most / 2
        steps += bank.own_offset[where]
        np.maximum(steps, -most, out=steps)
        np.minimum(steps, most, out=steps)
        if self.calm(rows, QUIET):
            bank.own_offset[where] = steps
            return
        calm = self.quiet(rows)
        self._quiet = rows, calm
        bank.own_offset[rows[calm]] = steps[calm]

    def to_state(self) -> dict[str, Any]:
        """Everything learned, as plain values and arrays."""
        return {
            "bank": self.bank.to_state(),
            "noise": {
                "scale": self.noise.scale,
                "freedom": self.noise.freedom,
                "correlation": self.noise.correlation,
            },
            "centre": self._centre.value,
            **self._wandering.to_state(),
            "num_frames": self._num_frames,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what ``to_state`` gave."""
        self.bank.restore(state["bank"])
        self.noise = Noise(**state["noise"])
        self._centre.value = state["centre"]
        self._wandering.restore(state)
        self._num_frames = state["num_frames"]
        self._terms, self._quiet, self._held = None, None, (None, None)
