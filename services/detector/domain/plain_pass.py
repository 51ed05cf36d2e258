"""A plain frame of healthy devices in one compiled call: nearly all of a job's frames are such.

The call does what :class:`ComputeWatch`, the kinds and the profile do one after the other, with the same functions, as
far as nothing is to be found. Where a device wants a decision it stops after its judgement, and the frame goes on the
way that others go.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numeric.compiled import compiled
from services.detector.domain.compute_watch import ComputeWatch
from services.detector.domain.device_frame import Judged, judge
from services.detector.domain.device_health import QUIET
from services.detector.domain.device_levels import HealthChange
from services.detector.domain.frame_layout import FrameLayout
from services.detector.domain.frame_table import EXPECTED, LOG_RATIO, SECONDS, TOKENS, WALLS, FrameTable
from services.detector.domain.job_profile import NUM_COLUMNS, JobProfile, priced_by, taken
from services.detector.domain.kind import Passed
from services.detector.domain.kind_board import KindBoard
from services.detector.domain.kinds.jitter import DEVICES_FOR_BODY, EVERY, SMALLEST_EXCESS, may_stand_out
from services.detector.domain.kinds.periodic_pause import PeriodicPause, compare
from services.detector.domain.kinds.sequence_imbalance import NUM_COLUMNS as COLUMNS_OF_LOST
from services.detector.domain.kinds.sequence_imbalance import SequenceImbalance, lost
from services.detector.domain.kinds.stage_imbalance import StageImbalance, load_of
from services.detector.domain.least_squares import Learned
from services.detector.domain.observation import FrameObservation
from services.detector.domain.workload import foretell, learn_plainly

Floats = npt.NDArray[np.float64]
Residuals = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

_NOTHING: Floats = np.zeros((0, 0))


class Outcome(NamedTuple):
    """What a pass over a frame found.

    Attributes:
        changes: Whose throughput changed.
        expected_seconds: What the work of each entry should take.
        passed: What it tells kinds; None where kinds and profile have still to see the frame.
        iteration: What :func:`taken` returned, for the profile to take where ``passed`` is there.
    """

    changes: list[HealthChange]
    expected_seconds: Floats
    passed: Passed | None
    iteration: tuple[float, float]


class PlainPass:
    """Takes plain frames for those who watch a job.

    Args:
        compute: Who watches devices.
        kinds: Who watches for kinds.
        profile: What iterations are made of.
    """

    __slots__ = ("_compute", "_loads", "_lost", "_pauses", "_profile")

    def __init__(self, compute: ComputeWatch, kinds: KindBoard, profile: JobProfile) -> None:
        self._compute, self._profile = compute, profile
        self._pauses = kinds.watch(PeriodicPause)
        self._lost, self._loads = kinds.watch(SequenceImbalance), kinds.watch(StageImbalance)

    def over(self, frame: FrameObservation, table: FrameTable, layout: FrameLayout, rows: Ints) -> Outcome:
        """Takes a frame without marks, all entries of which count, once frames were learned.

        Args:
            frame: The frame.
            table: Its table.
            layout: Its layout.
            rows: Row of each entry.
        """
        health, expectation, profile = self._compute.health, self._compute.expectation, self._profile
        bank, numbers = health.bank, table.numbers
        limit, memory, few = health.begin(rows, layout.work_keys)
        moments, scores, ridges, reluctant, weights = expectation.model.insides()
        replicas, cells, grid = self._lost.replicas_of(layout), self._loads.cells_of(layout), profile.grid_of(layout)
        loads, compares = self._loads.recent, cells.comparable and not self._loads.is_told
        marks, residuals = np.empty((2, len(rows)), dtype=np.bool_), np.empty(len(rows))
        judged, apart, learned, price, shown, of_kinds, found = _pass_over(
            numbers,
            expectation.least,
            moments,
            scores,
            ridges,
            reluctant,
            weights,
            # Where the noise is found anew, it says what is learned from.
            -1.0 if health.is_noise_due else self._compute.reach,
            bank.numbers,
            bank.counts,
            bank.num_in_sums,
            bank.flags,
            rows,
            bank.is_everyone(rows),
            bank.push(frame.iteration),
            health.noise.scale,
            health.noise.freedom,
            health.usual_centre,
            limit,
            memory,
            few,
            residuals,
            marks,
            frame.iteration,
            self._pauses.walls.kept,
            replicas.of,
            replicas.counts,
            self._lost.recent.prepare(COLUMNS_OF_LOST) if replicas.even else _NOTHING,
            self._lost.recent.next_place,
            cells.divisors,
            cells.of,
            cells.counts,
            loads.prepare(cells.num_stages) if compares else _NOTHING,
            loads.next_place,
            grid.shares,
            priced_by(layout),
            grid.cells,
            grid.num_stages,
            grid.counts,
            grid.rounds,
            grid.borders,
            profile.recent.prepare(NUM_COLUMNS),
            profile.recent.stop,
            profile.num_alike_with_next,
        )
        changes = health.conclude(rows, judged, residuals, marks)
        if learned[0]:
            expectation.take(learned, price)
        else:
            self._compute.learn(numbers, rows, None, numbers[EXPECTED], numbers[LOG_RATIO], apart)
        passed = None
        if not (judged[3] or judged[5] or judged[6]):
            stands_out, window_stands_out = shown
            wall, is_long, part, heaviest, load = of_kinds
            passed = Passed(
                frame=frame,
                ranges=table.ranges,
                data_share=table.data_share,
                stands_out=stands_out,
                window_stands_out=window_stands_out,
                wall_log=wall,
                is_long=is_long,
                lost=part,
                heaviest=heaviest,
                load=load,
            )
        return Outcome(changes, numbers[EXPECTED], passed, found)


@compiled
def _pass_over(
    table: Floats,
    least: float,
    moments: Floats,
    scores: tuple[float, float, float],
    ridges: Floats,
    reluctant: int,
    weights: Floats,
    reach: float,
    numbers: Floats,
    counts: Counts,
    ages: Counts,
    flags: Bools,
    rows: Ints,
    in_order: bool,
    window: Residuals,
    noise_scale: float,
    freedom: float,
    usual: float,
    limit: float,
    memory: int,
    few: bool,
    residuals: Floats,
    marks: Bools,
    iteration: int,
    walls: Floats,
    replica_of: Ints,
    replica_counts: Floats,
    losses: Floats,
    place_of_lost: tuple[int, int],
    divisors: Floats,
    cells: Ints,
    cell_counts: Floats,
    loads: Floats,
    place_of_load: tuple[int, int],
    shares: Floats,
    priced: Bools,
    grid_cells: Places,
    num_stages: int,
    grid_counts: Floats,
    rounds: Floats,
    borders: Floats,
    profile: Floats,
    place_in_profile: int,
    num_alike: int,
) -> tuple[
    Judged, float, Learned, float, tuple[bool, bool], tuple[float, bool, float, int, float], tuple[float, float]
]:
    """Foretells, judges and learns a frame, and goes on to kinds and profile where devices want nothing.

    Args:
        table: See :mod:`frame_table`; written.
        least: See :func:`foretell`.
        moments: See :func:`learn_plainly`, like the next four; written.
        scores: The same.
        ridges: The same.
        reluctant: The same.
        weights: The same; written.
        reach: How far apart log ratios may be for all entries to be learned; below 0 where none are learned here.
        numbers: See :func:`judge`, like all up to ``marks`` but for the next two.
        counts: The same.
        ages: The same.
        flags: The same.
        rows: The same.
        in_order: These are all rows there are, in order.
        window: The newest residuals, one row an iteration, one column a device; the last row is written.
        noise_scale: The same.
        freedom: The same.
        usual: The same.
        limit: The same.
        memory: The same.
        few: The same.
        residuals: The same.
        marks: The same.
        iteration: Of the frame.
        walls: See :func:`compare`.
        replica_of: See :func:`lost`, like the next three.
        replica_counts: The same.
        losses: Its buffer; nothing where replicas cannot be compared.
        place_of_lost: Its first row that counts and the one that is written.
        divisors: See :func:`load_of`, like the next four.
        cells: The same.
        cell_counts: The same.
        loads: Its buffer; nothing where nobody asks.
        place_of_load: Its first row that counts and the one that is written.
        shares: See :func:`taken`, like the rest.
        priced: The same.
        grid_cells: The same.
        num_stages: The same.
        grid_counts: The same.
        rounds: The same.
        borders: The same.
        profile: The same.
        place_in_profile: The same.
        num_alike: The same.

    Returns:
        What :func:`judge` returns; how far apart log ratios are; what :func:`learn_plainly` returns, nothing learned
        where it was not asked; what :class:`Passed` tells kinds from ``stands_out`` on; what :func:`taken` returns.
    """
    apart = foretell(table, weights, least)
    newest = window[len(window) - 1]
    quiet, log_ratios = QUIET * limit, table[LOG_RATIO]
    # fmt: off
    judged = judge(
        numbers, counts, ages, flags, rows, log_ratios, newest, noise_scale, freedom, usual, limit, quiet, memory, few,
        residuals, marks,
    )
    # fmt: on
    learned, price = (0, 0.0, 0.0, 0.0, 0.0), 0.0
    if judged[3] or judged[5] or judged[6]:
        return judged, apart, learned, price, (False, False), (0.0, False, -1.0, 0, -1.0), (0.0, 0.0)
    if apart < reach and judged[4] / limit < QUIET:
        learned, price = learn_plainly(table, moments, scores, ridges, reluctant, weights)
    shown = newest[rows]
    highest, wall, _, is_long = compare(shown, table[WALLS], table[EXPECTED], walls)
    stands_out = window_stands_out = False
    asks = iteration % EVERY == 0
    if asks or highest > SMALLEST_EXCESS:
        body = _flat(window, rows, max(len(rows) // DEVICES_FOR_BODY, 1))
        stands_out = highest > SMALLEST_EXCESS and may_stand_out(shown, body)
        if asks:
            every = window.reshape(-1) if in_order else _flat(window, rows, 1)
            window_stands_out = may_stand_out(every, body)
    part, heaviest, load = -1.0, 0, -1.0
    if losses.shape[1] and table[TOKENS].any():
        part = lost(table[EXPECTED], replica_of, replica_counts, iteration, losses, place_of_lost[0], place_of_lost[1])
    if loads.shape[1]:
        start, stop = place_of_load
        heaviest, load = load_of(table[SECONDS], divisors, cells, cell_counts, loads, start, stop)
    # fmt: off
    found = taken(
        table, shares, priced, grid_cells, num_stages, grid_counts, rounds, borders, profile, place_in_profile,
        num_alike,
    )
    # fmt: on
    of_kinds = wall, is_long, part, heaviest, load
    return judged, apart, learned, price, (stands_out, window_stands_out), of_kinds, found


@compiled
def _flat(window: Residuals, rows: Ints, step: int) -> Residuals:
    """The residuals of every so many of some rows, in any order."""
    some = rows[::step]
    found = np.empty(len(window) * len(some), dtype=window.dtype)
    for iteration in range(len(window)):
        for place in range(len(some)):
            found[iteration * len(some) + place] = window[iteration, some[place]]
    return found
