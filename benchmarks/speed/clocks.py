"""What the clocks of a watched loop say of two real DDP ranks: of work, sleep, stops, a quota and a busy machine.

``python -m benchmarks.speed.clocks`` trains two ranks a case, as a user would (``run.watch``); prints a table and JSON.
Per case: rank 1's forward and backward by the wall clock, divided into time on a core, waiting for one and blocked
(mean ms, standard deviation in brackets), and the standard deviation of the log difference between the two ranks by
the wall clock and by time on a core. The quota needs control groups (version 1 or 2) that may be written to.
"""

import argparse
import json
import math
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from benchmarks.speed.quota import cores
from evenkeel.trainer_sdk.emit.emitter import Emitter
from evenkeel.trainer_sdk.emit.measured import Measured
from evenkeel.trainer_sdk.watch.run import Run

_WIDTH = 768
_SLEEP_SECONDS = 0.02
_NUM_BUSY = 4
_NUM_WARM_UP = 20
_QUOTA_CORES = 0.5
_STOPPED_SECONDS, _RUNNING_SECONDS = 0.02, 0.04
_CASES = ("alone", "busy", "sleep", "quota", "stopped")


class Sleepy(nn.Module):
    """Some matrix products, and a sleep where asked for."""

    def __init__(self, sleep_seconds: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(4)))
        self.sleep_seconds = sleep_seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The products; rank 1 of a case may sleep first."""
        if self.sleep_seconds:
            time.sleep(self.sleep_seconds)
        return self.layers(x)  # type: ignore[no-any-return]


class Kept(Emitter):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.iterations: list[Measured] = []

    def emit_later(self, build: Callable[[], Measured]) -> None:
        """One more."""
        self.iterations.append(build())


def main() -> None:
    """Run every case and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--cases", nargs="+", choices=_CASES, default=_CASES)
    arguments = parser.parse_args()
    rows = [case(name, arguments.iterations) for name in arguments.cases]
    columns = list(rows[0])
    print("  ".join(f"{column:>22}" for column in columns))
    for row in rows:
        print("  ".join(f"{row[column]!s:>22}" for column in columns))
    print(json.dumps({"clocks": rows, "load": os.getloadavg()}))


def case(name: str, num_iterations: int) -> dict[str, object]:
    """One job of two ranks."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as beside:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        ranks = [_start(Path(folder), name, rank, store.port, num_iterations) for rank in range(2)]
        if name == "busy":
            beside.enter_context(_busy_processes())
        if name == "quota":
            beside.enter_context(cores([ranks[1].pid], _QUOTA_CORES))
        if name == "stopped":
            _stop_now_and_then(ranks[1])
        if any(rank.wait() for rank in ranks):
            raise SystemExit(f"{name}: a rank failed")
        told = [json.loads((Path(folder) / f"{rank}.json").read_text())[_NUM_WARM_UP:] for rank in range(2)]
    divided = [(wall, cpu, queued, wall - cpu - queued) for wall, cpu, queued in told[1]]
    words = [_milliseconds([row[k] for row in divided]) for k in range(4)]
    spread = [_spread([row[k] for row in told[0]], [row[k] for row in told[1]]) for k in range(2)]
    names = ("wall", "on a core", "waiting for a core", "blocked")
    return {"case": name, **dict(zip(names, words, strict=True)), "sd of log: wall": spread[0], "on a core ": spread[1]}


def rank_of_a_case(folder: str, name: str, num_iterations: int) -> None:
    """One rank's whole life; its clocks go to a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(Sleepy(_SLEEP_SECONDS if name == "sleep" and rank == 1 else 0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    kept = Kept()
    run = Run(emitter=kept)
    run.watch(model, optimizer)
    for _ in range(num_iterations + _NUM_WARM_UP):
        with run.iteration(tokens=64):
            model(torch.randn(64, _WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    rows = [
        (each.forward_seconds + each.backward_seconds, each.cpu_seconds, each.queued_seconds)
        for each in kept.iterations
    ]
    (Path(folder) / f"{rank}.json").write_text(json.dumps(rows))
    dist.destroy_process_group()


def _start(folder: Path, name: str, rank: int, port: int, num_iterations: int) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    program = f"from benchmarks.speed.clocks import rank_of_a_case as r; r({str(folder)!r}, {name!r}, {num_iterations})"
    return subprocess.Popen([sys.executable, "-c", program], env=environment)


@contextmanager
def _busy_processes() -> Iterator[None]:
    processes = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(_NUM_BUSY)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def _spin() -> None:
    while True:
        sum(range(1000))


def _stop_now_and_then(process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        time.sleep(_RUNNING_SECONDS)
        process.send_signal(signal.SIGSTOP)
        time.sleep(_STOPPED_SECONDS)
        process.send_signal(signal.SIGCONT)


def _milliseconds(seconds: Sequence[float]) -> str:
    return f"{1e3 * statistics.fmean(seconds):.1f} ({1e3 * statistics.stdev(seconds):.1f})"


def _spread(one: Sequence[float], other: Sequence[float]) -> float:
    return round(statistics.stdev(math.log(a / b) for a, b in zip(one, other, strict=True)), 3)


if __name__ == "__main__":
    main()
