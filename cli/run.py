"""``evenkeel run``: a training job on this machine, by the SDK's launcher."""

import os
import sys

import typer

from evenkeel.cli.session import settings_of_stack


def run(context: typer.Context) -> None:
    """Run a training job: one process for each rank, started again when one dies.

    Settings that are not in the environment come from the local stack, if it runs; without any the job trains alone.

    Example: evenkeel run examples/gpt.json
    """
    # The launcher takes this process's place: signals and its exit status need no middleman.
    sys.stdout.flush()
    os.execve(  # noqa: S606
        sys.executable,
        [sys.executable, "-m", "evenkeel.trainer_sdk.launcher", *context.args],
        {**settings_of_stack(context), **os.environ},
    )
