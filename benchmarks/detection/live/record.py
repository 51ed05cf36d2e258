"""Runs one case as processes, and leaves its recording and what was done to it in a folder."""

import csv
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.detection.live.cases import Case, Fault, Load, Loop
from benchmarks.detection.live.rows import COLUMNS, read_rows, write_rows

Floats = npt.NDArray[np.float64]

TIMEOUT_SECONDS = 900.0
TRUTH = (
    "name", "framework", "ranks", "iterations", "load", "fault", "size", "culprit_ranks", "begin_iteration",
    "end_iteration", "measured_factor", "cpu_factor",
)  # fmt: skip

_COMES_AND_GOES = """
import time
while True:
    until = time.monotonic() + 4
    while time.monotonic() < until:
        pass
    time.sleep(4)
"""
_BUSY = {Load.BUSY: "while True: pass", Load.COMES_AND_GOES: _COMES_AND_GOES}
_TIMES_THE_CORES = 3


@dataclass(frozen=True, slots=True)
class Factors:
    """How many times longer the culprit took during the fault than before, over its peers' change; or than those."""

    measured: float
    cpu: float


def record(case: Case, folder: Path) -> None:
    """Writes ``NAME.csv.gz``, and a line in ``truth.csv``.

    Raises:
        RuntimeError: The job did not end well; the message has its last words.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as ranks, _beside(case.load):
        _run(case, Path(ranks))
        rows = [row for path in sorted(Path(ranks).glob("*.csv")) for row in read_rows(path)]
    rows.sort(key=lambda row: (int(row["iteration"]), int(row["rank"])))
    path = folder / f"{case.name}.csv.gz"
    write_rows(path, ((int(row["iteration"]), *(row[name] for name in COLUMNS[1:])) for row in rows), skipped=0)
    factors = factors_of(case, rows)
    _note(
        folder / "truth.csv",
        {
            "name": case.name,
            "framework": case.loop.value,
            "ranks": case.ranks,
            "iterations": case.iterations,
            "load": f"{case.load.value}, load average {os.getloadavg()[0]:.0f}",
            "fault": "none" if case.fault.is_healthy else case.fault.value,
            "size": case.factor,
            "culprit_ranks": "" if case.fault.is_healthy else case.culprit,
            "begin_iteration": "" if case.fault.is_healthy else case.begin,
            "end_iteration": "" if case.fault.is_healthy else case.end,
            "measured_factor": f"{factors.measured:.3f}",
            "cpu_factor": f"{factors.cpu:.3f}",
        },
    )


def factors_of(case: Case, rows: list[dict[str, str]]) -> Factors:
    """What the fault did to its rank, by the recording itself: means, of which those of work leave out the rarest."""
    if case.fault.is_healthy:
        return Factors(1.0, 1.0)

    def table(name: str) -> Floats:
        found = np.full((case.iterations, case.ranks), np.nan)
        for row in rows:
            at = int(row["iteration"])
            if at < case.iterations and row[name] != "":
                found[at, int(row["rank"])] = float(row[name])
        return found

    core, queued = table("cpu_seconds"), table("queue_seconds")
    own = table("loop_wall_seconds") - table("wait_seconds")
    # A quota shows as waiting for a core, and so does whatever else the machine does.
    taken = own if case.fault is Fault.QUOTA else own - queued
    return Factors(_grown(case, taken, np.nanmean), _grown(case, core, np.nanmedian))


def _grown(case: Case, seconds: Floats, middle: "np.ufunc | object") -> float:
    assert callable(middle)
    during, before = seconds[case.begin : case.end], seconds[: case.begin]
    peers = [rank for rank in range(case.ranks) if rank != case.culprit]
    grew = middle(during[:, case.culprit]) / middle(during[:, peers])
    return float(grew if case.begin == 0 else grew / (middle(before[:, case.culprit]) / middle(before[:, peers])))


def _run(case: Case, folder: Path) -> None:
    module = "engine" if case.loop is Loop.ENGINE else "loops"
    command = [sys.executable]
    if case.loop is not Loop.ENGINE:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}"]
    command += ["-m", f"benchmarks.detection.live.{module}", case.as_json(), str(folder)]
    log = folder / "log"
    with log.open("w") as file:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        with subprocess.Popen(command, stdout=file, stderr=file, env=environment) as job:
            try:
                ended = f"ended with status {status}" if (status := job.wait(TIMEOUT_SECONDS)) else ""
            except subprocess.TimeoutExpired:
                job.terminate()  # torchrun ends its ranks
                ended = f"is not done after {TIMEOUT_SECONDS:g} s"
    if ended:
        raise RuntimeError(f"{case.name} {ended}:\n{log.read_text()[-3000:]}")


@contextmanager
def _beside(load: Load) -> Iterator[None]:
    count = _TIMES_THE_CORES * (os.cpu_count() or 1) if load in _BUSY else 0
    programs = [subprocess.Popen([sys.executable, "-c", _BUSY[load]]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def _note(path: Path, truth: dict[str, object]) -> None:
    """One line a recording; a newer one takes the place of the one before."""
    known: list[dict[str, object]] = []
    if path.exists():
        with path.open(newline="") as file:
            known = [dict(row) for row in csv.DictReader(file) if row["name"] != truth["name"]]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, TRUTH)
        writer.writeheader()
        writer.writerows([*known, truth])
