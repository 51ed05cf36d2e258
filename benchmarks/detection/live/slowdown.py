"""What is done to one rank of a loop, by the rank itself: real work, sleep, a quota, stops from outside.

Nothing is paced: extra work is matrix products (or fresh pages touched) until they took a share of what the rank's
iterations take on a core, by the same clock: a fault of 1.25 is 1.25 times the work.
"""

import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import torch

from benchmarks.detection.live.cases import Case, Fault
from benchmarks.detection.live.rows import RowEmitter

WARM_UP = 25
"""Iterations before the first that is recorded."""

_NEWEST = 20
_CGROUP = Path("/sys/fs/cgroup/cpu")
_SIZE, _BYTES = 96, 1 << 20
_ITERATIONS_A_STOP = 1.5
_SWITCHES_EVERY = 100
_STOPPER = """
import os, sys, time
pid, share, period = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
try:
    while True:
        os.kill(pid, 19)
        time.sleep(share * period)
        os.kill(pid, 18)
        time.sleep((1 - share) * period)
except ProcessLookupError:
    pass
"""


class Slowdown:
    """Does to a rank what its case says. The training thread only.

    Args:
        case: What, to whom and when.
        rank: This one.
        pid: Of its process.
        emitter: Knows how long its iterations take.
    """

    def __init__(self, case: Case, rank: int, pid: int, emitter: RowEmitter) -> None:
        self._case = case
        self._is_culprit = rank == case.culprit and case.fault is not Fault.NONE
        self._pid = pid
        self._emitter = emitter
        self._matrix = torch.rand(_SIZE, _SIZE)
        self._random = random.Random(case.seed + 1)
        self._iteration = -WARM_UP - 1
        self._is_on = False
        self._core_seconds = 0.0
        self._seconds = 0.0
        self._stopper: subprocess.Popen[bytes] | None = None
        self._quota: Path | None = None

    def begin_iteration(self) -> None:
        """Before each one."""
        case, self._iteration = self._case, self._iteration + 1
        begin, end = (0, case.iterations) if case.fault.is_healthy else (case.begin, case.end)
        if self._is_culprit and self._iteration == begin:
            self._start()
        if self._is_on and self._iteration == end:
            self.stop()

    def in_forward(self) -> None:
        """Within the model."""
        if not self._is_on:
            return
        fault = self._case.fault
        if fault is Fault.SLEEP:
            time.sleep(self._seconds)
        elif fault in (Fault.WORK, Fault.HOG, Fault.SLOWER):
            self._work(self._core_seconds)
        elif fault is Fault.NOISY or (fault is Fault.SWITCHES and self._iteration // _SWITCHES_EVERY % 2):
            self._work(self._core_seconds * abs(self._random.gauss(0.0, 1.0)))

    def in_input(self) -> None:
        """While a batch is fetched."""
        if self._is_on and self._case.fault is Fault.INPUT:
            time.sleep(self._seconds)

    def stop(self) -> None:
        """It is over."""
        self._is_on = False
        if self._stopper is not None:
            self._stopper.kill()
            self._stopper.wait()
            subprocess.run(["kill", "-CONT", str(self._pid)], check=True)
            self._stopper = None
        if self._quota is not None:
            (_CGROUP / "cgroup.procs").write_text(str(self._pid))
            self._quota.rmdir()
            self._quota = None

    def _start(self) -> None:
        newest = self._emitter.measured[-_NEWEST:]
        work = median(each.cpu_seconds or 0.0 for each in newest)
        wall = median(each.wall_seconds for each in newest)
        extra = {Fault.SLOWER: 0.15, Fault.NOISY: 0.12, Fault.SWITCHES: 0.12}.get(
            self._case.fault, self._case.factor - 1
        )
        self._is_on = True
        match self._case.fault:
            case Fault.SLEEP | Fault.INPUT:
                self._seconds = extra * wall
            case Fault.STOPS:
                share = extra / (1 + extra)
                command = [sys.executable, "-c", _STOPPER, str(self._pid), str(share), str(_ITERATIONS_A_STOP * wall)]
                self._stopper = subprocess.Popen(command)
            case Fault.QUOTA:
                of_process = median((each.process_cpu_seconds or 0.0) / each.wall_seconds for each in newest)
                self._set_quota(of_process / (1 + extra))
            case _:
                self._core_seconds = extra * work

    def _work(self, core_seconds: float) -> None:
        until = time.thread_time() + core_seconds
        while time.thread_time() < until:
            if self._case.fault is Fault.HOG:
                bytearray(_BYTES).count(1)
            else:
                self._matrix @ self._matrix

    def _set_quota(self, cores: float) -> None:
        if not (_CGROUP / "cgroup.procs").exists():
            raise RuntimeError(f"no quota can be set: {_CGROUP} is not there (cgroup v1); leave out cases of a quota")
        self._quota = _CGROUP / f"evenkeel-live-{self._pid}"
        self._quota.mkdir(exist_ok=True)
        period = int((self._quota / "cpu.cfs_period_us").read_text())
        (self._quota / "cpu.cfs_quota_us").write_text(str(max(int(cores * period), 1000)))
        (self._quota / "cgroup.procs").write_text(str(self._pid))
