"""The ranks of one loop, each a process that runs steps when it is told to."""

import multiprocessing
import os
import resource
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from benchmarks.replicas.loops import LOOPS, Case
from evenkeel.trainer_sdk.groups.c10d import c10d


@dataclass(frozen=True, kw_only=True)
class Took:
    """What steps took.

    Attributes:
        wall_seconds: Of a step on the slowest rank.
        cpu_seconds: Of a step, of all ranks together.
        peak_bytes: Most memory of a rank until now, beyond what its process had at first.
    """

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int


class Ranks:
    """All ranks of one loop, on this machine over gloo.

    Args:
        kind: Which loop.
        case: Of what.
    """

    def __init__(self, kind: str, case: Case) -> None:
        # A process without threads that has loaded what each rank would load, and from which they are forked.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "torch._dynamo", "torch.distributed.tensor"])
        self._store = c10d.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._ends: list[Connection] = []
        self._processes = []
        for rank in range(case.replicas * case.size):
            mine, theirs = context.Pipe()
            process = context.Process(target=_rank, args=(kind, case, f"127.0.0.1:{self._store.port}", rank, theirs))
            process.start()
            theirs.close()
            self._ends.append(mine)
            self._processes.append(process)

    def run(self, num_steps: int) -> Took:
        """So many steps, while other loops rest."""
        for end in self._ends:
            end.send(num_steps)
        wall, cpu, peak = zip(*(end.recv() for end in self._ends), strict=True)
        return Took(wall_seconds=max(wall), cpu_seconds=sum(cpu), peak_bytes=max(peak))

    def close(self) -> None:
        """End all."""
        for end in self._ends:
            end.send(0)
        for process in self._processes:
            process.join()


def _rank(kind: str, case: Case, address: str, rank: int, output: Connection) -> None:
    torch.set_num_threads(1)
    before = _peak_bytes()
    step, close = LOOPS[kind](case, address, rank)
    while num_steps := output.recv():
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(num_steps):
            step()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        output.send((wall / num_steps, cpu / num_steps, _peak_bytes() - before))
    close()
    os._exit(0)  # torch's own group is not taken down in order


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
