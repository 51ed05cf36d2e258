"""``evenkeel run`` and ``evenkeel launch``: training jobs, by the SDK's launchers."""

import os
import sys
from collections.abc import Mapping

import typer

from evenkeel.cli.session import settings_of_stack


def run(context: typer.Context) -> None:
    """Run a training job: one process for each rank, started again when one dies.

    Settings that are not in the environment come from the local stack, if it runs; without any the job trains alone.

    Example: evenkeel run examples/gpt.json
    """
    _become("evenkeel.trainer_sdk.launcher", context.args, settings_of_stack(context))


def launch(context: typer.Context) -> None:
    """Run a script as replicas, some on each host; one that dies is replaced.

    Example: evenkeel launch --nproc-per-node 3 examples/replicas/ddp.py
    """
    # Torch's warnings are several lines for each connection of a host without a name, or that ends: ranks tell of ends.
    _become("evenkeel.trainer_sdk.launcher.agent", context.args, {"TORCH_CPP_LOG_LEVEL": "ERROR"})


def _become(module: str, arguments: list[str], settings: Mapping[str, str]) -> None:
    # The launcher takes this process's place: signals and its exit status need no middleman.
    sys.stdout.flush()
    os.execve(  # noqa: S606
        sys.executable, [sys.executable, "-m", module, *arguments], {**settings, **os.environ}
    )
