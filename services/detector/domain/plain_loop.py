"""Plain frames of healthy devices, one after the other, in one compiled call: nearly all of a job's frames are such.

It does what those who watch a job do frame by frame, with the same functions, as far as nothing is to be found. Where
it comes to a frame that wants a decision it stops, and the frame goes on the way that others go.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled
from evenkeel.services.detector.domain.bank_noise import renew_and_remember
from evenkeel.services.detector.domain.device_bank import WINDOW, begin_column
from evenkeel.services.detector.domain.device_frame import Judged, judge, throughputs
from evenkeel.services.detector.domain.device_health import NOISE_EVERY, QUIET
from evenkeel.services.detector.domain.frame_table import (
    DATA_SHARE,
    EXPECTED,
    GRADIENT_NORM,
    LOG_RATIO,
    LOSS,
    LOSSES,
    NORMS,
    SECONDS,
    TOKENS,
    WALLS,
    FrameBlock,
)
from evenkeel.services.detector.domain.job_profile import TRANSFER, taken, write_medians
from evenkeel.services.detector.domain.job_profile import WINDOW as PROFILED
from evenkeel.services.detector.domain.kinds.corruption import FEWEST_REPORTS, are_alike
from evenkeel.services.detector.domain.kinds.input_stall import WORTH_TELLING
from evenkeel.services.detector.domain.kinds.jitter import DEVICES_FOR_BODY, EVERY, SMALLEST_EXCESS, may_stand_out
from evenkeel.services.detector.domain.kinds.periodic_pause import compare
from evenkeel.services.detector.domain.kinds.sequence_imbalance import is_no_news as is_no_news_of_lost
from evenkeel.services.detector.domain.kinds.sequence_imbalance import lost
from evenkeel.services.detector.domain.kinds.stage_imbalance import is_no_news as is_no_news_of_load
from evenkeel.services.detector.domain.kinds.stage_imbalance import load_of
from evenkeel.services.detector.domain.level import INTERVAL_SCALES
from evenkeel.services.detector.domain.loss_watch import may_have_jumped
from evenkeel.services.detector.domain.middle import middle_of, put
from evenkeel.services.detector.domain.plain_groups import Devices, Grid, Kinds, Loop, Noises, Reported, Tellings
from evenkeel.services.detector.domain.rolling import move_on
from evenkeel.services.detector.domain.workload import Learning, foretell, learn_healthy, reach_of

Floats = npt.NDArray[np.float64]
Residuals = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

UNTOUCHED, JUDGED, PASSED, ALL = range(4)
"""How far the frame came that a loop stopped at: not begun; judged; worked out but not counted; none was left."""


def pass_over(
    block: FrameBlock,
    first: int,
    last: int,
    learns_last: bool,
    devices: Devices,
    noises: Noises,
    learning: Learning,
    loss: Reported,
    norm: Reported,
    kinds: Kinds,
    grid: Grid,
    tellings: Tellings,
) -> Loop:
    """Foretells, judges and learns frame by frame, counts what kinds count and what makes the profile.

    Args:
        block: The frames; expected seconds and log ratios are written.
        first: The first frame.
        last: The frame at which to stop in any case, if there are as many that are alike.
        learns_last: That one is learned, too.
        devices: What is known of devices; arrays are written, as in all that follow.
        noises: Their noise.
        learning: What work should take.
        loss: What was reported of the loss.
        norm: What was reported of the gradient norm.
        kinds: What kinds remember.
        grid: What iterations are made of.
        tellings: What profiles tell.
    """
    # Plain tuples go into compiled code and out of it in half the time that named ones take.
    found = _pass_over(
        block.numbers,
        block.looks,
        block.iterations,
        block.num_alike,
        first,
        last,
        learns_last,
        tuple(devices),
        tuple(noises),
        tuple(learning),
        tuple(loss),
        tuple(norm),
        tuple(kinds),
        tuple(grid),
        tuple(tellings),
    )
    return Loop(*found)


@compiled
def _pass_over(
    tables: Floats,
    looks: Floats,
    iterations: Ints,
    count: int,
    first: int,
    last: int,
    learns_last: bool,
    of_devices: tuple[Any, ...],
    of_noises: tuple[Any, ...],
    of_learning: tuple[Any, ...],
    of_loss: tuple[Any, ...],
    of_norm: tuple[Any, ...],
    of_kinds: tuple[Any, ...],
    of_grid: tuple[Any, ...],
    of_tellings: tuple[Any, ...],
) -> tuple[Any, ...]:
    """See :func:`pass_over`."""
    devices, learning, grid = Devices(*of_devices), Learning(*of_learning), Grid(*of_grid)
    loss, norm, kinds = Reported(*of_loss), Reported(*of_norm), Kinds(*of_kinds)
    noises, tellings = Noises(*of_noises), Tellings(*of_tellings)
    noise, reach = noises.now, reach_of(noises.now[0])
    judged: Judged = (devices.usual, -1, -1, 0, 0.0, 0, 0)
    usual, window_stop, apart = devices.usual, devices.stop, 0.0
    loss_ring, num_losses, oldest_loss = loss.newest
    norm_ring, num_norms, oldest_norm = norm.newest
    losses_added = norms_added = num_inputs = 0
    wall_ring, num_walls, oldest_wall = kinds.walls
    losses, most_lost, lost_stop, num_lost = kinds.losses
    loads, most_loads, loads_stop, num_loads = kinds.loads
    profile, most_rows, profile_stop, num_rows = grid.recent
    num_alike, iteration_seconds = grid.num_alike, grid.iteration_seconds
    stands_out = window_stands_out = is_long = False
    wall_log, part, heaviest, load, found = 0.0, -1.0, 0, -1.0, (0.0, 0.0)
    rows, wide, place, stopped = devices.rows, devices.wide, first, ALL
    while place < count:
        table, look, iteration = tables[place], looks[place], iterations[place]
        told, shown = _value_of(table[LOSS], look[LOSSES:NORMS]), _value_of(table[GRADIENT_NORM], look[NORMS:])
        if _is_news(look[LOSSES:NORMS], told, loss_ring, num_losses, loss.ratio) or _is_news(
            look[NORMS:], shown, norm_ring, num_norms, norm.ratio
        ):
            stopped = UNTOUCHED
            break
        if look[LOSSES] > 0:
            num_losses, oldest_loss = put(loss_ring, num_losses, oldest_loss, told)
            losses_added += 1
        if look[NORMS] > 0:
            num_norms, oldest_norm = put(norm_ring, num_norms, oldest_norm, shown)
            norms_added += 1
        apart = foretell(table, learning.weights, learning.seconds_per_flop)
        window_stop = begin_column(wide, devices.iterations, window_stop, iteration)
        window = wide[window_stop - WINDOW : window_stop]
        newest = window[WINDOW - 1]
        judged = judge(
            devices.numbers,
            devices.counts,
            devices.ages,
            devices.flags,
            rows,
            table[LOG_RATIO],
            newest,
            noise[0],
            noise[1],
            usual,
            devices.limit,
            QUIET * devices.limit,
            devices.memory,
            devices.few,
            devices.residuals,
            devices.marks,
        )
        usual, one, other, num_waiting, highest, num_decided, num_ill = judged
        if num_waiting or num_decided or num_ill:
            stopped = JUDGED
            break
        highest /= devices.limit
        num_frames = noises.num_frames + place - first + 1
        if noises.is_renewed and num_frames % NOISE_EVERY == 0:
            noise = renew_and_remember(
                window,
                devices.numbers,
                devices.counts,
                devices.ages,
                devices.flags,
                devices.limit,
                one,
                other,
                highest if devices.in_order else math.inf,
                num_frames > WINDOW,
                noise,
                noises.most_alike,
                NOISE_EVERY,
                noises.squares,
                noises.counts,
            )
            reach = reach_of(noise[0])
        if place < last or learns_last:
            learning = learn_healthy(table, devices.marks[1], highest < QUIET, apart, reach, learning)
        residuals = newest[rows]
        tallest, wall_log, _, is_long = compare(residuals, table[WALLS], table[EXPECTED], wall_ring[:num_walls])
        stands_out = window_stands_out = False
        asks = iteration % EVERY == 0
        if asks or tallest > SMALLEST_EXCESS:
            body = _flat(window, rows, max(len(rows) // DEVICES_FOR_BODY, 1))
            stands_out = tallest > SMALLEST_EXCESS and may_stand_out(residuals, body)
            if asks:
                every = window.reshape(-1) if devices.in_order else _flat(window, rows, 1)
                window_stands_out = may_stand_out(every, body)
        part, heaviest, load = -1.0, 0, -1.0
        if losses.shape[1] and table[TOKENS].any():
            begin = lost_stop - min(num_lost, most_lost - 1)
            part = lost(table[EXPECTED], kinds.replica_of, kinds.replica_counts, iteration, losses, begin, lost_stop)
        if loads.shape[1]:
            begin = loads_stop - min(num_loads, most_loads - 1)
            heaviest, load = load_of(
                table[SECONDS], kinds.divisors, kinds.cells, kinds.cell_counts, loads, begin, loads_stop
            )
        alike_with_next = min(num_alike + 1, PROFILED)
        found = taken(
            table,
            grid.shares,
            grid.priced,
            grid.cells,
            grid.num_stages,
            grid.counts,
            grid.rounds,
            grid.borders,
            profile,
            profile_stop,
            alike_with_next,
        )
        is_no_news = (
            kinds.is_calm
            and not (stands_out or window_stands_out or is_long)
            and look[DATA_SHARE] <= WORTH_TELLING
            and len(wall_ring) > 0
            and not (highest >= devices.ask_at and iteration >= devices.asks_from)
            and _are_alike(look[LOSSES:NORMS], loss.alike)
            and _are_alike(look[NORMS:], norm.alike)
            and (part < 0.0 or is_no_news_of_lost(part, min(num_lost + 1, most_lost), kinds.lost_is_told))
            and (load < 0.0 or (num_loads > 0 and is_no_news_of_load(load, min(num_loads + 1, most_loads))))
        )
        if place == last or not is_no_news:
            stopped = PASSED
            break
        _count(table[LOSS], look[LOSSES], loss.alike)
        _count(table[GRADIENT_NORM], look[NORMS], norm.alike)
        num_inputs += look[DATA_SHARE] >= 0.0
        num_walls, oldest_wall = put(wall_ring, num_walls, oldest_wall, wall_log)
        if part >= 0.0:
            lost_stop, num_lost = move_on(losses, most_lost, lost_stop, num_lost)
        if load >= 0.0:
            loads_stop, num_loads = move_on(loads, most_loads, loads_stop, num_loads)
        if grid.transfer_instead >= 0.0:
            profile[profile_stop, TRANSFER] = grid.transfer_instead
        tellings.walls[place], iteration_seconds = found
        num_alike = alike_with_next
        profile_stop, num_rows = move_on(profile, most_rows, profile_stop, num_rows)
        if place >= tellings.first and (place - tellings.first) % tellings.every == 0:
            at = (place - tellings.first) // tellings.every
            write_medians(profile[profile_stop - num_rows : profile_stop], num_alike, tellings.medians[at])
            throughputs(
                devices.numbers,
                devices.counts,
                rows,
                noise[0],
                INTERVAL_SCALES,
                WINDOW,
                tellings.throughputs[at, 0],
                tellings.throughputs[at, 1],
            )
        place += 1
    return (
        place - first,
        stopped,
        judged,
        apart,
        stands_out,
        window_stands_out,
        wall_log,
        is_long,
        part,
        heaviest,
        load,
        found,
        noise,
        (learning.spread, learning.num_scored, learning.half_width, learning.mass, learning.seconds_per_flop),
        window_stop,
        (num_losses, oldest_loss, losses_added),
        (num_norms, oldest_norm, norms_added),
        (num_walls, oldest_wall),
        (lost_stop, num_lost),
        (loads_stop, num_loads),
        (profile_stop, num_rows, num_alike, iteration_seconds),
        num_inputs,
    )


@compiled
def _value_of(values: Floats, known: Floats) -> float:
    """What a frame tells of one quantity: the median of what is reported, if all of it is finite; else nothing.

    Args:
        values: One an entry, NaN where none was reported.
        known: Their range, see :func:`range_of`.
    """
    if known[0] == 0 or not known[1]:
        return 0.0
    return float(known[2]) if known[2] == known[3] else middle_of(values[~np.isnan(values)])


@compiled
def _is_news(known: Floats, value: float, ring: Floats, count: int, ratio: float) -> bool:
    """Whether somebody else has to see what a frame tells of one quantity."""
    if known[0] == 0:
        return False
    return not known[1] or len(ring) == 0 or may_have_jumped(ring, count, ratio, value)


@compiled
def _are_alike(known: Floats, alike: Floats) -> bool:
    """Whether all report the same, as they always did, or nobody would know whose number is wrong."""
    if known[0] < FEWEST_REPORTS:
        return True
    return alike.shape[1] > 0 and are_alike(bool(known[1]), known[2], known[3])


@compiled
def _count(values: Floats, num_reported: float, alike: Floats) -> None:
    """Counts who reported something that is alike."""
    if num_reported >= FEWEST_REPORTS:
        for entry in range(len(values)):
            alike[0, entry] += not math.isnan(values[entry])


@compiled
def _flat(window: Residuals, rows: Ints, step: int) -> Residuals:
    """The residuals of every so many of some rows, in any order."""
    some = rows[::step]
    found = np.empty(len(window) * len(some), dtype=window.dtype)
    for iteration in range(len(window)):
        for place in range(len(some)):
            found[iteration * len(some) + place] = window[iteration, some[place]]
    return found
