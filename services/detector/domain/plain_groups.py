"""What plain frames are judged with and what comes of it: the groups in which one compiled call takes and returns them.

Arrays are those of who remembers, and are written in place; all else comes back in :class:`Loop`.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenkeel.services.detector.domain.device_frame import Judged

Floats = npt.NDArray[np.float64]
Residuals = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

Ring = tuple[Floats, int, int]
"""Where numbers are kept, their count, and the oldest: see :class:`RecentValues`."""
Rolled = tuple[Floats, int, int, int]
"""A buffer, how many of its rows are kept, where the next goes, how many there are: see :class:`RollingRows`."""


class Devices(NamedTuple):
    """What :func:`judge` takes, and the windows.

    Attributes:
        numbers: See there, like all up to ``marks``.
        counts: The same.
        ages: The same.
        flags: The same.
        rows: The same.
        usual: The same.
        limit: The same.
        memory: The same.
        few: The same.
        residuals: The same.
        marks: The same.
        in_order: ``rows`` are all rows there are, in order.
        wide: See :func:`begin_column`, like the next two.
        iterations: The same.
        stop: The same.
        asks_from: First iteration in which a suspect may be asked.
        ask_at: Share of the way to a verdict that makes a suspect.
    """

    numbers: Floats
    counts: Counts
    ages: Counts
    flags: Bools
    rows: Ints
    usual: float
    limit: float
    memory: int
    few: bool
    residuals: Floats
    marks: Bools
    in_order: bool
    wide: Residuals
    iterations: Counts
    stop: int
    asks_from: int
    ask_at: float


class Noises(NamedTuple):
    """The noise of the job, and what it is found anew from.

    Attributes:
        now: Scale, freedom and correlation.
        is_renewed: Here; else there is a stop where it is due.
        num_frames: Frames that devices were judged in before.
        most_alike: See :func:`renew_and_remember`, like the next two.
        squares: The same.
        counts: The same.
    """

    now: tuple[float, float, float]
    is_renewed: bool
    num_frames: int
    most_alike: float
    squares: Floats
    counts: Floats


class Reported(NamedTuple):
    """What ranks reported of the loss, or of the gradient norm.

    Attributes:
        newest: The newest values; its array is empty before the first.
        ratio: See :func:`may_have_jumped`.
        alike: Of values that were always the same for all, how often each entry reported one, in the first row; of no
            entries where they were not.
    """

    newest: Ring
    ratio: float
    alike: Floats


class Kinds(NamedTuple):
    """What kinds remember.

    Attributes:
        is_calm: None of those that the loop knows nothing of has to see each frame.
        walls: See :func:`compare`.
        replica_of: See :func:`lost`, like the next.
        replica_counts: The same.
        losses: Its buffer, with no columns where replicas cannot be compared.
        lost_is_told: That losses are too high.
        divisors: See :func:`load_of`, like the next two.
        cells: The same.
        cell_counts: The same.
        loads: Its buffer, with no columns where nobody asks.
    """

    is_calm: bool
    walls: Ring
    replica_of: Ints
    replica_counts: Floats
    losses: Rolled
    lost_is_told: bool
    divisors: Floats
    cells: Ints
    cell_counts: Floats
    loads: Rolled


class Grid(NamedTuple):
    """What :func:`taken` takes, and what it has to say of frames before.

    Attributes:
        shares: See there, like all up to ``borders``.
        priced: The same.
        cells: The same.
        num_stages: The same.
        counts: The same.
        rounds: The same.
        borders: The same.
        recent: Its buffer.
        num_alike: Newest frames in which devices were as fast as now.
        iteration_seconds: What it returned last.
        transfer_instead: What stands in place of the seconds of a stage border; below 0 for nothing.
    """

    shares: Floats
    priced: Bools
    cells: Places
    num_stages: int
    counts: Floats
    rounds: Floats
    borders: Floats
    recent: Rolled
    num_alike: int
    iteration_seconds: float
    transfer_instead: float


class Tellings(NamedTuple):
    """Where profiles are told of.

    Attributes:
        first: The first frame with a profile.
        every: After so many frames there is another.
        walls: Of each frame, seconds of the slowest rank; written for those that are whole.
        medians: Of each profile, see :func:`write_medians`; written.
        throughputs: Of each profile, throughputs and their margins, one an entry; written.
    """

    first: int
    every: int
    walls: Floats
    medians: Floats
    throughputs: Floats


class Loop(NamedTuple):
    """What came of some frames.

    Attributes:
        num_whole: The first so many are over and done with.
        stopped: How far the next one came.
        judged: What :func:`judge` returned of the last one that it saw.
        apart: How far apart log ratios were at most, in that.
        stands_out: Of a frame that is ``PASSED``, what :class:`Passed` tells kinds, like all up to ``load``.
        window_stands_out: The same.
        wall_log: The same.
        is_long: The same.
        lost: The same.
        heaviest: The same.
        load: The same.
        found: Of such a frame, what :func:`taken` returned.
        noise: Scale, freedom and correlation.
        learned: What is known now of :class:`Learning`, from ``spread`` on.
        window_stop: Where windows end now.
        loss: Count and oldest one of the newest losses, and how many were added.
        gradient_norm: The same of norms.
        walls: Count and oldest one.
        losses: Where the next row goes, and how many there are.
        loads: The same.
        profile: The same, how many frames devices were as fast as now, and the usual seconds of an iteration.
        num_inputs: In how many of the whole ones somebody knew what input took.
    """

    num_whole: int
    stopped: int
    judged: Judged
    apart: float
    stands_out: bool
    window_stands_out: bool
    wall_log: float
    is_long: bool
    lost: float
    heaviest: int
    load: float
    found: tuple[float, float]
    noise: tuple[float, float, float]
    learned: tuple[float, float, float, float, float]
    window_stop: int
    loss: tuple[int, int, int]
    gradient_norm: tuple[int, int, int]
    walls: tuple[int, int]
    losses: tuple[int, int]
    loads: tuple[int, int]
    profile: tuple[int, int, int, float]
    num_inputs: int
