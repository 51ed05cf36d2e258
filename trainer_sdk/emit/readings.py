"""Why a rank may be slow, as its host tells: throttling of its control group, and pressure on cores, memory and disks.

Read by the background thread, a few times a second; files are kept open. Told as soon as the process was throttled, so
that a quota on iterations of some 50 ms shows within a few of them, and else once a second.
"""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

_LOOK_SECONDS = 0.2
_QUIET_INTERVAL_SECONDS = 1.0
_FILE_BYTES = 4096


class Reading(NamedTuple):
    """One reading; names and units are those of :mod:`evenkeel.contracts.columns`. All but GPU clocks are totals."""

    reading_at_unix_seconds: float
    throttled_seconds: float
    cpu_pressure_seconds: float
    memory_pressure_seconds: float
    io_pressure_seconds: float
    gpu_clock_mhz: int = 0
    gpu_max_clock_mhz: int = 0
    gpu_throttle_reasons: int = 0


class HostReadings:
    """Reads the host of this process. One thread.

    Args:
        proc: Where the kernel's files are.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._pressures = [_Counter(proc / "pressure" / name, b"total=", 1e-6) for name in ("cpu", "memory", "io")]
        self._membership = ""
        self._groups: list[_Counter] = []
        self._throttled_seconds = 0.0
        self._look_at_seconds = self._due_at_seconds = float("-inf")
        self._untold: list[Reading] = []
        self._had_grown = False

    def take(self, now_seconds: float, now_unix_seconds: float) -> list[Reading]:
        """The readings to tell now, oldest first; where throttling begins or ends, those around it.

        Args:
            now_seconds: Monotonic.
            now_unix_seconds: Wall clock.
        """
        if now_seconds < self._look_at_seconds:
            return []
        self._look_at_seconds = now_seconds + _LOOK_SECONDS
        self._follow_the_process()
        grown = sum(group.grown() for group in self._groups)
        self._throttled_seconds += grown
        counters = (*self._groups, *self._pressures)
        if not any(counter.is_there for counter in counters):
            return []
        for pressure in self._pressures:
            pressure.grown()
        cpu, memory, io = (pressure.total for pressure in self._pressures)
        reading = Reading(now_unix_seconds, self._throttled_seconds, cpu, memory, io)
        had_grown, self._had_grown = self._had_grown, grown > 0
        if not grown and not had_grown and now_seconds < self._due_at_seconds:
            self._untold = [reading]
            return []
        told = [*(self._untold if grown else []), reading]
        self._due_at_seconds, self._untold = now_seconds + _QUIET_INTERVAL_SECONDS, []
        return told

    def _follow_the_process(self) -> None:
        """A process may be moved to another control group while it runs; totals go on from there."""
        try:
            membership = (self._proc / "self" / "cgroup").read_text()
        except OSError:
            return
        if membership != self._membership:
            self._membership = membership
            self._groups = _throttled_of(membership, self._proc)


class _Counter:
    """A number behind a word in a file of the kernel, which only grows."""

    def __init__(self, path: Path, word: bytes, unit_seconds: float) -> None:
        self._word, self._unit_seconds = word, unit_seconds
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.total = 0.0
        self.is_there = self._file is not None
        self.grown()

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)

    def grown(self) -> float:
        """Seconds since it was asked before."""
        before = self.total
        if self._file is not None:
            try:
                text = os.pread(self._file, _FILE_BYTES, 0)
                _, found, rest = text.partition(self._word)
                self.total = int(rest.split(None, 1)[0]) * self._unit_seconds if found else before
                self.is_there = bool(found)
            except (OSError, ValueError, IndexError):  # its control group is gone
                self.is_there = False
        return max(self.total - before, 0.0)


def _throttled_of(membership: str, proc: Path) -> list[_Counter]:
    """Of the control group of the process and those around it: a quota counts where it is set."""
    paths: dict[str, str] = {}
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    is_first = "cpu" in paths  # of the two versions of control groups
    word, unit_seconds = (b"throttled_time ", 1e-9) if is_first else (b"throttled_usec ", 1e-6)
    path = paths.get("cpu" if is_first else "", "")
    with contextlib.suppress(OSError):
        for line in (proc / "self" / "mountinfo").read_text().splitlines():
            fields, _, rest = line.partition(" - ")
            kind, _, options = rest.split(" ", 2)
            is_it = kind == "cgroup" and "cpu" in options.split(",") if is_first else kind == "cgroup2"
            if is_it and path:
                root, mount = fields.split()[3:5]
                inside = path.removeprefix(root) if root != "/" else path
                folder = Path(mount + "/" + inside.strip("/"))
                around = [each for each in (folder, *folder.parents) if each.is_relative_to(mount)]
                return [_Counter(each / "cpu.stat", word, unit_seconds) for each in around]
    return []
