"""Questions about processes by id, also about those that are not our children."""

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path


def is_alive(process_id: int) -> bool:
    """Whether the process runs; one that has ended but was not reaped by its parent does not."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _stat_field(process_id, 0) != "Z"


def start_mark(process_id: int) -> str:
    """A mark of when the process started, which tells it from a later one with the same id; empty when it is gone."""
    ticks = _stat_field(process_id, 19)
    if ticks or Path("/proc/self/stat").exists():
        return ticks
    answer = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(process_id)], capture_output=True, text=True, check=False, timeout=5
    )
    return answer.stdout.strip()


def send_to_group(process_id: int, signal_number: int) -> None:
    """Sends a signal to the process group that the process leads; nothing happens when it is gone."""
    try:
        os.killpg(process_id, signal_number)
    except (ProcessLookupError, PermissionError):
        return


def end_processes(stop_signals: Iterable[tuple[int, int]], *, grace_seconds: float) -> None:
    """Ends process groups: (leader's id, signal to ask with) each, and SIGKILL for what is left after the grace."""
    pairs = list(stop_signals)
    for process_id, stop_signal in pairs:
        send_to_group(process_id, stop_signal)
    deadline = time.monotonic() + grace_seconds
    while time.monotonic() < deadline and any(is_alive(process_id) for process_id, _ in pairs):
        time.sleep(0.02)
    for process_id, _ in pairs:
        send_to_group(process_id, signal.SIGKILL)


def _stat_field(process_id: int, index: int) -> str:
    """Field of ``/proc/<id>/stat`` counted from the state, which is 0; empty where there is none."""
    try:
        text = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return ""
    # The command's name is in brackets and may itself hold spaces and brackets.
    return text.rpartition(")")[2].split()[index]
