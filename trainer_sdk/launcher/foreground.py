"""A launcher in the foreground of a terminal: it ends with the job or with a signal, and says how far the job is."""

import argparse
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from evenkeel.trainer_sdk.launcher.launcher import Launcher
from evenkeel.trainer_sdk.launcher.progress.progress_lines import ProgressLines


class Parser(argparse.ArgumentParser):
    """Whoever gave the wrong arguments sees right ones: those of the epilog."""

    def error(self, message: str) -> NoReturn:
        """See there."""
        super().error(f"{message}\n{self.epilog}")


def run_in_foreground(launcher: Launcher, *, progress_seconds: float = 0.0) -> int:
    """Start a job and wait for its end; SIGINT and SIGTERM end it in order. Main thread only.

    Args:
        launcher: The job, not started yet.
        progress_seconds: Time between two lines on its progress; 0 = none.
    """
    received: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    previous = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        launcher.start()
        tell(f"job {launcher.spec.job_id} runs in {launcher.spec.run_dir}")
        spec, lines = launcher.spec, ProgressLines(launcher.progress, progress_seconds)
        status: int | None = None
        # Python runs signal handlers between the slices of this wait.
        while status is None and not received:
            status = launcher.wait(0.2)
            line = lines.line(launcher.pids, spec.world_size, spec.fleet(spec.job_id).standing)
            if line is not None:
                tell(line)
        return 128 + received[0] if status is None else status
    except RuntimeError as error:
        print(f"evenkeel run: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"evenkeel run: {error}; --run-dir gives the job another folder", file=sys.stderr)
        return 1
    finally:
        launcher.stop()
        for number, handler in previous.items():
            signal.signal(number, handler)


def tell(line: str) -> None:
    """Prints a line; when nobody reads any more the job trains on, and no further line is tried."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
