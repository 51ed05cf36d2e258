"""One frame of all devices, compiled: where each stands, its tests, and its offset, on the tables of a device bank."""

import math

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled
from evenkeel.services.detector.domain.device_offsets import follow
from evenkeel.services.detector.domain.device_tables import LEVEL, SCALE, SINCE_CHANGE
from evenkeel.services.detector.domain.device_tests import advance
from evenkeel.services.detector.domain.frame_centre import place

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

Judged = tuple[float, int, int, int, float, int, int]
"""What :func:`judge` returns."""


@compiled
def judge(
    numbers: Floats,
    counts: Counts,
    ages: Counts,
    flags: Bools,
    rows: Ints,
    log_ratios: Floats,
    newest: Singles,
    noise_scale: float,
    freedom: float,
    usual: float,
    limit: float,
    quiet: float,
    memory: int,
    few: bool,
    residuals: Floats,
    marks: Bools,
) -> Judged:
    """Places, tests and follows the devices of a frame, as far as nothing has to be decided in between.

    Where somebody waits for a baseline it stops after :func:`place`, where somebody is ill or a sum has reached its
    height after :func:`advance`.

    Args:
        numbers: The table of numbers; written.
        counts: The table of counts; written.
        ages: Observations in each sum; written.
        flags: The table of flags.
        rows: The device of each entry, by its place in the tables.
        log_ratios: Log of observed over expected seconds of each entry.
        newest: Column of the window for this iteration, one number a device; written.
        noise_scale: Scale of the noise of the job.
        freedom: Degrees of freedom of its tails.
        usual: Where the centre usually stands.
        limit: Evidence that it takes to call a grown-up healthy device slow, nats.
        quiet: Evidence up to which a healthy device is under no suspicion, nats.
        memory: Iterations that a grown-up device's offset rests on.
        few: The job has few ranks.
        residuals: One an entry; written.
        marks: Two rows: whether a sum of each entry has reached its height, who is under no suspicion; written.

    Returns:
        What :func:`place` returns, then what :func:`advance` does, zeros where it was not asked.
    """
    usual, first, second, num_waiting = place(
        numbers, counts, flags, rows, log_ratios, noise_scale, usual, newest, residuals
    )
    if num_waiting:
        return usual, first, second, num_waiting, 0.0, 0, 0
    paired = first >= 0
    highest, num_decided, num_ill = advance(
        numbers, counts, ages, flags, rows, residuals, noise_scale, freedom, limit, memory, paired, marks[0]
    )
    if not num_decided and not num_ill:
        follow(numbers, counts, flags, rows, residuals, noise_scale, memory, few, paired, quiet, marks[1])
    return usual, first, second, num_waiting, highest, num_decided, num_ill


@compiled
def throughputs(
    numbers: Floats,
    counts: Counts,
    rows: Ints,
    noise_scale: float,
    interval_scales: float,
    window: int,
    found: Floats,
    margins: Floats,
) -> None:
    """Writes the throughput of some devices and the half-widths of their intervals.

    Args:
        numbers: The table of numbers.
        counts: The table of counts.
        rows: The devices.
        noise_scale: Scale of the noise of the job, for those whose own is not known.
        interval_scales: Half-width of the interval of one iteration, in scales.
        window: Iterations that a level rests on at most.
        found: One a device; written.
        margins: The same.
    """
    for entry in range(len(rows)):
        row = rows[entry]
        scale = numbers[SCALE, row] if numbers[SCALE, row] > 0.0 else noise_scale
        rests_on = min(max(counts[SINCE_CHANGE, row], 1), window)
        found[entry] = math.exp(-numbers[LEVEL, row])
        margins[entry] = interval_scales * scale / math.sqrt(rests_on) * found[entry]
