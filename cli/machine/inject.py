"""``evenkeel inject``: faults into a job that runs on this machine, to see it cope."""

import importlib
from pathlib import Path
from typing import Annotated, Any

import typer

from evenkeel.cli.errors import CommandError, ExitStatus
from evenkeel.cli.terminal.output import say

app = typer.Typer(help="Faults into a job that runs on this machine.", no_args_is_help=True)

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN_DIR", help="Run directory of the job: where the launcher keeps job.json.")
]
FactorArgument = Annotated[
    float, typer.Argument(metavar="FACTOR", help="1 = healthy, 2 = takes twice as long; from 1 to 1000.")
]
RankArgument = Annotated[int, typer.Argument(metavar="RANK", min=0, help="Rank to hit.")]


@app.command()
def slow(
    run_dir: RunArgument,
    rank: RankArgument,
    speed: Annotated[float, typer.Argument(metavar="SPEED", help="1.0 = healthy, 0.5 = half as fast; from 0.01 to 1.")],
) -> None:
    """Make the emulated device of a rank slower, or healthy again with 1.0.

    Example: evenkeel inject slow out/run 3 0.5
    """
    _inject("slow", run_dir, rank, speed)
    say(f"Rank {rank} now computes at {speed:g} of its healthy speed.")


@app.command("slow-input")
def slow_input(
    run_dir: RunArgument,
    rank: RankArgument,
    seconds: Annotated[
        float, typer.Argument(metavar="SECONDS", help="Least time of a read of input; 0 = healthy, to 3600.")
    ],
) -> None:
    """Make the input of a rank slow: each read, one an iteration and one a micro-batch, takes at least SECONDS.

    Example: evenkeel inject slow-input out/run 3 0.05
    """
    _inject("slow_input", run_dir, rank, seconds)
    say(f"Each read of the input of rank {rank} now takes at least {seconds:g} s.")


@app.command("slow-link")
def slow_link(
    run_dir: RunArgument,
    first: Annotated[int, typer.Argument(metavar="A", min=0, help="Rank at one end.")],
    second: Annotated[int, typer.Argument(metavar="B", min=0, help="Rank at the other end.")],
    factor: FactorArgument,
) -> None:
    """Make the emulated link between two ranks slower, or healthy again with 1.

    Example: evenkeel inject slow-link out/run 0 4 2
    """
    _inject("slow_link", run_dir, first, second, factor)
    say(f"Transfers between rank {first} and rank {second} now take {factor:g} times as long.")


@app.command("slow-endpoint")
def slow_endpoint(
    run_dir: RunArgument,
    rank: RankArgument,
    factor: FactorArgument,
) -> None:
    """Make all emulated links of a rank slower, or healthy again with 1.

    Example: evenkeel inject slow-endpoint out/run 3 1.5
    """
    _inject("slow_endpoint", run_dir, rank, factor)
    say(f"Transfers of rank {rank} now take {factor:g} times as long.")


@app.command()
def kill(run_dir: RunArgument, rank: RankArgument) -> None:
    """Kill the process of a rank (SIGKILL).

    Example: evenkeel inject kill out/run 3
    """
    _inject("kill", run_dir, rank)
    say(f"Rank {rank} is killed.")


@app.command()
def stop(run_dir: RunArgument, rank: RankArgument) -> None:
    """Freeze the process of a rank (SIGSTOP).

    Example: evenkeel inject stop out/run 3
    """
    _inject("stop", run_dir, rank)
    say(f"Rank {rank} is frozen; go on with: evenkeel inject cont {run_dir} {rank}")


@app.command("cont")
def go_on(run_dir: RunArgument, rank: RankArgument) -> None:
    """Let a frozen rank go on (SIGCONT).

    Example: evenkeel inject cont out/run 3
    """
    _inject("cont", run_dir, rank)
    say(f"Rank {rank} goes on.")


@app.command()
def hang(run_dir: RunArgument, rank: RankArgument) -> None:
    """Make a rank hang in its computation while its heartbeats go on.

    Example: evenkeel inject hang out/run 3
    """
    _inject("hang", run_dir, rank)
    say(f"Rank {rank} hangs.")


def _inject(verb: str, *arguments: Any) -> None:
    """Calls the SDK's injector; what is wrong with the run directory or the rank becomes a command error."""
    function = getattr(importlib.import_module("evenkeel.trainer_sdk.launcher.inject"), verb)
    try:
        function(*arguments)
    except (OSError, ValueError, KeyError) as error:
        raise CommandError(
            f"cannot {verb.replace('_', ' ')}: {error}",
            # What is wrong with an argument says itself what would do.
            next_step="" if isinstance(error, ValueError) else "check that the job runs and that RUN_DIR is its folder",
            status=ExitStatus.USAGE,
        ) from error
