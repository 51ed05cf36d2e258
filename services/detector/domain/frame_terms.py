"""What a frame's device tests need beside its residuals: noise, doubt, and how much evidence decides.

It follows from the bank and the noise, and once all rows are grown up it stays the same from frame to frame.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from services.detector.domain.device_bank import DeviceBank
from services.detector.domain.noise import Noise
from services.detector.domain.sequential_test import ONE_STEP_SHARE, Yardstick

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_NATS_TO_RECOVER = 8.0
_NATS_PER_RELAPSE = 3.0
# A young row's baseline and noise rest on few iterations: it takes more to convince us.
_YOUNG_OBSERVATIONS = 96
_NATS_FOR_YOUTH = 8.0
# How far off a healthy row's offset may be, in standard errors, before it speaks against the row.
_OFFSET_DOUBT, _OFFSET_DOUBT_OF_YOUTH = 1.5, 2.0
# Iterations it rests on; where few ranks have hardly any peers it follows more slowly, so as not to follow illness.
_OFFSET_MEMORY, _OFFSET_MEMORY_OF_FEW = 64, 256
_FEW_RANKS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTerms:
    """Terms of some rows.

    Attributes:
        rows: The rows.
        noise: The noise of their job that they hold for.
        yardstick: Each row's own noise.
        doubt: By how much each healthy row's offset may be wrong; it rests on noisy iterations, few of them at first.
            Once for what speaks for slower, once for faster, as the residuals are tested.
        heights: Evidence that decides, towards slower and towards faster, nats; one column for all rows if it is equal.
        most: What one iteration may add to it; one number where that is equal for all.
        lowest: The lowest of ``heights``.
        limit: Evidence that it takes to call a grown-up healthy device slow.
        reach: Residuals beyond this are cut off before they are followed; ``least`` is the same downwards.
        rate: Share of a residual by which a healthy row's offset follows it.
        lasting: They hold as long as the noise does and nobody is ill.
    """

    rows: Ints
    noise: Noise
    yardstick: Yardstick
    doubt: Floats
    heights: Floats
    most: Floats | float
    lowest: float
    limit: float
    reach: Floats
    least: Floats
    rate: Floats | float
    lasting: bool

    @classmethod
    def of(
        cls, bank: DeviceBank, rows: Ints, noise: Noise, *, limit: float, known: "FrameTerms | None"
    ) -> "FrameTerms":
        """The terms of this frame.

        Args:
            bank: The devices.
            rows: Rows to be tested.
            noise: Noise of the job; a new one each time that the rows' own scales are estimated.
            limit: Evidence that it takes to call a grown-up healthy device slow, in nats.
            known: Those of an earlier frame, if no baseline was taken since, nobody's work changed, and nobody fell ill
                or recovered.
        """
        where = bank.where(rows)
        if known is None or known.rows is not rows or known.noise is not noise:
            yardstick = Yardstick(np.maximum(bank.scale[where], smallest_scale(noise)), noise.freedom, sides=2)
        elif known.lasting:
            return known
        else:
            yardstick = known.yardstick
        observed, settled = bank.num_observed[where], bank.num_settled[where]
        memory = _offset_memory(bank)
        grown_up = observed[observed.argmin()] >= _YOUNG_OBSERVATIONS and settled[settled.argmin()] >= memory
        lasting = bool(grown_up) and not np.count_nonzero(bank.ill)
        if lasting:
            # All rows are alike: one height stands for all of them.
            heights: Floats = np.full((2, 1), limit)
            most: Floats | float = ONE_STEP_SHARE * limit
            doubt = yardstick.scale * (_OFFSET_DOUBT / math.sqrt(memory))
        else:
            ill, young = bank.ill[where], youth(bank, where)
            errors = (_OFFSET_DOUBT + _OFFSET_DOUBT_OF_YOUTH * young) * yardstick.scale
            errors /= np.sqrt(np.minimum(np.maximum(settled, 1), memory))
            doubt = np.where(ill, 0.0, errors)
            slower = limit + _NATS_FOR_YOUTH * young
            back = _NATS_TO_RECOVER + _NATS_PER_RELAPSE * np.minimum(bank.num_relapses[where], 5)
            heights = np.stack([slower, np.where(ill, back, slower)])
            most = ONE_STEP_SHARE * heights
        slowest, reach = 1.0 / memory, 2 * yardstick.scale
        rate = slowest if lasting else np.maximum(1.0 / (observed + 8.0), slowest)
        return cls(
            rows=rows,
            noise=noise,
            yardstick=yardstick,
            doubt=np.array((doubt, doubt)),
            heights=heights,
            most=most,
            lowest=float(heights.min()),
            limit=limit,
            reach=reach,
            least=-reach,
            rate=rate,
            lasting=lasting,
        )


def few_ranks(bank: DeviceBank) -> bool:
    """Whether a job has so few ranks that one device's noise is much of what is seen of another's."""
    return len(bank) <= _FEW_RANKS


def offset_rests_on(bank: DeviceBank, row: int) -> int:
    """Iterations that a healthy row's offset is a mean of."""
    return min(max(int(bank.num_settled[row]), 1), _offset_memory(bank))


def _offset_memory(bank: DeviceBank) -> int:
    return _OFFSET_MEMORY_OF_FEW if few_ranks(bank) else _OFFSET_MEMORY


def youth(bank: DeviceBank, where: Ints | slice) -> Floats:
    """1 for a row that was never seen, 0 from ``_YOUNG_OBSERVATIONS`` on."""
    return np.asarray(np.maximum(1.0 - bank.num_observed[where] / _YOUNG_OBSERVATIONS, 0.0))


def limits(bank: DeviceBank, where: Ints | slice, limit: float) -> Floats:
    """Evidence that it takes to call each of some healthy devices slow; ``limit`` is that of a grown-up one, nats."""
    return np.asarray(limit + _NATS_FOR_YOUTH * youth(bank, where))


def smallest_scale(noise: Noise) -> float:
    """No device's noise is believed to be less than half of its job's."""
    return 0.5 * noise.scale
