"""Sums every rank's samples up over windows of iterations, for the history. Pure.

A window starts at a multiple of its length, so that a replay cuts the same windows and a row is never there twice. It
ends when its rank, or its job's idleness, shows that no more is to come. A row says how many iterations went in.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from history.records import RollupRecord
from services.telemetry.domain.observed import ArrivedSample
from services.telemetry.domain.shapes import SampleShape

_LAST_WORDS_SECONDS = 2.0
"""What a process sent before its end is all there so long after it."""


class _Slot(NamedTuple):
    rank: int
    incarnation: int


@dataclass(slots=True)
class _Window:
    """Running sums of one window; ``sums`` in the order of :data:`_KINDS`."""

    epoch: int
    start: int
    first_iteration: int
    node: str
    device: str
    started_at_unix_seconds: float
    opened_at_seconds: float
    first_offset: int
    sums: list[float]
    newest_iteration: int = -1
    num_iterations: int = 0
    wall_seconds: float = 0.0
    wall_seconds_min: float = math.inf
    wall_seconds_max: float = 0.0
    tokens: int = 0
    sum_of_squares: float = 0.0
    loss: float = 0.0
    num_losses: int = 0
    peak_memory_bytes: int = 0
    updated_at_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedWindow:
    """A row for the history, and what a restart would need to make it again.

    Attributes:
        record: The row.
        first_offset: Offset of the oldest record that went in.
        opened_at_seconds: When that record came, Unix seconds.
    """

    record: RollupRecord
    first_offset: int
    opened_at_seconds: float


class RollupAggregator:
    """The open windows of one job."""

    def __init__(self, job_id: str, *, window_iterations: int = 16, idle_seconds: float = 60.0) -> None:
        """Starts without windows.

        Args:
            job_id: The job.
            window_iterations: Length of a window.
            idle_seconds: A window that got nothing for so long is finished.
        """
        self._job_id = job_id
        self._window_iterations = window_iterations
        self._idle_seconds = idle_seconds
        self._windows: dict[_Slot, _Window] = {}
        self._gone: set[_Slot] = set()
        self._written_idle: dict[_Slot, tuple[int, int]] = {}

    def add(
        self, sample: ArrivedSample, content: SampleShape, *, loss: float | None, now_seconds: float
    ) -> FinishedWindow | None:
        """Takes in a sample; returns the window that it ends.

        Args:
            sample: Whose and which.
            content: What was measured.
            loss: Its loss; None if it carries none.
            now_seconds: Unix seconds.
        """
        slot = _Slot(sample.rank, sample.incarnation)
        start = sample.iteration - sample.iteration % self._window_iterations
        window = self._windows.get(slot)
        finished = None
        if window is None or window.start != start or window.epoch != sample.epoch:
            if window is not None:
                if (sample.epoch, start) < (window.epoch, window.start):
                    return None  # came twice, or far too late: its window is written
                finished = self._finish(slot, window)
            # What comes after an idle window was written is a row of its own, or it would be taken for a repetition.
            written = self._written_idle.get(slot) == (sample.epoch, start)
            window = _Window(
                epoch=sample.epoch,
                start=start,
                first_iteration=sample.iteration if written else start,
                node=sample.node,
                device=sample.device,
                started_at_unix_seconds=content.started_at_unix_seconds,
                opened_at_seconds=now_seconds,
                first_offset=sample.offset,
                sums=[0.0] * 8,
            )
            self._windows[slot] = window
        if sample.iteration > window.newest_iteration:  # else it came twice
            _accumulate(window, sample, content, loss, now_seconds)
        return finished

    def finish_idle(self, now_seconds: float) -> list[FinishedWindow]:
        """Ends the windows to which nothing came lately; to be called now and then."""
        limits = {True: now_seconds - _LAST_WORDS_SECONDS, False: now_seconds - self._idle_seconds}
        return self._end(
            [slot for slot, each in self._windows.items() if each.updated_at_seconds < limits[slot in self._gone]]
        )

    def finish_process(self, rank: int, incarnation: int) -> list[FinishedWindow]:
        """Ends the window of a process that is gone, so that its last iterations are there at once.

        What it sent last may arrive after the news of its end: that window does not wait for long either.
        """
        self._gone.add(_Slot(rank, incarnation))
        return self._end([slot for slot in (_Slot(rank, incarnation),) if slot in self._windows])

    def _end(self, slots: Iterable[_Slot]) -> list[FinishedWindow]:
        finished = []
        for slot in slots:
            window = self._windows.pop(slot)
            self._written_idle[slot] = (window.epoch, window.start)
            finished.append(self._finish(slot, window))
        return finished

    def finish_all(self) -> list[FinishedWindow]:
        """Ends all windows: the job is over, or its partition goes elsewhere."""
        windows, self._windows = self._windows, {}
        return [self._finish(slot, window) for slot, window in windows.items()]

    def oldest_offset(self, *, opened_after_seconds: float) -> int | None:
        """Offset of the oldest record in a window that was opened after a time; None if there is none."""
        offsets = [
            each.first_offset for each in self._windows.values() if each.opened_at_seconds > opened_after_seconds
        ]
        return min(offsets, default=None)

    def _finish(self, slot: _Slot, window: _Window) -> FinishedWindow:
        count = window.num_iterations
        means: Sequence[float] = [total / count for total in window.sums]
        record = RollupRecord(
            job_id=self._job_id,
            rank=slot.rank,
            incarnation=slot.incarnation,
            epoch=window.epoch,
            first_iteration=window.first_iteration,
            stop_iteration=window.start + self._window_iterations,
            num_iterations=count,
            node=window.node,
            device=window.device,
            started_at=datetime.fromtimestamp(window.started_at_unix_seconds, UTC),
            wall_seconds=window.wall_seconds / count,
            wall_seconds_min=window.wall_seconds_min,
            wall_seconds_max=window.wall_seconds_max,
            forward_seconds=means[0],
            backward_seconds=means[1],
            optimizer_seconds=means[2],
            data_seconds=means[3],
            tensor_wait_seconds=means[4],
            pipeline_wait_seconds=means[5],
            gradient_wait_seconds=means[6],
            vote_wait_seconds=means[7],
            tokens=window.tokens,
            sum_of_squares=window.sum_of_squares,
            loss=window.loss / window.num_losses if window.num_losses else None,
            peak_memory_bytes=window.peak_memory_bytes,
        )
        return FinishedWindow(
            record=record, first_offset=window.first_offset, opened_at_seconds=window.opened_at_seconds
        )


def _accumulate(
    window: _Window, sample: ArrivedSample, content: SampleShape, loss: float | None, now_seconds: float
) -> None:
    compute, waiting, wall = content.compute, content.waiting, sample.wall_seconds
    spent = (
        compute.forward,
        compute.backward,
        compute.optimizer,
        compute.data,
        waiting.tensor,
        waiting.pipeline,
        waiting.gradient,
        waiting.vote,
    )
    window.sums = [total + seconds for total, seconds in zip(window.sums, spent, strict=True)]
    window.newest_iteration = sample.iteration
    window.num_iterations += 1
    window.wall_seconds += wall
    window.wall_seconds_min = min(window.wall_seconds_min, wall)
    window.wall_seconds_max = max(window.wall_seconds_max, wall)
    for each in content.micro_batches:
        window.tokens += each.tokens
        window.sum_of_squares += each.sum_of_squares
    if loss is not None:
        window.loss += loss
        window.num_losses += 1
    window.peak_memory_bytes = max(window.peak_memory_bytes, content.peak_memory_bytes)
    window.updated_at_seconds = now_seconds
