"""What a process used of its machine in an iteration: one ``getrusage``, on the training thread."""

import sys
from resource import RUSAGE_SELF, getrusage, struct_rusage
from typing import NamedTuple

_MAX_RSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


class Usage(NamedTuple):
    """Two readings of the process, of all its threads; who wants to know subtracts them."""

    before: struct_rusage
    now: struct_rusage

    @property
    def cpu_seconds(self) -> float:
        """Time on a core in between."""
        before, now = self
        return now.ru_utime - before.ru_utime + now.ru_stime - before.ru_stime

    @property
    def involuntary_switches(self) -> int:
        """Times that the kernel took the core away."""
        return self.now.ru_nivcsw - self.before.ru_nivcsw

    @property
    def major_faults(self) -> int:
        """Page faults that had to read from a disk."""
        return self.now.ru_majflt - self.before.ru_majflt

    @property
    def peak_memory_bytes(self) -> int:
        """The most memory that it ever held."""
        return self.now.ru_maxrss * _MAX_RSS_UNIT_BYTES


class ProcessUsage:
    """What was used from one :meth:`take` to the next; the first time since this was made."""

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before = getrusage(RUSAGE_SELF)

    def take(self) -> Usage:
        """Since the take before."""
        before = self._before
        self._before = now = getrusage(RUSAGE_SELF)
        return Usage(before, now)
