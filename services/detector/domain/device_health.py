"""How fast is each device, relative to healthy? Judged against the expectation, its peers and its own past.

A residual is the log of observed over expected compute seconds, less the frame's centre over healthy devices (so what
slows everybody accuses nobody), less the offset of the device's work and of the device itself. A device's throughput is
exp(-level), where ``level`` is the residual that a sequential test has established.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from services.detector.domain import sequential_test
from services.detector.domain.bank_noise import renew_noise, unsuspected
from services.detector.domain.device_bank import WINDOW, DeviceBank
from services.detector.domain.device_levels import SUSPECTED, DeviceLevels, HealthChange
from services.detector.domain.device_offsets import (
    BASELINE_AFTER_RESHAPE,
    follow,
    take_baseline,
)
from services.detector.domain.frame_centre import FrameCentre
from services.detector.domain.frame_terms import FrameTerms, few_ranks, limits
from services.detector.domain.level import INTERVAL_SCALES
from services.detector.domain.noise import Noise
from services.detector.domain.sequential_test import NUM_TESTS
from services.detector.domain.wandering import Wandering

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

QUIET = 0.25
"""Share of the way to a verdict up to which a healthy device's iterations are learned from."""

_NOISE_EVERY = 8


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
        bank.suspected[healthy] = np.maximum.reduce(bank.sums[:, 0, healthy]) > SUSPECTED * self._limit()
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
        levels = DeviceLevels(bank, self._centre, self._wandering, noise=self.noise, limit=self._limit())
        ill = bank.ill[rows]
        changes = levels.decide(rows[decided], terms.yardstick.scale[decided])
        if not np.array_equal(bank.ill[rows], ill):
            self._terms = None
        return [*changes, *levels.refine(rows[bank.ill[rows] & ~decided])]

    def _follow(self, rows: Ints, residuals: Floats, terms: FrameTerms) -> None:
        calm = None
        if not self.calm(rows, QUIET):
            calm = self.quiet(rows)
            self._quiet = rows, calm
        follow(self.bank, rows, residuals, terms, calm=calm, pair=self._centre.pair)

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
