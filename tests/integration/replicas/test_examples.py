"""The examples as their README says: a torchrun for each replica, one of whose ranks is killed."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "replicas"
STEPS = 60
Line = tuple[int, int, str]
"""Replica, step, loss."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Torchruns:
    """Several torchruns, and what their ranks say."""

    def __init__(self, script: str, num_replicas: int, per_replica: int) -> None:
        ports = [free_port() for _ in range(num_replicas)]
        settings = {
            **os.environ,
            "EVENKEEL_STORE": f"127.0.0.1:{ports[0]}",
            "EVENKEEL_NUM_REPLICAS": str(num_replicas),
            "STEPS": str(STEPS),
            "PAUSE": "0.1",
            "OMP_NUM_THREADS": "1",
        }
        self.lines: list[Line] = []
        self.output: list[str] = []
        self._changed = threading.Condition()
        self.processes: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        for replica, port in enumerate(ports):
            arguments = ["--nproc-per-node", str(per_replica), "--max-restarts", "2", "--rdzv-backend", "c10d"]
            arguments += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", str(replica), str(FOLDER / script)]
            process = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *arguments],
                env={**settings, "EVENKEEL_REPLICA": str(replica)},
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            self.processes.append(process)
            self._readers.append(threading.Thread(target=self._read, args=(process,), daemon=True))
            self._readers[-1].start()

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout as output:
            self._take(output)

    def _take(self, output: "IO[str]") -> None:
        for line in output:
            found = re.fullmatch(r"replica (\d+): step (\d+), loss ([\d.]+)\n", line)
            with self._changed:
                self.output.append(line)
                if found:
                    self.lines.append((int(found[1]), int(found[2]), found[3]))
                self._changed.notify_all()

    def until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, 200), "".join(self.output[-40:])

    def ranks_of(self, replica: int) -> list[int]:
        parent = self.processes[replica].pid
        return [int(each) for each in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]

    def close(self) -> None:
        for each in self.processes:
            each.terminate()
        for each in self.processes:
            each.wait(60)
        for reader in self._readers:
            reader.join()


@pytest.fixture
def start() -> Iterator[Callable[[str, int, int], Torchruns]]:
    started: list[Torchruns] = []

    def start_some(script: str, num_replicas: int, per_replica: int) -> Torchruns:
        started.append(Torchruns(script, num_replicas, per_replica))
        return started[-1]

    yield start_some
    for each in started:
        each.close()


def test_a_killed_rank_is_started_again_and_joins(start: Callable[[str, int, int], Torchruns]) -> None:
    script, num_replicas, per_replica = "ddp.py", 3, 1
    settings = {**os.environ, "STEPS": str(STEPS), "PAUSE": "0", "OMP_NUM_THREADS": "1"}
    alone = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", str(FOLDER / script)],
        env=settings,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    wanted = dict(re.findall(r"replica 0: step (\d+), loss ([\d.]+)", alone.stdout))
    runs = start(script, num_replicas, per_replica)
    runs.until(lambda: any(step == 20 for _, step, _ in runs.lines))
    os.kill(runs.ranks_of(1)[-1], signal.SIGKILL)
    for each in runs.processes:
        assert each.wait(200) == 0, "".join(runs.output[-40:])
    runs.until(lambda: {replica for replica, step, _ in runs.lines if step == STEPS} >= {0})
    for _, step, loss in runs.lines:
        assert float(loss) == pytest.approx(float(wanted[str(step)]), rel=1e-5)
    assert [step for replica, step, _ in runs.lines if replica == 0] == [20, 40, 60]
