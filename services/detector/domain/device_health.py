"""How fast is each device, relative to healthy? Judged against the expectation, its peers and its own past.

A residual is the log of observed over expected compute seconds, less the frame's centre over healthy devices (so what
slows everybody accuses nobody), less the offset of the device's work and of the device itself. A device's throughput is
exp(-level), where ``level`` is the residual that a sequential test has established.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain import device_frame, sequential_test
from evenkeel.services.detector.domain.bank_noise import renew_noise
from evenkeel.services.detector.domain.device_bank import WINDOW, DeviceBank
from evenkeel.services.detector.domain.device_levels import SUSPECTED, DeviceLevels, HealthChange
from evenkeel.services.detector.domain.device_offsets import BASELINE_AFTER_RESHAPE, follow, take_baseline
from evenkeel.services.detector.domain.device_tests import NUM_TESTS, advance
from evenkeel.services.detector.domain.frame_centre import FrameCentre
from evenkeel.services.detector.domain.frame_terms import few_ranks, limits, offset_memory, smallest_scale
from evenkeel.services.detector.domain.level import INTERVAL_SCALES
from evenkeel.services.detector.domain.memory.state import DERIVED, GIVEN
from evenkeel.services.detector.domain.noise import Noise
from evenkeel.services.detector.domain.wandering import Wandering

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

QUIET = 0.25
"""Share of the way to a verdict up to which a healthy device's iterations are learned from."""

_NOISE_EVERY = 8
"""The noise is found anew in every so many frames."""
_NONE: Ints = np.zeros(0, dtype=np.int64)


@dataclass(slots=True, eq=False, kw_only=True)
class DeviceHealth:
    """Judges all devices of one job, frame by frame.

    Args:
        iterations_per_false_alarm: The operator's budget for the whole job.
    """

    iterations_per_false_alarm: float = field(metadata=GIVEN)
    bank: DeviceBank = field(default_factory=DeviceBank)
    noise: Noise = field(default_factory=Noise)
    _centre: FrameCentre = field(default_factory=FrameCentre)
    _wandering: Wandering = field(default_factory=Wandering)
    _num_frames: int = 0
    # Of a number of ranks, see :meth:`_terms`.
    _terms_of: tuple[int, tuple[float, int, bool]] = field(
        default_factory=lambda: (-1, (0.0, 0, False)), metadata=DERIVED
    )
    # Rows that were tested in the newest frame, which of them are quiet, and how far the farthest is.
    _tested: Ints | None = field(default=None, metadata=DERIVED)
    _quiet: Bools | None = field(default=None, metadata=DERIVED)
    _reached: float = field(default=np.inf, metadata=DERIVED)
    # Rows and shares of the model of the newest frame: as long as they are those, nobody's work has changed.
    _held: tuple[Ints | None, Floats | None] = field(default_factory=lambda: (None, None), metadata=DERIVED)

    def begin_epoch(self) -> None:
        """The layout changed: every device's next observation is left out."""
        self.bank.skip_next()

    def observe(self, iteration: int, rows: Ints, log_ratios: Floats, work_keys: Floats) -> list[HealthChange]:
        """Takes one frame and returns whose throughput changed.

        Args:
            iteration: The frame's iteration.
            rows: Row of each entry in the bank, each at most once.
            log_ratios: Log of observed over expected compute seconds of each entry.
            work_keys: What share of the model each entry holds.
        """
        if not len(rows):
            self._quiet, self._reached = None, np.inf
            return []
        bank = self.bank
        self._quiet, self._reached = None, np.inf
        if self._held[0] is not rows or self._held[1] is not work_keys:
            self._take_work(rows, work_keys)
        limit, memory, few = self._terms()
        marks, residuals = np.empty((2, len(rows)), dtype=np.bool_), np.empty(len(rows))
        judged = device_frame.judge(
            bank.numbers,
            bank.counts,
            bank.num_in_sums,
            bank.flags,
            rows,
            log_ratios,
            bank.push(iteration)[-1],
            self.noise.scale,
            self.noise.freedom,
            self._centre.value,
            limit,
            QUIET * limit,
            memory,
            few,
            residuals,
            marks,
        )
        self._num_frames += 1
        self._centre.value, first, second, num_waiting, highest, num_decided, num_ill = judged
        self._centre.pair = None if first < 0 else np.array((first, second))
        ready = _NONE
        changes: list[HealthChange] = []
        if num_waiting:
            ready, changes = self._with_waiting(rows, residuals)
        else:
            self._tested = rows
            if num_decided or num_ill:
                changes = self._decide(rows, marks[0])
                self._follow(rows, residuals)
            else:
                self._reached, self._quiet = highest / limit, marks[1]
        # After the tests: what has just come under suspicion is no noise.
        is_noise_due = self._num_frames % _NOISE_EVERY == 0
        if is_noise_due or len(ready):
            self._renew_noise(ready, is_due=is_noise_due)
        return changes

    def calm(self, rows: Ints, share: float) -> bool:
        """Whether it is known without a look that nobody is ill or beyond this share of the way to a verdict.

        Args:
            rows: Rows of the newest frame.
            share: Of the evidence that it takes to call a grown-up healthy device slow.
        """
        return self._reached < share and self._tested is rows

    def quiet(self, rows: Ints) -> Bools:
        """True for devices that are healthy and under no suspicion: those to learn from."""
        known, self._quiet = self._quiet, None
        if known is not None and self._tested is rows:
            return known
        sums = np.maximum.reduce(self.bank.sums[:, :, rows].reshape(2 * NUM_TESTS, -1))
        calm: Bools = ~self.bank.ill[rows] & (sums <= QUIET * self._limit())
        return calm

    def evidence(self, rows: Ints) -> Floats:
        """Evidence against some devices, as a part of what it takes to call a healthy one slow."""
        found: Floats = np.maximum.reduce(self.bank.sums[:, 0, rows]) / limits(self.bank, rows, self._limit())
        return found

    def throughputs(self, rows: Ints) -> tuple[Floats, Floats]:
        """Throughput of some devices and the half-widths of their 95 % intervals."""
        bank = self.bank
        found, margins = np.empty(len(rows)), np.empty(len(rows))
        device_frame.throughputs(
            bank.numbers, bank.counts, rows, self.noise.scale, INTERVAL_SCALES, WINDOW, found, margins
        )
        return found, margins

    def _limit(self) -> float:
        return self._terms()[0]

    def _terms(self) -> tuple[float, int, bool]:
        """What hangs on the number of ranks: the evidence of a verdict, the memory of offsets, whether they are few."""
        count = len(self.bank)
        if self._terms_of[0] != count:
            limit = sequential_test.threshold(
                iterations_per_false_alarm=self.iterations_per_false_alarm, num_ranks=count
            )
            self._terms_of = count, (limit, offset_memory(self.bank), few_ranks(self.bank))
        return self._terms_of[1]

    def _renew_noise(self, fresh: Ints, *, is_due: bool) -> None:
        bank = self.bank
        highest = self._reached if self._tested is not None and bank.is_everyone(self._tested) else np.inf
        self.noise, known, settled = renew_noise(
            bank,
            self.noise,
            limit=self._limit(),
            pair=self._centre.pair,
            highest=highest,
            fresh=fresh,
            seasoned=self._num_frames > WINDOW,
            most_alike=self._wandering.most_alike,
        )
        if is_due:
            healthy = known if np.count_nonzero(settled) == len(settled) else known[settled]
            self._wandering.remember(healthy, scale=self.noise.scale, num_new=_NOISE_EVERY, few=self._terms()[2])

    def _take_work(self, rows: Ints, work_keys: Floats) -> None:
        bank = self.bank
        moved = bank.work_key[rows] != work_keys
        if np.count_nonzero(moved):
            self._begin_work(rows[moved & bank.has_offset[rows]])
            bank.work_key[rows] = work_keys
        self._held = rows, work_keys

    def _begin_work(self, rows: Ints) -> None:
        """These devices hold another share now: the healthy ones get a new baseline, the ill ones keep theirs."""
        bank = self.bank
        healthy = rows[~bank.ill[rows]]
        bank.num_to_baseline[healthy] = BASELINE_AFTER_RESHAPE
        bank.suspected[healthy] = np.maximum.reduce(bank.sums[:, 0, healthy]) > SUSPECTED * self._limit()
        bank.clear_tests(rows)

    def _with_waiting(self, rows: Ints, residuals: Floats) -> tuple[Ints, list[HealthChange]]:
        """Goes on with a frame in which some wait for a baseline: who has it now, and what changed of the others."""
        bank = self.bank
        waiting = bank.num_to_baseline[rows] > 0
        bank.num_to_baseline[rows[waiting]] -= 1
        ready = rows[waiting & (bank.num_to_baseline[rows] == 0)]
        tested, residuals = rows[~waiting], residuals[~waiting]
        if len(ready):
            take_baseline(bank, ready)
        changes: list[HealthChange] = []
        if len(tested):
            changes = self._test(tested, residuals)
            self._follow(tested, residuals)
        return ready, changes

    def _test(self, rows: Ints, residuals: Floats) -> list[HealthChange]:
        bank, noise, limit, decided = self.bank, self.noise, self._limit(), np.empty(len(rows), dtype=np.bool_)
        highest, num_decided, num_ill = advance(
            bank.numbers,
            bank.counts,
            bank.num_in_sums,
            bank.flags,
            rows,
            residuals,
            noise.scale,
            noise.freedom,
            limit,
            offset_memory(bank),
            self._centre.pair is not None,
            decided,
        )
        self._tested = rows
        if not num_decided and not num_ill:
            self._reached = highest / limit
            return []
        return self._decide(rows, decided)

    def _decide(self, rows: Ints, decided: Bools) -> list[HealthChange]:
        """Whose throughput changed, of those whose sums have reached their heights and of the ill."""
        bank = self.bank
        levels = DeviceLevels(bank, self._centre, self._wandering, noise=self.noise, limit=self._limit())
        sure = rows[decided]
        changes = levels.decide(sure, np.maximum(bank.scale[sure], smallest_scale(self.noise)))
        return [*changes, *levels.refine(rows[bank.ill[rows] & ~decided])]

    def _follow(self, rows: Ints, residuals: Floats) -> None:
        bank, calm = self.bank, np.empty(len(rows), dtype=np.bool_)
        follow(
            bank.numbers,
            bank.counts,
            bank.flags,
            rows,
            residuals,
            self.noise.scale,
            offset_memory(bank),
            few_ranks(bank),
            self._centre.pair is not None,
            QUIET * self._limit(),
            calm,
        )
        self._quiet = calm
