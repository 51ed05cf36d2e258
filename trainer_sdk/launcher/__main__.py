"""``python -m evenkeel.trainer_sdk.launcher JOB.json``: run a job in the foreground until it ends or is told to."""

import argparse
import logging
import os
import signal
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import TIMEOUT_MAX

from evenkeel.contracts.interrupts import ending_on_interrupt

with ending_on_interrupt():
    from evenkeel.trainer_sdk.launcher.description.job_file import load_job
    from evenkeel.trainer_sdk.launcher.description.resume import resumed
    from evenkeel.trainer_sdk.launcher.description.run_folder import held
    from evenkeel.trainer_sdk.launcher.foreground import Parser, run_in_foreground, tell
    from evenkeel.trainer_sdk.launcher.launcher import Launcher

EXIT_USAGE = 2


def main(arguments: list[str] | None = None) -> int:
    """Run a job; returns 0 when it finished, 1 when it failed, 2 on bad input, 128 + n when signal n ended it."""
    parser = Parser(
        prog="evenkeel run",
        description="Run a training job on this machine: one process for each rank, started again when one dies. "
        "Addresses that are not in the environment are those of the local stack, if it runs; without any the job "
        "trains alone.",
        epilog="Example: evenkeel run examples/gpt.json",
    )
    parser.add_argument("job", type=Path, metavar="JOB.json", help="file that describes the job, see docs/engine.md")
    parser.add_argument("--run-dir", type=Path, help="folder for job.json, the speed table and logs")
    parser.add_argument(
        "--restart-delay", type=_seconds, metavar="SECONDS", help="bring dead ranks back after this long"
    )
    parser.add_argument("--logs-to-files", action="store_true", help="each rank writes to <run-dir>/logs")
    parser.add_argument("--fresh", action="store_true", help="start anew: set the job's checkpoints aside")
    parser.add_argument(
        "--progress", type=_seconds, default=5.0, metavar="SECONDS", help="between two lines on its progress; default 5"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no lines on its progress")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s launcher: %(message)s")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # as in the ranks
    logging.getLogger("torch").setLevel(logging.WARNING)  # at its end it tells of its caches
    with ExitStack() as stack:
        try:
            spec, model = load_job(options.job, os.environ, options.run_dir)
            stack.enter_context(held(spec.run_dir))
            if options.restart_delay is not None:
                spec = replace(spec, restart_delay_seconds=options.restart_delay)
            if options.logs_to_files:
                spec = replace(spec, logs_to_files=True)
            spec, begins = resumed(spec, fresh=options.fresh)
            launcher = Launcher(spec, model)
        except ValueError as error:
            print(f"evenkeel run: {error}", file=sys.stderr)
            return EXIT_USAGE
        except OSError as error:
            print(f"evenkeel run: {error}; --run-dir gives the job another folder", file=sys.stderr)
            return 1
        if not spec.fleet_address:
            print("the job trains alone: EVENKEEL_FLEET_ADDRESS is not set and no local stack runs", file=sys.stderr)
        if begins:
            tell(begins)
        return run_in_foreground(launcher, progress_seconds=0.0 if options.quiet else options.progress)


def _seconds(text: str) -> float:
    """A duration from the command line."""
    value = float(text)
    if not 0.0 <= value <= TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"{text}: 0 or more")
    return value


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # while the job's model was loading: nothing runs yet
        sys.exit(128 + signal.SIGINT)
