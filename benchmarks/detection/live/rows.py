"""What the SDK measured of a rank, as rows that ``evenkeel replay --format iterations`` reads."""

import csv
import gzip
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from evenkeel.trainer_sdk.emit.emitter import Emitter
from evenkeel.trainer_sdk.emit.measured import Measured
from evenkeel.trainer_sdk.emit.readings import HostReadings

COLUMNS = (
    "iteration",
    "rank",
    "wall_seconds",
    "compute_seconds",
    "wait_seconds",
    "cpu_seconds",
    "queue_seconds",
    "loop_wall_seconds",
    "throttled_seconds",
    "tokens",
)

Row = tuple[float | int | str, ...]


def row_of(rank: int, measured: Measured, throttled_seconds: float | str = "") -> Row:
    """One row; the span of the thread's clocks is its compute, its input and its waits.

    Args:
        rank: Whose.
        measured: Of one iteration.
        throttled_seconds: How long the rank's control group was held back so far; empty where that is not known.
    """
    compute = measured.forward_seconds + measured.backward_seconds
    wait = sum(
        getattr(measured, f"wait_{kind}_seconds") for kind in ("tensor", "pipeline", "gradient", "vote", "other")
    )
    blank = [value if value is not None else "" for value in (measured.cpu_seconds, measured.queued_seconds)]
    span = compute + wait + (measured.input_seconds or 0.0)
    return (
        measured.iteration,
        rank,
        measured.wall_seconds,
        compute,
        wait,
        *blank,
        span,
        throttled_seconds,
        measured.tokens,
    )


class RowEmitter(Emitter):
    """Takes what a rank emits, and keeps its iterations as rows. The training thread only.

    Args:
        rank: Whose.

    Attributes:
        measured: Of every iteration so far.
        rows: The same, as rows.
    """

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.measured: list[Measured] = []
        self.rows: list[Row] = []
        self._rank = rank
        self._readings = HostReadings()
        self._throttled_seconds: float | str = ""

    def emit_later(self, build: Callable[[], Measured]) -> None:
        """Keeps the iteration."""
        for reading in self._readings.take(time.monotonic(), time.time()):
            self._throttled_seconds = reading.throttled_seconds
        measured = build()
        measured.loss = None  # a tensor that stays keeps the memory about it from being used again
        self.measured.append(measured)
        self.rows.append(row_of(self._rank, measured, self._throttled_seconds))


def write_rows(path: Path, rows: Iterable[Row], *, skipped: int) -> None:
    """Writes a recording.

    Args:
        path: A CSV file, packed where its name ends with ``.gz``.
        rows: Of all ranks.
        skipped: First iterations that warm up: they are left out, and the next is number 0.
    """
    with gzip.open(path, "wt", newline="") if path.suffix == ".gz" else path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for iteration, *rest in rows:
            if int(iteration) >= skipped:
                numbers = [f"{value:.6f}" if isinstance(value, float) else value for value in rest]
                writer.writerow([int(iteration) - skipped, *numbers])


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a recording."""
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
        return list(csv.DictReader(file))
