"""Faults on purpose, for a job of this machine: what ``evenkeel inject`` calls."""

import os
import signal
from contextlib import closing
from pathlib import Path

from evenkeel.trainer_sdk.devices.links import LinkTable
from evenkeel.trainer_sdk.devices.speeds import SpeedTable
from evenkeel.trainer_sdk.launcher.description.run_state import RankProcess, read_run_state

_LEAST_SPEED = 0.01
_MOST_INPUT_SECONDS = 3600.0
_MOST_TIMES = 1000.0


def slow(run_dir: Path, rank: int, speed: float) -> None:
    """Let a rank's emulated device compute at ``speed`` from its next segment on; 1.0 makes it healthy.

    Raises:
        ValueError: No such job or rank, no speed from 0.01 to 1, or the job's devices are not emulated.
    """
    if not _LEAST_SPEED <= speed <= 1.0:
        raise ValueError(f"speed {speed:g}: give 1 for healthy, 0.5 for half as fast, {_LEAST_SPEED:g} at least")
    with _speed_table(run_dir) as table:
        table.set_speed(rank, speed)


def slow_input(run_dir: Path, rank: int, seconds: float) -> None:
    """Let each read of a rank's input (one an iteration, one a micro-batch) take at least so long; 0 is healthy.

    Raises:
        ValueError: No such job or rank, no seconds from 0 to an hour, or the job's devices are not emulated.
    """
    if not 0.0 <= seconds <= _MOST_INPUT_SECONDS:
        raise ValueError(f"{seconds:g} seconds: give 0 for healthy, {_MOST_INPUT_SECONDS:g} at most")
    with _speed_table(run_dir) as table:
        table.set_input_seconds(rank, seconds)


def slow_link(run_dir: Path, first: int, second: int, factor: float) -> None:
    """Let transfers over the emulated link between two ranks take ``factor`` times as long; 1.0 makes it healthy.

    Raises:
        ValueError: No such job or ranks, no factor from 1 to 1,000, or the job's links are not emulated.
    """
    with _link_table(run_dir, factor) as table:
        table.set_factor(first, second, factor)


def slow_endpoint(run_dir: Path, rank: int, factor: float) -> None:
    """The same for every link of a rank, as a sick network interface would have it.

    Raises:
        ValueError: No such job or rank, no factor from 1 to 1,000, or the job's links are not emulated.
    """
    with _link_table(run_dir, factor) as table:
        for other in range(table.num_ranks):
            if other != rank:
                table.set_factor(rank, other, factor)


def hang(run_dir: Path, rank: int) -> None:
    """Let a rank's emulated device take work and never finish it; the process and its heartbeats live on.

    Raises:
        ValueError: No such job or rank, or the job's devices are not emulated.
    """
    with _speed_table(run_dir) as table:
        table.set_hangs(rank, True)


def kill(run_dir: Path, rank: int) -> int:
    """``kill -9`` a rank's process; returns the process id.

    Raises:
        ValueError: No such job, or the rank has no process now.
    """
    return _send(run_dir, rank, signal.SIGKILL)


def stop(run_dir: Path, rank: int) -> int:
    """Stop a rank's process in its tracks (SIGSTOP), heartbeats included; returns the process id.

    Raises:
        ValueError: No such job, or the rank has no process now.
    """
    return _send(run_dir, rank, signal.SIGSTOP)


def cont(run_dir: Path, rank: int) -> int:
    """Let a stopped rank go on, and release a hanging device; returns the process id.

    Raises:
        ValueError: No such job, or the rank has no process now.
    """
    if read_run_state(run_dir).speed_table:
        with _speed_table(run_dir) as table:
            table.set_hangs(rank, False)
    return _send(run_dir, rank, signal.SIGCONT)


def _link_table(run_dir: Path, factor: float) -> closing[LinkTable]:
    if not 1.0 <= factor <= _MOST_TIMES:
        raise ValueError(f"factor {factor:g}: give 1 for healthy, 2 for twice as slow, {_MOST_TIMES:g} at most")
    state = read_run_state(run_dir)
    if not state.link_table:
        raise ValueError(
            f"the links of job {state.job_id} are not emulated: start it with link_bytes_per_second in its job file"
        )
    return closing(LinkTable(Path(state.link_table)))


def _speed_table(run_dir: Path) -> closing[SpeedTable]:
    state = read_run_state(run_dir)
    if not state.speed_table:
        raise ValueError(
            f'the devices of job {state.job_id} are not emulated: start it with "device_kind": "emulated" in its '
            "job file; kill, stop and cont work with every device"
        )
    return closing(SpeedTable(Path(state.speed_table)))


def _send(run_dir: Path, rank: int, number: signal.Signals) -> int:
    state = read_run_state(run_dir)
    process = state.process(rank)
    if not process.alive or not _is_child(process, state.zygote_pid):
        raise ValueError(f"rank {rank} of job {state.job_id} has no process now")
    os.kill(process.pid, number)
    return process.pid


def _is_child(process: RankProcess, zygote_pid: int) -> bool:
    """Whether the pid is still the job's: after a crash of the launcher the file may be out of date."""
    status = Path(f"/proc/{process.pid}/status")
    if not Path("/proc/self/status").exists():
        return True  # no /proc on this system: the file's word has to do
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return False
    return f"PPid:\t{zygote_pid}" in lines
