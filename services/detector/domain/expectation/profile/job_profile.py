"""What a job's iterations are made of, from recent plain frames: the numbers a planner prices layouts with."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenkeel.numeric.compiled import compiled
from evenkeel.services.detector.domain.expectation.profile.grid import PipelineGrid, between_ranks
from evenkeel.services.detector.domain.expectation.profile.profile import Profile, RankThroughput
from evenkeel.services.detector.domain.expectation.profile.recent import RecentIterations
from evenkeel.services.detector.domain.frames.layout import FrameLayout
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.frames.table import (
    FLOPS,
    GRADIENT_WAIT,
    OTHERS,
    SECONDS,
    SQUARES,
    TENSOR_WAIT,
    TOKENS,
    VOTE_WAIT,
    WALLS,
)
from evenkeel.services.detector.domain.memory.middle import median, middle_of
from evenkeel.services.detector.domain.memory.rolling import RollingRows
from evenkeel.services.detector.domain.memory.state import DERIVED

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int32]

WINDOW = 16
_OF_SPEEDS = ("wall", "transfer")
"""What hangs on how fast all devices are; the rest is told by the healthy ones."""
_COLUMNS = ("wall", "seconds_per_flop", "tokens", "squares", "fixed", "transfer", "exchange", "gradient")
_NUM_COLUMNS = len(_COLUMNS)
_WALL, _TRANSFER = _COLUMNS.index("wall"), _COLUMNS.index("transfer")
_EVERYBODY: Bools = np.zeros(0, dtype=np.bool_)


@dataclass(slots=True, eq=False)
class JobProfile:
    """Medians over the last plain frames of the epoch in force."""

    _epoch: int = -1
    recent: RollingRows = field(default_factory=lambda: RollingRows(WINDOW))
    _iterations: RecentIterations = field(default_factory=RecentIterations)
    _num_alike: int = 0
    _iteration_seconds: float = 0.0
    _transfer_before: float = 0.0
    _grid: PipelineGrid | None = field(default=None, metadata=DERIVED)

    @property
    def epoch(self) -> int:
        """Epoch of the newest frame; -1 before the first."""
        return self._epoch

    @property
    def num_frames(self) -> int:
        """Frames of the epoch in force behind the medians."""
        return len(self.recent)

    @property
    def iteration_seconds(self) -> float:
        """Usual wall seconds of an iteration; of the epoch before while there is none of the new one; 0 at first."""
        return self._iteration_seconds

    @property
    def seconds_per_flop(self) -> float:
        """Recent median of a healthy device; 0 before the first plain frame of the epoch."""
        return self._median("seconds_per_flop") if len(self.recent) else 0.0

    def begin_epoch(self, epoch: int) -> None:
        """The layout changed: what iterations took before no longer counts."""
        self._epoch = epoch
        if len(self.recent):
            self._transfer_before = self._median("transfer")
        self.recent.clear()
        self._iterations.clear()
        self._num_alike = 0

    def devices_changed(self, iteration: int, num_iterations: int) -> None:
        """Devices are not as fast as before: only what ran since tells what the layout takes now.

        Args:
            iteration: First one that showed it.
            num_iterations: Newest ones that did.
        """
        self._num_alike = min(num_iterations, len(self.recent))
        self._iteration_seconds = median(self.recent.rows[-self._num_alike :, _WALL])
        self._iterations.forget_before(iteration)

    def observe(
        self,
        frame: FrameObservation,
        table: Floats,
        layout: FrameLayout,
        *,
        usable: Bools | None,
        healthy: Bools | None,
    ) -> None:
        """Takes one plain frame.

        Args:
            frame: The frame.
            table: Its table, see :mod:`frame_table`.
            layout: Its layout.
            usable: Entries that computed under the epoch in force; None for all.
            healthy: Entries on healthy devices; None for all.
        """
        if usable is not None:
            layout, table = FrameLayout(frame, usable), table.compress(usable, axis=1)
            healthy = None if healthy is None else healthy[usable]
        grid = self._grid_of(layout)
        found = _taken(
            table,
            grid.shares,
            _priced_by(layout, healthy),
            grid.cells,
            grid.num_stages,
            grid.counts,
            grid.rounds,
            grid.borders,
            self.recent.prepare(_NUM_COLUMNS),
            self.recent.stop,
            num_alike := min(self._num_alike + 1, WINDOW),
        )
        self._num_alike = num_alike
        wall, self._iteration_seconds = found
        rows = self.recent.take()
        # Where stages of a replica ran different numbers of micro-batches, some were routed, and pipelines stall for
        # one another, which is no transfer: what was found in the epoch before stands then, or what the others tell.
        uneven = not grid.all_even and grid.is_piped
        if uneven and (self._transfer_before > 0.0 or not grid.borders.any()):
            rows[-1, _TRANSFER] = self._transfer_before
        if usable is None and not frame.missing_ranks:
            self._iterations.append(frame.iteration, wall, frame.micro_batches)

    def _grid_of(self, layout: FrameLayout) -> PipelineGrid:
        """Who shares a replica and a stage under a layout."""
        if self._grid is None or self._grid.layout is not layout:
            self._grid = PipelineGrid(layout)
        return self._grid

    def profile(self, job_id: str, iteration: int, throughputs: Sequence[RankThroughput]) -> Profile | None:
        """The profile now; None before the first plain frame of the epoch."""
        if not len(self.recent):
            return None
        medians = np.empty((2, _NUM_COLUMNS))
        _write_medians(self.recent.rows, self._num_alike, medians)
        (_, seconds_per_flop, tokens, squares, fixed, _, exchange, gradient), of_speeds = medians.tolist()
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
            gradient_seconds=gradient,
            recent=self._iterations.iterations(),
        )

    def _median(self, column: str) -> float:
        count = self._num_alike if column in _OF_SPEEDS else WINDOW
        return median(self.recent.rows[-count:, _COLUMNS.index(column)])


@compiled
def _write_medians(rows: Floats, num_alike: int, found: Floats) -> None:
    """Writes what a profile tells.

    Args:
        rows: One row a frame, ``_COLUMNS``, oldest first.
        num_alike: Newest frames in which devices were as fast as now; 0 for all.
        found: Median of each column over all frames, then over those; written.
    """
    first = len(rows) - num_alike if 0 < num_alike < len(rows) else 0
    for column in range(rows.shape[1]):
        found[0, column] = middle_of(rows[:, column].copy())
        found[1, column] = middle_of(rows[first:, column].copy()) if first else found[0, column]


def _priced_by(layout: FrameLayout, healthy: Bools | None = None) -> Bools:
    """Entries whose operations and seconds make the price: of healthy devices, if there are any; nothing for all."""
    if healthy is None:
        return _EVERYBODY if layout.all_priced else layout.has_flops
    priced = layout.has_flops & healthy
    return priced if np.count_nonzero(priced) else layout.has_flops


@compiled
def _taken(
    table: Floats,
    shares: Floats,
    priced: Bools,
    cells: Places,
    num_stages: int,
    counts: Floats,
    rounds: Floats,
    borders: Floats,
    buffer: Floats,
    stop: int,
    num_alike: int,
) -> tuple[float, float]:
    """Writes what one frame adds to a profile.

    Args:
        table: Of the frame, see :mod:`frame_table`.
        shares: What of an entry's tokens a micro-batch of the job has; one an entry, as the next two.
        priced: Which entries make the price of an operation; nothing for all.
        cells: This and the next four are those of :class:`PipelineGrid`.
        num_stages: Stages.
        counts: Micro-batches; one an entry.
        rounds: One a replica.
        borders: One a replica.
        buffer: One row a frame, ``_COLUMNS``.
        stop: Its row that is written.
        num_alike: Newest frames in which devices were as fast as now.

    Returns:
        Seconds of the slowest rank, and their median over these frames.
    """
    walls, gradients, votes = table[WALLS], table[GRADIENT_WAIT], table[VOTE_WAIT]
    wall, gradient, vote = walls[0], math.inf, votes[0]
    flops = computed = token_sum = square_sum = 0.0
    for entry in range(table.shape[1]):
        wall = max(wall, walls[entry])
        # The last to arrive waits only for the exchange itself: the least wait is the cost without the waiting. Of the
        # exchange that of the first stages counts: pipelines end there.
        vote = min(vote, votes[entry])
        if cells[entry] % num_stages == 0:
            gradient = min(gradient, gradients[entry])
        token_sum += table[TOKENS, entry] * shares[entry]
        square_sum += table[SQUARES, entry] * shares[entry]
        if not len(priced) or priced[entry]:
            computed += table[SECONDS, entry]
            flops += table[FLOPS, entry]
    after = middle_of(table[OTHERS].copy()) + gradient + vote
    pipelines, transfer, exchanged = between_ranks(
        table[SECONDS], table[TENSOR_WAIT], walls, cells, num_stages, counts, rounds, borders, after
    )
    row = buffer[stop]
    row[0], row[1] = wall, computed / flops if flops > 0.0 else 0.0
    row[2], row[3], row[4], row[5], row[6] = token_sum, square_sum, wall - pipelines - gradient, transfer, exchanged
    row[7] = gradient
    return wall, middle_of(buffer[stop + 1 - num_alike : stop + 1, _WALL].copy())
