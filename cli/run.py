"""``evenkeel run``: a training job on this machine, by the SDK's launcher."""

import os
import sys

import typer

from cli.output import say
from cli.session import settings_of_stack

_HELP = frozenset(("-h", "--help"))


def run(context: typer.Context) -> None:
    """Run a training job: one process for each rank, started again when one dies.

    Arguments go to the launcher; evenkeel run -- --help shows them. Settings that are not in the environment come from
    the local stack, if it runs; without any the job trains alone.

    Example: evenkeel run -- --help
    """
    environment = {**settings_of_stack(context), **os.environ}
    if "EVENKEEL_FLEET_ADDRESS" not in environment and not _HELP.intersection(context.args):
        say("No controller: EVENKEEL_FLEET_ADDRESS is not set and no local stack runs. The job trains alone.")
    sys.stdout.flush()
    # The launcher takes this process's place: signals and its exit status need no middleman.
    os.execve(  # noqa: S606
        sys.executable, [sys.executable, "-m", "trainer_sdk.launcher", *context.args], environment
    )
