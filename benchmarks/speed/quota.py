"""Processes that get a share of a core: a control group with a quota, of whichever version may be written to."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_FIRST, _SECOND = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
_PERIOD_MICROSECONDS = 100_000


@contextmanager
def cores(process_ids: Sequence[int], num_cores: float) -> Iterator[None]:
    """These processes share so many cores; afterwards those that still run have all of them again.

    Raises:
        OSError: Control groups may not be written to.
    """
    is_first = _FIRST.is_dir()
    root = _FIRST if is_first else _SECOND
    group = root / f"evenkeel-{os.getpid()}-{process_ids[0]}"
    group.mkdir()
    quota = str(round(num_cores * _PERIOD_MICROSECONDS))
    try:
        if is_first:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_MICROSECONDS))
            (group / "cpu.cfs_quota_us").write_text(quota)
        else:
            (group / "cpu.max").write_text(f"{quota} {_PERIOD_MICROSECONDS}")
        for process_id in process_ids:
            (group / "cgroup.procs").write_text(str(process_id))
        yield
    finally:
        for process_id in process_ids:
            with suppress(OSError):  # it has ended
                (root / "cgroup.procs").write_text(str(process_id))
        group.rmdir()
