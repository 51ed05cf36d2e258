"""What a job's iterations are made of, from recent plain frames: the numbers a planner prices layouts with."""

from dataclasses import dataclass, field

import numpy as np

from evenkeel.numeric.arrays import Bools, Floats
from evenkeel.services.detector.domain.expectation.profile.grid import PipelineGrid
from evenkeel.services.detector.domain.expectation.profile.profile import Profile, RankThroughput
from evenkeel.services.detector.domain.expectation.profile.recent import RecentIterations
from evenkeel.services.detector.domain.frames.layout import FrameLayout
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.services.detector.domain.memory.newest import with_newest

WINDOW = 16
"""Frames behind the medians."""

_COLUMNS = ("wall", "seconds_per_flop", "tokens", "squares", "fixed", "transfer", "exchange", "gradient")
_WALL, _PRICE, _TRANSFER = (_COLUMNS.index(name) for name in ("wall", "seconds_per_flop", "transfer"))
_TENSOR, _GRADIENT, _VOTE = 0, 2, 3
"""Columns of what is waited for."""


@dataclass(slots=True, eq=False)
class JobProfile:
    """Medians over the last plain frames of the epoch in force."""

    _epoch: int = -1
    # One row a frame, ``_COLUMNS``, oldest first.
    _recent: Floats = field(default_factory=lambda: np.zeros((0, len(_COLUMNS))))
    _iterations: RecentIterations = field(default_factory=RecentIterations)
    # Newest frames in which devices were as fast as now.
    _num_alike: int = 0
    _iteration_seconds: float = 0.0
    _transfer_before: float = 0.0

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
        return float(np.median(self._recent[:, _PRICE])) if len(self._recent) else 0.0

    def begin_epoch(self, epoch: int) -> None:
        """The layout changed: what iterations took before no longer counts."""
        self._epoch = epoch
        if len(self._recent):
            self._transfer_before = float(np.median(self._recent[-self._num_alike :, _TRANSFER]))
        self._recent = self._recent[:0]
        self._iterations.clear()
        self._num_alike = 0

    def devices_changed(self, iteration: int, num_iterations: int) -> None:
        """Devices are not as fast as before: only what ran since tells what the layout takes now.

        Args:
            iteration: First one that showed it.
            num_iterations: Newest ones that did.
        """
        self._num_alike = min(num_iterations, len(self._recent))
        self._iteration_seconds = float(np.median(self._recent[-self._num_alike :, _WALL]))
        self._iterations.forget_before(iteration)

    def observe(self, frame: FrameObservation, layout: FrameLayout, *, usable: Bools, healthy: Bools) -> None:
        """Takes one plain frame.

        Args:
            frame: The frame.
            layout: Its layout.
            usable: Entries that computed under the epoch in force, at least one.
            healthy: Entries on healthy devices.
        """
        is_whole = bool(usable.all())
        layout, some = (layout, slice(None)) if is_whole else (FrameLayout(frame, usable), usable)
        grid = layout.once(PipelineGrid)
        seconds, walls, waits = frame.compute_seconds[some], frame.wall_seconds[some], frame.wait_seconds[some]
        # The last to arrive waits only for the exchange itself: the least wait is the cost without the waiting. Of the
        # exchange that of the first stages counts: pipelines end there.
        gradient, vote = float(waits[grid.is_first, _GRADIENT].min()), float(waits[:, _VOTE].min())
        after = float(np.median(frame.other_seconds[some])) + gradient + vote
        pipelines, transfer, exchanged = grid.between_ranks(seconds, waits[:, _TENSOR], walls, after)
        # Where stages of a replica ran different numbers of micro-batches, some were routed, and pipelines stall for
        # one another, which is no transfer: what was found in the epoch before stands then, or what the others tell.
        uneven = not grid.all_even and grid.is_piped
        if uneven and (self._transfer_before > 0.0 or not grid.borders.any()):
            transfer = self._transfer_before
        # Healthy devices make the price of an operation, if there are any.
        priced = layout.has_flops & healthy[some]
        priced = priced if priced.any() else layout.has_flops
        flops = float((frame.token_flops + frame.square_flops)[some][priced].sum())
        price = float(seconds[priced].sum()) / flops if flops > 0 else 0.0
        tokens, squares = float(frame.tokens[some] @ grid.shares), float(frame.sums_of_squares[some] @ grid.shares)
        wall = float(walls.max())
        row = wall, price, tokens, squares, wall - pipelines - gradient, transfer, exchanged, gradient
        self._recent = with_newest(self._recent, row, WINDOW)
        self._num_alike = min(self._num_alike + 1, WINDOW)
        self._iteration_seconds = float(np.median(self._recent[-self._num_alike :, _WALL]))
        if is_whole and not frame.missing_ranks:
            self._iterations.append(frame.iteration, wall, frame.micro_batches)

    def profile(self, job_id: str, iteration: int, throughputs: tuple[RankThroughput, ...]) -> Profile | None:
        """The profile now; None before the first plain frame of the epoch."""
        if not len(self._recent):
            return None
        _, price, tokens, squares, fixed, _, exchange, gradient = np.median(self._recent, axis=0).tolist()
        # These hang on how fast all devices are; the rest is told by the healthy ones.
        iteration_seconds, transfer = np.median(self._recent[-self._num_alike :, [_WALL, _TRANSFER]], axis=0).tolist()
        return Profile(
            job_id=job_id,
            iteration=iteration,
            epoch=self._epoch,
            seconds_per_flop=price,
            tokens=tokens,
            sum_of_squares=squares,
            fixed_seconds=fixed,
            transfer_seconds=transfer,
            iteration_seconds=iteration_seconds,
            throughputs=throughputs,
            exchange_seconds=exchange,
            gradient_seconds=gradient,
            recent=self._iterations.iterations(),
        )
