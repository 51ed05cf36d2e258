"""What a job's iterations are made of, from recent plain frames: the numbers a planner prices layouts with."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from numeric.compiled import compiled
from services.detector.domain.frame_layout import FrameLayout
from services.detector.domain.middle import RecentValues, median
from services.detector.domain.observation import FrameObservation
from services.detector.domain.pipeline_grid import PipelineGrid
from services.detector.domain.recent_iterations import RecentIterations
from services.detector.domain.rolling import RollingRows
from services.detector.domain.verdict import Profile, RankThroughput

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_WINDOW = 16
_TENSOR, _GRADIENT, _VOTE = 0, 2, 3
_OF_SPEEDS = ("wall", "transfer")
"""What hangs on how fast all devices are; the rest is told by the healthy ones."""
_COLUMNS = ("wall", "seconds_per_flop", "tokens", "squares", "fixed", "transfer", "exchange")
_WALL, _FIXED, _TRANSFER, _EXCHANGE = (_COLUMNS.index(name) for name in ("wall", "fixed", "transfer", "exchange"))
_SETTLED_TOGETHER = 5
_EVERYBODY: Bools = np.zeros(0, dtype=np.bool_)


class JobProfile:
    """Medians over the last plain frames of the epoch in force."""

    def __init__(self) -> None:
        self._epoch = -1
        self._recent = RollingRows(_WINDOW)
        self._iterations = RecentIterations()
        self._walls = RecentValues(_WINDOW)
        self._num_alike = 0
        self._iteration_seconds = 0.0
        self._transfer_before = 0.0
        self._grid: PipelineGrid | None = None
        # Compute seconds, tensor waits and wall seconds of frames whose transfers are still to be worked out.
        self._unsettled: Floats = np.zeros((3, 0, 0))
        self._num_unsettled = 0

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
        self._settle()
        if len(self._recent):
            self._transfer_before = self._median("transfer")
        self._recent.clear()
        self._iterations.clear()
        self._walls.clear()
        self._num_alike = 0

    def devices_changed(self, iteration: int, num_iterations: int) -> None:
        """Devices are not as fast as before: only what ran since tells what the layout takes now.

        Args:
            iteration: First one that showed it.
            num_iterations: Newest ones that did.
        """
        self._num_alike = min(num_iterations, len(self._recent))
        self._walls = RecentValues(_WINDOW, self._recent.rows[-self._num_alike :, _WALL].tolist())
        self._iteration_seconds = self._walls.median
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
        if self._grid is None or self._grid.layout is not layout:
            self._settle()
            self._grid = PipelineGrid(layout)
            self._unsettled = np.empty((3, _SETTLED_TOGETHER, len(layout.stages)))
        kept = self._unsettled[:, self._num_unsettled]
        priced = _priced(layout, healthy)
        wall, price, tokens, squares, fixed = _taken(
            seconds, waits, walls, others, *work, self._grid.shares, _EVERYBODY if priced is None else priced, kept
        )
        self._recent.append((wall, price, tokens, squares, fixed, 0.0, 0.0))
        self._num_unsettled += 1
        if self._num_unsettled == _SETTLED_TOGETHER:
            self._settle()
        self._walls.append(wall)
        self._num_alike = min(self._num_alike + 1, _WINDOW)
        if usable is None and not frame.missing_ranks:
            self._iterations.append(frame.iteration, wall, frame.micro_batches)
        self._iteration_seconds = self._walls.median

    def _settle(self) -> None:
        """Works out what the newest frames took between ranks: several at once cost little more than one."""
        count, self._num_unsettled = self._num_unsettled, 0
        if not count or self._grid is None:
            return
        rows = self._recent.rows[-count:]
        seconds, waits, walls = self._unsettled[:, :count]
        # Ranks end an iteration together, and whoever began it first waits for pipelines to begin: no transfer.
        begun_last = self._grid.lowest(walls)[..., 0]
        if not self._grid.all_taken:
            begun_last = np.where(np.isfinite(begun_last), begun_last, 0.0)
        pipelines = np.maximum.reduce(begun_last, axis=-1) - rows[:, _FIXED]
        rows[:, _FIXED] = rows[:, _WALL] - pipelines
        rows[:, _TRANSFER], rows[:, _EXCHANGE] = self._between_ranks(self._grid, seconds, waits, pipelines)

    def _between_ranks(
        self, grid: PipelineGrid, seconds: Floats, waits: Floats, pipeline_seconds: Floats
    ) -> tuple[Floats | float, Floats]:
        """Of each frame: seconds per stage border, and of a micro-batch's tensor exchange in all stages of a replica.

        Of a border: what neither compute nor tensor exchange explains, from the replica that leaves least. An upper
        bound: waits for stragglers that the rounds below do not catch are in it.

        A pipeline of S stages and M micro-batches takes at least M rounds of its slowest stage and one of each other;
        a micro-batch crosses the S - 1 borders twice. Where stages of a replica ran different numbers of them, some
        were routed, and pipelines stall for one another, which is no transfer: what was found in the epoch before
        stands then, or without one what replicas tell whose stages ran the same number.
        """
        # Tensor exchange comes with every block, like compute: taken for the border, it would make a planner shun
        # borders. The shard that arrives last waits only for the exchange itself.
        exchange = grid.lowest(waits / grid.each_counts)
        if not grid.all_taken:
            exchange = np.where(grid.taken, exchange, 0.0)
        exchanged: Floats = np.add.reduce(exchange.reshape(len(exchange), -1), axis=1)
        exchanged /= grid.shape[0]
        piped = grid.piped
        if not len(piped):
            return 0.0, exchanged
        if not grid.all_even:
            piped = grid.evenly_piped
            if self._transfer_before > 0.0 or not len(piped):
                return self._transfer_before, exchanged
        rounds = grid.highest(seconds / grid.each_counts) + exchange
        shortest = np.maximum.reduce(rounds, axis=-1)
        shortest *= grid.rounds - 1.0
        shortest += grid.over_stages(rounds)
        unexplained = (pipeline_seconds[:, None] - shortest[:, piped]) / (2 * grid.borders[piped])
        return np.maximum(np.minimum.reduce(unexplained, axis=1), 0.0), exchanged

    def profile(self, job_id: str, iteration: int, throughputs: Sequence[RankThroughput]) -> Profile | None:
        """The profile now; None before the first plain frame of the epoch."""
        if not len(self._recent):
            return None
        self._settle()
        of_layout = dict(zip(_COLUMNS, self._medians(_WINDOW), strict=True))
        of_speeds = of_layout
        if self._num_alike < len(self._recent):
            of_speeds = dict(zip(_COLUMNS, self._medians(self._num_alike), strict=True))
        return Profile(
            job_id=job_id,
            iteration=iteration,
            epoch=self._epoch,
            seconds_per_flop=of_layout["seconds_per_flop"],
            tokens=of_layout["tokens"],
            sum_of_squares=of_layout["squares"],
            fixed_seconds=of_layout["fixed"],
            transfer_seconds=of_speeds["transfer"],
            iteration_seconds=of_speeds["wall"],
            throughputs=throughputs,
            exchange_seconds=of_layout["exchange"],
            recent=self._iterations.iterations(),
        )

    def _medians(self, count: int) -> list[float]:
        """Of each column, over the newest so many frames."""
        ordered = self._recent.rows[-count:].copy()
        ordered.sort(axis=0)
        half = len(ordered) // 2
        middles: list[float] = ordered[half].tolist()
        if len(ordered) % 2:
            return middles
        return [(below + above) / 2.0 for below, above in zip(ordered[half - 1].tolist(), middles, strict=True)]

    def _median(self, column: str) -> float:
        count = self._num_alike if column in _OF_SPEEDS else _WINDOW
        return median(self._recent.rows[-count:, _COLUMNS.index(column)])

    def to_state(self) -> dict[str, Any]:
        """Everything remembered, as plain values."""
        self._settle()
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
        alike = recent[len(recent) - self._num_alike :]
        self._walls = RecentValues(_WINDOW, (row[_WALL] for row in alike))
        self._iteration_seconds = state["iteration_seconds"]
        self._transfer_before = state.get("transfer_before", 0.0)


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
    kept: Floats,
) -> tuple[float, float, float, float, float]:
    """What one frame adds to a profile.

    Args:
        seconds: Compute seconds; one entry a rank, as in all others.
        waits: Of each: tensor, pipeline, gradient, vote.
        walls: Seconds of the whole iteration.
        others: Seconds of optimizer and input.
        token_flops: Operations that grow with tokens.
        square_flops: Operations that grow with squared lengths.
        tokens: Tokens.
        squares: Sums of squared lengths.
        shares: What of an entry's tokens a micro-batch of the job has.
        priced: Which entries make the price of an operation; nothing for all.
        kept: Rows compute seconds, tensor waits, wall seconds; written.

    Returns:
        Seconds of the slowest rank, seconds of an operation (0 where nobody knows its operations), tokens and sum of
        squares of a micro-batch, and seconds that do not depend on the work.
    """
    wall, gradient, vote = walls[0], waits[0, _GRADIENT], waits[0, _VOTE]
    flops = computed = token_sum = square_sum = 0.0
    for entry in range(len(seconds)):
        kept[0, entry], kept[1, entry], kept[2, entry] = seconds[entry], waits[entry, _TENSOR], walls[entry]
        wall = max(wall, walls[entry])
        # The last to arrive waits only for the exchange itself: the least wait is the cost without the waiting.
        gradient, vote = min(gradient, waits[entry, _GRADIENT]), min(vote, waits[entry, _VOTE])
        token_sum += tokens[entry] * shares[entry]
        square_sum += squares[entry] * shares[entry]
        if not len(priced) or priced[entry]:
            computed += seconds[entry]
            flops += token_flops[entry] + square_flops[entry]
    price = computed / flops if flops > 0.0 else 0.0
    return wall, price, token_sum, square_sum, float(np.median(others)) + gradient + vote
