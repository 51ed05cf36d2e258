"""What a job's iterations are made of, from recent plain frames: the numbers a planner prices layouts with."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from numeric.compiled import compiled
from services.detector.domain.frame_layout import FrameLayout
from services.detector.domain.middle import median, middle_of
from services.detector.domain.observation import FrameObservation
from services.detector.domain.pipeline_grid import PipelineGrid, between_ranks
from services.detector.domain.recent_iterations import RecentIterations
from services.detector.domain.rolling import RollingRows
from services.detector.domain.verdict import Profile, RankThroughput

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int32]

_WINDOW = 16
_TENSOR, _GRADIENT, _VOTE = 0, 2, 3
_OF_SPEEDS = ("wall", "transfer")
"""What hangs on how fast all devices are; the rest is told by the healthy ones."""
_COLUMNS = ("wall", "seconds_per_flop", "tokens", "squares", "fixed", "transfer", "exchange")
_WALL, _TRANSFER = _COLUMNS.index("wall"), _COLUMNS.index("transfer")
_EVERYBODY: Bools = np.zeros(0, dtype=np.bool_)


class JobProfile:
    """Medians over the last plain frames of the epoch in force."""

    def __init__(self) -> None:
        self._epoch = -1
        self._recent = RollingRows(_WINDOW)
        self._iterations = RecentIterations()
        self._num_alike = 0
        self._iteration_seconds = 0.0
        self._transfer_before = 0.0
        self._grid: PipelineGrid | None = None

    @property
    def epoch(self) -> int:
        """Epoch of the newest frame; -1 before the first."""
        return self._epoch

    @property
    def num_frames(self) -> int:
        """Frames of the epoch in force behind the medians."""
        return len(self._recent)

    @property
    def iteration_seconds(self) -> float:
        """Usual wall seconds of an iteration; of the epoch before while there is none of the new one; 0 at first."""
        return self._iteration_seconds

    @property
    def seconds_per_flop(self) -> float:
        """Recent median of a healthy device; 0 before the first plain frame of the epoch."""
        return self._median("seconds_per_flop") if len(self._recent) else 0.0

    def begin_epoch(self, epoch: int) -> None:
        """The layout changed: what iterations took before no longer counts."""
        self._epoch = epoch
        if len(self._recent):
            self._transfer_before = self._median("transfer")
        self._recent.clear()
        self._iterations.clear()
        self._num_alike = 0

    def devices_changed(self, iteration: int, num_iterations: int) -> None:
        """Devices are not as fast as before: only what ran since tells what the layout takes now.

        Args:
            iteration: First one that showed it.
            num_iterations: Newest ones that did.
        """
        self._num_alike = min(num_iterations, len(self._recent))
        self._iteration_seconds = median(self._recent.rows[-self._num_alike :, _WALL])
        self._iterations.forget_before(iteration)

    def observe(
        self, frame: FrameObservation, layout: FrameLayout, *, usable: Bools | None, healthy: Bools | None
    ) -> None:
        """Takes one plain frame.

        Args:
            frame: The frame.
            layout: Its layout.
            usable: Entries that computed under the epoch in force; None for all.
            healthy: Entries on healthy devices; None for all.
        """
        seconds, waits, walls, others = _times(frame)
        work = frame.token_flops, frame.square_flops, frame.tokens, frame.sums_of_squares
        if usable is not None:
            layout = FrameLayout(frame, usable)
            seconds, waits, walls, others = seconds[usable], waits[usable], walls[usable], others[usable]
            work = work[0][usable], work[1][usable], work[2][usable], work[3][usable]
            healthy = None if healthy is None else healthy[usable]
        grid = self._grid
        if grid is None or grid.layout is not layout:
            grid = self._grid = PipelineGrid(layout)
        priced = _priced(layout, healthy)
        self._num_alike = min(self._num_alike + 1, _WINDOW)
        rows = self._recent.begin(len(_COLUMNS))
        wall, self._iteration_seconds = _taken(
            seconds,
            waits,
            walls,
            others,
            *work,
            grid.shares,
            _EVERYBODY if priced is None else priced,
            grid.cells,
            grid.num_stages,
            grid.counts,
            grid.rounds,
            grid.borders,
            rows,
            self._num_alike,
        )
        # Where stages of a replica ran different numbers of micro-batches, some were routed, and pipelines stall for
        # one another, which is no transfer: what was found in the epoch before stands then, or what the others tell.
        if not grid.all_even and grid.is_piped and (self._transfer_before > 0.0 or not grid.borders.any()):
            rows[-1, _TRANSFER] = self._transfer_before
        if usable is None and not frame.missing_ranks:
            self._iterations.append(frame.iteration, wall, frame.micro_batches)

    def profile(self, job_id: str, iteration: int, throughputs: Sequence[RankThroughput]) -> Profile | None:
        """The profile now; None before the first plain frame of the epoch."""
        if not len(self._recent):
            return None
        _, seconds_per_flop, tokens, squares, fixed, _, exchange = of_layout = self._medians(_WINDOW)
        of_speeds = of_layout if self._num_alike >= len(self._recent) else self._medians(self._num_alike)
        return Profile(
            job_id=job_id,
            iteration=iteration,
            epoch=self._epoch,
            seconds_per_flop=seconds_per_flop,
            tokens=tokens,
            sum_of_squares=squares,
            fixed_seconds=fixed,
            transfer_seconds=of_speeds[_TRANSFER],
            iteration_seconds=of_speeds[_WALL],
            throughputs=throughputs,
            exchange_seconds=exchange,
            recent=self._iterations.iterations(),
        )

    def _medians(self, count: int) -> list[float]:
        """Of each column, over the newest so many frames."""
        found = np.empty(len(_COLUMNS))
        _middles(self._recent.rows[-count:], found)
        medians: list[float] = found.tolist()
        return medians

    def _median(self, column: str) -> float:
        count = self._num_alike if column in _OF_SPEEDS else _WINDOW
        return median(self._recent.rows[-count:, _COLUMNS.index(column)])

    def to_state(self) -> dict[str, Any]:
        """Everything remembered, as plain values."""
        return {
            "epoch": self._epoch,
            "recent": self._recent.rows.tolist(),
            "iterations": self._iterations.to_state(),
            "iteration_seconds": self._iteration_seconds,
            "transfer_before": self._transfer_before,
            "num_alike": self._num_alike,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what ``to_state`` gave, also that of a version that knew fewer columns."""
        recent = [row for row in state["recent"] if len(row) == len(_COLUMNS)]
        self._epoch = state["epoch"]
        self._recent = RollingRows(_WINDOW, recent)
        self._iterations.restore(state.get("iterations", []))
        self._num_alike = min(state.get("num_alike", _WINDOW), len(recent))
        self._iteration_seconds = state["iteration_seconds"]
        self._transfer_before = state.get("transfer_before", 0.0)


@compiled
def _middles(rows: Floats, found: Floats) -> None:
    """Writes the median of each column."""
    for column in range(len(found)):
        found[column] = middle_of(rows[:, column].copy())


def _times(frame: FrameObservation) -> tuple[Floats, Floats, Floats, Floats]:
    return frame.compute_seconds, frame.wait_seconds, frame.wall_seconds, frame.other_seconds


def _priced(layout: FrameLayout, healthy: Bools | None) -> Bools | None:
    """Entries whose operations and seconds make the price: of healthy devices, if there are any; None for all."""
    if healthy is None and layout.all_priced:
        return None
    priced = layout.has_flops.copy() if healthy is None else layout.has_flops & healthy
    return priced if np.count_nonzero(priced) else layout.has_flops.copy()


@compiled
def _taken(
    seconds: Floats,
    waits: Floats,
    walls: Floats,
    others: Floats,
    token_flops: Floats,
    square_flops: Floats,
    tokens: Floats,
    squares: Floats,
    shares: Floats,
    priced: Bools,
    cells: Places,
    num_stages: int,
    counts: Floats,
    rounds: Floats,
    borders: Floats,
    rows: Floats,
    num_alike: int,
) -> tuple[float, float]:
    """Writes what one frame adds to a profile.

    Args:
        seconds: Compute seconds; one entry a rank, as in all others up to ``cells``.
        waits: Of each: tensor, pipeline, gradient, vote.
        walls: Seconds of the whole iteration.
        others: Seconds of optimizer and input.
        token_flops: Operations that grow with tokens.
        square_flops: Operations that grow with squared lengths.
        tokens: Tokens.
        squares: Sums of squared lengths.
        shares: What of an entry's tokens a micro-batch of the job has.
        priced: Which entries make the price of an operation; nothing for all.
        cells: This and the next four are those of :class:`PipelineGrid`.
        num_stages: Stages.
        counts: Micro-batches; one entry a rank.
        rounds: One a replica.
        borders: One a replica.
        rows: One a frame, ``_COLUMNS``; the last one is written.
        num_alike: Newest frames in which devices were as fast as now.

    Returns:
        Seconds of the slowest rank, and their median over these frames.
    """
    wall, gradient, vote = walls[0], waits[0, _GRADIENT], waits[0, _VOTE]
    flops = computed = token_sum = square_sum = 0.0
    for entry in range(len(seconds)):
        wall = max(wall, walls[entry])
        # The last to arrive waits only for the exchange itself: the least wait is the cost without the waiting.
        gradient, vote = min(gradient, waits[entry, _GRADIENT]), min(vote, waits[entry, _VOTE])
        token_sum += tokens[entry] * shares[entry]
        square_sum += squares[entry] * shares[entry]
        if not len(priced) or priced[entry]:
            computed += seconds[entry]
            flops += token_flops[entry] + square_flops[entry]
    fixed = middle_of(others.copy()) + gradient + vote
    pipelines, transfer, exchanged = between_ranks(
        seconds, waits[:, _TENSOR], walls, cells, num_stages, counts, rounds, borders, fixed
    )
    row = rows[len(rows) - 1]
    row[0], row[1] = wall, computed / flops if flops > 0.0 else 0.0
    row[2], row[3], row[4], row[5], row[6] = token_sum, square_sum, wall - pipelines, transfer, exchanged
    return wall, middle_of(rows[len(rows) - num_alike :, _WALL].copy())
