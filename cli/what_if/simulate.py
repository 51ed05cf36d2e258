"""``evenkeel simulate``: a fleet that does not exist, its failures, and every published system on them."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from evenkeel.cli.documents import readable, schema_option
from evenkeel.cli.errors import CommandError, ExitStatus, needing
from evenkeel.cli.session import OutputOption, output_of
from evenkeel.cli.terminal.output import OutputFormat, show_json, show_rows

if TYPE_CHECKING:
    from evenkeel.simulator.fleet.result import RunResult

COLUMNS = {
    "strategy": "SYSTEM",
    "percent": "% OF FAULT-FREE",
    "bound_percent": "% BOUND",
    "of_bound_percent": "% OF BOUND",
    "paused_hours": "PAUSED h",
    "stopped_hours": "STOPPED h",
    "num_answers": "CHANGES",
    "aborted_hours": "ENDED AT h",
}

EMIT_COLUMNS = {
    "job_id": "JOB",
    "num_iterations": "ITERATIONS",
    "num_records": "RECORDS",
    "num_faults": "FAULTS",
    "epochs": "EPOCHS",
    "waited_seconds": "WAITED s",
}
_SIMULATOR = ("the simulator needs", "pip install 'evenkeel[simulator,services]'")


def _scenario_schema() -> dict[str, Any]:
    with needing(*_SIMULATOR):
        from evenkeel.simulator.baselines import STRATEGIES  # noqa: PLC0415
        from evenkeel.simulator.fleet.scenario.schema import scenario_schema  # noqa: PLC0415
    return scenario_schema(list(STRATEGIES))


def simulate(
    context: typer.Context,
    scenario_file: Annotated[Path, typer.Argument(metavar="SCENARIO.yaml", help="Scenario; docs/simulator.md.")],
    strategy: Annotated[
        list[str] | None, typer.Option("--strategy", "-s", help="Only this system; may be repeated.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Instead of the scenario's own seed.")] = None,
    segments: Annotated[bool, typer.Option(help="JSON: with the whole course of every run.")] = False,
    picture: Annotated[Path | None, typer.Option(help="Draw the runs into this file (PNG, SVG, PDF).")] = None,
    emit: Annotated[bool, typer.Option("--emit", help="Run it in real time against the services instead.")] = False,
    speed: Annotated[
        float | None, typer.Option(min=0.001, help="With --emit: so many times faster than the scenario; else 1.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.001, help="With --emit: stop after so many real seconds.")
    ] = None,
    job_id: Annotated[str | None, typer.Option(help="With --emit: the job's id; else from name and time.")] = None,
    output: OutputOption = None,
    _schema: Annotated[bool, schema_option(_scenario_schema)] = False,
) -> None:
    """Simulate a failing fleet and compare what Evenkeel and the published systems make of it.

    All systems see the same failures. The same seed gives the same result. Nothing is measured: all is simulated.

    With --emit the scenario's job runs in real time: telemetry goes to Kafka, the job registers at the fleet API, and
    the scheduler plans for it through simulated rank controllers. Systems are not compared then: the services decide.

    Example: evenkeel simulate simulator/scenarios/fail_stop_32.yaml -o json
    """
    # Late: only this command needs numpy and YAML, which come with the extra "simulator".
    with needing(*_SIMULATOR):
        from evenkeel.simulator.baselines import STRATEGIES  # noqa: PLC0415
        from evenkeel.simulator.fleet.comparison import result_row, run_scenario  # noqa: PLC0415
        from evenkeel.simulator.fleet.scenario.scenario import ScenarioError, load_scenario  # noqa: PLC0415
    try:
        scenario = load_scenario(readable(scenario_file), list(STRATEGIES))
    except ScenarioError as error:
        raise CommandError(str(error), status=ExitStatus.USAGE) from error
    as_json = output_of(context, output) is OutputFormat.JSON
    live = {"--speed": speed, "--seconds": seconds, "--job-id": job_id}
    compared = {"--strategy": strategy, "--segments": segments or None, "--picture": picture}
    _refuse_unused(compared if emit else live, emit=emit)
    if emit:
        from evenkeel.cli.what_if.simulate_live import emit_scenario  # noqa: PLC0415

        report = emit_scenario(context, scenario, speed=speed or 1.0, seconds=seconds, job_id=job_id, seed=seed)
        show_json(report) if as_json else show_rows([report], EMIT_COLUMNS, OutputFormat.TABLE)
        return
    chosen = strategy or list(scenario.strategies)
    unknown = [name for name in chosen if name not in STRATEGIES]
    if unknown:
        raise CommandError(
            f"unknown system {', '.join(unknown)}",
            next_step=f"one of: {', '.join(STRATEGIES)}",
            status=ExitStatus.USAGE,
        )
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bars = {name: progress.add_task(name, total=1.0) for name in chosen}
        results = run_scenario(
            scenario,
            [STRATEGIES[name] for name in bars],
            seed=seed,
            on_progress=lambda name, done: progress.update(bars[name], completed=done),
        )
    if as_json:
        rows = [result_row(result, segments=segments) for result in results]
        show_json({"scenario": scenario.name, "seed": scenario.seed if seed is None else seed, "results": rows})
    else:
        show_rows([_shown(result) for result in results], COLUMNS, OutputFormat.TABLE)
    if picture is not None:
        _draw(picture, scenario.name, results)


def _refuse_unused(options: Mapping[str, object], *, emit: bool) -> None:
    """An option that would do nothing is a misunderstanding that nobody should wait hours to notice."""
    given = [name for name, value in options.items() if value is not None]
    if not given:
        return
    if emit:
        why, next_step = (
            "nothing is compared or drawn with --emit: the services decide",
            "leave it out, or leave --emit out",
        )
    else:
        why, next_step = "only with --emit does a job run in real time", "add --emit, or leave it out"
    raise CommandError(f"{', '.join(given)}: {why}", next_step=next_step, status=ExitStatus.USAGE)


def _shown(result: "RunResult") -> dict[str, object]:
    """A row of the table."""
    return {
        "strategy": result.strategy,
        "percent": 100.0 * result.throughput,
        "bound_percent": 100.0 * result.bound,
        "of_bound_percent": 100.0 * result.of_bound,
        "paused_hours": result.paused_seconds / 3600.0,
        "stopped_hours": result.stopped_seconds / 3600.0,
        "num_answers": result.num_answers,
        "aborted_hours": None if result.aborted_at_seconds is None else result.aborted_at_seconds / 3600.0,
    }


def _draw(path: Path, title: str, results: "list[RunResult]") -> None:
    with needing("pictures need", "pip install 'evenkeel[demo]', or leave --picture out"):
        from evenkeel.simulator.fleet.picture import draw_runs  # noqa: PLC0415
    try:
        draw_runs(path, title, results)
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot draw {path}: {error}", status=ExitStatus.USAGE) from error
