"""Healthy iterations of recordings, resampled: ``python -m benchmarks.detection.recorded.resampled FOLDER``.

Each job is blocks of iterations drawn from the healthy part of one recording, all ranks and clocks together, so that
noise keeps its shape within a block and across ranks (stationary bootstrap: Politis and Romano, JASA 89, 1994). Half of
the jobs stay healthy: whoever is accused there is a false alarm. In the others one rank has a fault put in from the
middle on, by its clocks: more work, sleep, waiting for a core.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.detection.recorded.recordings import read_truth
from evenkeel.offline.iterations.clocks import ClockChoice, RecordedClocks, clocks_of
from evenkeel.offline.iterations.file import read_iterations
from evenkeel.services.detector.domain.scan.devices import DeviceScan
from evenkeel.services.detector.domain.scan.residual.clocks import Readings, smallest_scales

Floats = npt.NDArray[np.float64]

BUDGET = 1e5
FAULTS = {"none": 0.0, "work": 1.25, "sleep": 0.5, "waiting": 1.0}
"""More work as a factor; the others as a share of the median work."""

_WARM_UP = 20
_FEWEST = 200
_SOON = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came of all jobs of one kind.

    Attributes:
        recording: Whose healthy iterations they are.
        clocks: What they were judged by.
        fault: What was put in.
        num_iterations: Healthy iterations, those before a fault too.
        num_false: Accusations of who had nothing.
        num_jobs: Jobs.
        num_found: Jobs whose culprit was told.
        num_soon: Of those, within 20 iterations.
        median_delay: Iterations from the fault's beginning to the verdict, of those that were found.
        microseconds: A frame, on this machine.
    """

    recording: str
    clocks: str
    fault: str
    num_iterations: int
    num_false: int
    num_jobs: int
    num_found: int
    num_soon: int
    median_delay: float
    microseconds: float


def drawn(rng: np.random.Generator, count: int, num_iterations: int, mean_block: int) -> npt.NDArray[np.int64]:
    """Rows of a recording, in blocks of geometric length."""
    starts = rng.random(num_iterations) < 1 / mean_block
    starts[0] = True
    places = np.where(starts, rng.integers(0, count, num_iterations), 0)
    begun = np.flatnonzero(starts)[np.cumsum(starts) - 1]
    rows: npt.NDArray[np.int64] = (places[begun] + np.arange(num_iterations) - begun) % count
    return rows


def played(clocks: RecordedClocks, rows: npt.NDArray[np.int64], fault: str, onset: int) -> Iterator[tuple[int, int]]:
    """Who is accused, and when; rank 1 has the fault."""
    usual = float(np.nanmedian(clocks.work))
    scan: DeviceScan | None = None
    for at, row in enumerate(rows.tolist()):
        readings = clocks.of(row)
        if fault != "none" and at >= onset:
            readings = _with(readings, fault, usual)
        if scan is None:
            scan = DeviceScan(BUDGET)
            scan.allot(readings.clocks, len(readings.work_seconds), smallest_scales(readings.clocks, usual))
        for change in scan.observe(at, readings.log_ratios(np.full(len(readings.work_seconds), usual)), usual):
            if not change.recovered:
                yield at, change.device


def _with(readings: Readings, fault: str, usual: float) -> Readings:
    """The readings of an iteration in which rank 1 has a fault."""

    def more(seconds: Floats | None, by: float) -> Floats | None:
        if seconds is None:
            return None
        changed = seconds.copy()
        changed[1] += by
        return changed

    added = usual * (FAULTS[fault] - 1 if fault == "work" else FAULTS[fault])
    only_wall = readings.wall_seconds is None
    work = more(readings.work_seconds, added if fault == "work" or only_wall else 0.0)
    assert work is not None
    return Readings(
        work_seconds=work,
        blocked_seconds=more(readings.blocked_seconds, added if fault == "sleep" else 0.0),
        waiting_seconds=more(readings.waiting_seconds, added if fault == "waiting" else 0.0),
        wall_seconds=more(readings.wall_seconds, added),
    )


def rows_of(folder: Path, choice: ClockChoice, *, num_jobs: int, length: int, mean_block: int) -> Iterator[Row]:
    """One for each recording and fault."""
    for truth in read_truth(folder):
        clocks = clocks_of(read_iterations(folder / f"{truth.name}.csv.gz"), choice)
        end = truth.begin if truth.fault != "none" else len(clocks.work)
        if end - _WARM_UP < _FEWEST:
            continue
        for number, fault in enumerate(FAULTS):
            counts: dict[str, int] = defaultdict(int)
            delays, began = [], time.perf_counter()
            for job in range(num_jobs * (len(FAULTS) - 1) if fault == "none" else num_jobs):
                rng = np.random.default_rng([number, job])
                rows = _WARM_UP + drawn(rng, end - _WARM_UP, length, mean_block)
                onset = length if fault == "none" else length // 2
                found = list(played(clocks, rows, fault, onset))
                counts["jobs"] += 1
                counts["healthy"] += onset
                counts["frames"] += length
                counts["false"] += sum(at < onset or rank != 1 for at, rank in found)
                told = [at - onset + 1 for at, rank in found if rank == 1 and at >= onset]
                delays += told[:1]
            yield Row(
                recording=truth.name,
                clocks=choice.value,
                fault=fault,
                num_iterations=counts["healthy"],
                num_false=counts["false"],
                num_jobs=counts["jobs"],
                num_found=len(delays),
                num_soon=sum(delay <= _SOON for delay in delays),
                median_delay=float(np.median(delays)) if delays else float("nan"),
                microseconds=1e6 * (time.perf_counter() - began) / counts["frames"],
            )


def main() -> None:
    """Prints a line as it comes, then the sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="recordings and truth.csv")
    parser.add_argument("--clocks", type=ClockChoice, choices=list(ClockChoice), default=ClockChoice.ALL)
    parser.add_argument(
        "--jobs", type=int, default=2, help="jobs of each recording and fault, three times as many healthy"
    )
    parser.add_argument("--length", type=int, default=1000, help="iterations of a job")
    parser.add_argument("--block", type=int, default=100, help="iterations of a block, on average")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    arguments = parser.parse_args()
    rows = []
    print("| recording | fault | healthy iterations | false | found | within 20 | median delay | us a frame |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows_of(
        arguments.folder,
        arguments.clocks,
        num_jobs=arguments.jobs,
        length=arguments.length,
        mean_block=arguments.block,
    ):
        rows.append(row)
        told = ("", "", "") if row.fault == "none" else (row.num_found, row.num_soon, f"{row.median_delay:.0f}")
        of = "" if row.fault == "none" else f" of {row.num_jobs}"
        print(
            f"| {row.recording} | {row.fault} | {row.num_iterations} | {row.num_false} | {told[0]}{of} | {told[1]} | "
            f"{told[2]} | {row.microseconds:.0f} |",
            flush=True,
        )
    print(
        f"\n{sum(row.num_false for row in rows)} false in {sum(row.num_iterations for row in rows)} healthy iterations"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
