"""Replicas as their users start them: a torchrun for each, whose output is read."""

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[3]
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
            arguments += [
                "--rdzv-endpoint",
                f"127.0.0.1:{port}",
                "--rdzv-id",
                str(replica),
                str(ROOT / "examples" / script),
            ]
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


def train_alone(script: str, *options: str) -> dict[int, float]:
    """Losses by step of one process, without pauses; ``options`` are of the interpreter."""
    settings = {**os.environ, "STEPS": str(STEPS), "PAUSE": "0", "OMP_NUM_THREADS": "1"}
    run = [sys.executable, *options, str(ROOT / "examples" / script)]
    alone = subprocess.run(run, env=settings, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return {int(step): float(loss) for step, loss in re.findall(r"replica 0: step (\d+), loss ([\d.]+)", alone.stdout)}
