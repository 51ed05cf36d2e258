"""What a frame's device tests need beside its residuals: how young a device is, how much evidence decides."""

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.device_bank import DeviceBank
from evenkeel.services.detector.domain.device_tests import NATS_FOR_YOUTH, YOUNG_OBSERVATIONS
from evenkeel.services.detector.domain.noise import Noise

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Iterations an offset rests on; where few ranks have hardly any peers it follows more slowly, so as not to follow
# illness.
_OFFSET_MEMORY, _OFFSET_MEMORY_OF_FEW = 64, 256
_FEW_RANKS = 4


def few_ranks(bank: DeviceBank) -> bool:
    """Whether a job has so few ranks that one device's noise is much of what is seen of another's."""
    return len(bank) <= _FEW_RANKS


def offset_rests_on(bank: DeviceBank, row: int) -> int:
    """Iterations that a healthy row's offset is a mean of."""
    return min(max(int(bank.num_settled[row]), 1), offset_memory(bank))


def offset_memory(bank: DeviceBank) -> int:
    """Iterations that a grown-up device's offset rests on."""
    return _OFFSET_MEMORY_OF_FEW if few_ranks(bank) else _OFFSET_MEMORY


def youth(bank: DeviceBank, rows: Ints) -> Floats:
    """1 for a row that was never seen, 0 from ``YOUNG_OBSERVATIONS`` on."""
    return np.asarray(np.maximum(1.0 - bank.num_observed[rows] / YOUNG_OBSERVATIONS, 0.0))


def limits(bank: DeviceBank, rows: Ints, limit: float) -> Floats:
    """Evidence that it takes to call each of some healthy devices slow; ``limit`` is that of a grown-up one, nats."""
    return np.asarray(limit + NATS_FOR_YOUTH * youth(bank, rows))


def smallest_scale(noise: Noise) -> float:
    """No device's noise is believed to be less than half of its job's."""
    return 0.5 * noise.scale
