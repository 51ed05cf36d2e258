"""Replicas as their users start them: a torchrun for each, whose output is read."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tests.warm import WarmProgram

ROOT = Path(__file__).parents[3]
STEPS = 60
DEADLINE_SECONDS = 600.0
"""Loading torch takes a second, or minutes where many load it."""
LAST_PLACE = 2e-6
"""Losses are printed with six places."""
Line = tuple[int, int, str]
"""Replica, step, loss."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Output:
    """What ranks say.

    Attributes:
        output: Their lines.
        lines: Those that tell of a step.
    """

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.output: list[str] = []
        self._changed = threading.Condition()
        self._readers: list[threading.Thread] = []
        self._num_open = 0

    def read(self, source: "IO[str]") -> None:
        """Read a process's output in the background, to its end."""
        with self._changed:
            self._num_open += 1
        self._readers.append(threading.Thread(target=self._take, args=(source,), daemon=True))
        self._readers[-1].start()

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds: in vain once nobody is left to say anything."""
        with self._changed:
            self._changed.wait_for(lambda: condition() or not self._num_open, DEADLINE_SECONDS)
            assert condition(), "".join(self.output[-40:])

    def join(self) -> None:
        for reader in self._readers:
            reader.join()

    def _take(self, source: "IO[str]") -> None:
        with source:
            for line in source:
                # A bar of progress that another rank draws may stand before it, without an end of line.
                found = re.search(r"replica (\d+): step (\d+), loss ([\d.]+)\n", line)
                with self._changed:
                    self.output.append(line)
                    if found:
                        self.lines.append((int(found[1]), int(found[2]), found[3]))
                    self._changed.notify_all()
        with self._changed:
            self._num_open -= 1
            self._changed.notify_all()


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Torchruns(Output):
    """Several torchruns, and what their ranks say."""

    def __init__(self, script: str, num_replicas: int, per_replica: int, *, num_steps: int = STEPS) -> None:
        self._ports = [free_port() for _ in range(num_replicas)]
        self._settings = {
            **os.environ,
            "EVENKEEL_STORE": ",".join(f"127.0.0.1:{port}" for port in self._ports),
            "EVENKEEL_NUM_REPLICAS": str(num_replicas),
            "STEPS": str(num_steps),
            "PAUSE": "0.1",
            "OMP_NUM_THREADS": "1",
        }
        self._script, self._per_replica = script, per_replica
        super().__init__()
        self.processes: list[WarmProgram] = []
        for replica in range(num_replicas):
            self.processes.append(self._start(replica))

    def _start(self, replica: int) -> WarmProgram:
        arguments = ["--nproc-per-node", str(self._per_replica), "--max-restarts", "2", "--rdzv-backend", "c10d"]
        arguments += ["--rdzv-endpoint", f"127.0.0.1:{self._ports[replica]}", "--rdzv-id", str(replica)]
        process = WarmProgram(
            [sys.executable, "-m", "torch.distributed.run", *arguments, str(ROOT / "examples" / self._script)],
            env={**self._settings, "EVENKEEL_REPLICA": str(replica)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.read(process.stdout)
        return process

    def kill(self, replica: int) -> None:
        """A whole replica: its torchrun, which has a store, and its ranks."""
        pids = [self.processes[replica].pid, *self.ranks_of(replica)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.processes[replica].wait()

    def start_again(self, replica: int) -> None:
        """What the launcher of its torchrun does."""
        self.processes[replica] = self._start(replica)

    def ranks_of(self, replica: int) -> list[int]:
        return children_of(self.processes[replica].pid)

    def close(self) -> None:
        for each in self.processes:
            each.terminate()
        for each in self.processes:
            each.wait(60)
        self.join()


def train_alone(script: str, num_steps: int = STEPS) -> dict[int, float]:
    """Losses by step of one process, without pauses."""
    settings = {**os.environ, "STEPS": str(num_steps), "PAUSE": "0", "OMP_NUM_THREADS": "1"}
    alone = WarmProgram([sys.executable, ROOT / "examples" / script], env=settings, stdout=subprocess.PIPE)
    with alone.stdout as output:
        said = output.read()
    assert alone.wait() == 0
    return {int(step): float(loss) for step, loss in re.findall(r"replica 0: step (\d+), loss ([\d.]+)", said)}
