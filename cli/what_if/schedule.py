"""``evenkeel schedule``: the best pipeline plan for a case in a file."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Self

import typer
from google.protobuf import json_format
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from evenkeel.cli.documents import read_json, readable
from evenkeel.cli.errors import CommandError, ExitStatus, needing
from evenkeel.cli.session import OutputOption, output_of
from evenkeel.cli.terminal.output import OutputFormat, say, show_json, show_rows
from evenkeel.layouts.codec import layout_to_proto
from evenkeel.layouts.layout import Layout
from evenkeel.pipelines.case import Case
from evenkeel.pipelines.case_file import case_from_json, passed_over
from evenkeel.pipelines.evaluate import evaluate
from evenkeel.pipelines.layout import layout_of
from evenkeel.pipelines.plan import Plan, plan_to_json
from evenkeel.pipelines.search.budget import DEFAULT_EVALUATIONS, Budget

COLUMNS = {
    "device": "DEVICE",
    "stages": "STAGES",
    "layers": "LAYERS",
    "busy": "BUSY",
    "bubble_fraction": "BUBBLE",
    "peak_activation": "PEAK ACTIVATION",
}
INTERRUPTED = 130
_NO_END = 10**12
_SEARCH_PART = 0.5  # of a deadline, where a proof is to follow
_BOUND_PART = 0.1  # of a deadline that is long enough to load the solver
_LOADING_SECONDS = 3.0
_BOUND_SECONDS = 2.0  # as the solver counts; the profiled models take 0.6 or less of processor time
_MOST_DEALS = 2000  # devices times layers for which the solver is asked


def schedule(
    context: typer.Context,
    case_file: Annotated[Path, typer.Argument(metavar="CASE.json", help="The case (docs/pipelines.md).")],
    deadline: Annotated[
        float | None,
        typer.Option("--deadline", min=0.001, metavar="SECONDS", help="Stop then with the best found so far."),
    ] = None,
    evaluations: Annotated[
        int | None,
        typer.Option(
            "--evaluations",
            min=1,
            help=f"Schedules to try; alone, it always gives the same plan. {DEFAULT_EVALUATIONS} without a deadline.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the search.")] = 0,
    proves: Annotated[
        bool, typer.Option("--prove", help="Go on until the plan is proven to be the best; small cases only.")
    ] = False,
    layout_file: Annotated[
        Path | None,
        typer.Option("--layout", metavar="FILE", help="Write the plan there as the layout of a job (docs/engine.md)."),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option("--replicas", min=1, max=100_000, help="With --layout: replicas that work like this; else 1."),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Find the partition, placement and F/B/W order of a pipeline.

    Example: evenkeel schedule examples/pipeline_case.json
    """
    if replicas is not None and layout_file is None:
        raise CommandError(
            "--replicas: only a layout has replicas", next_step="add --layout FILE", status=ExitStatus.USAGE
        )
    case_file = readable(case_file)
    case = _read(case_file)
    from evenkeel.pipelines.search.generate import generate  # noqa: PLC0415 - loads machine code, and there is a case for it now

    if evaluations is None:
        evaluations = DEFAULT_EVALUATIONS if deadline is None else _NO_END
    begin = time.monotonic()
    # A proof gets the time that is left, so there must be some.
    part = _SEARCH_PART if proves and deadline is not None else 1.0
    with _Waiting(evaluations, None if deadline is None else part * deadline) as waiting:
        try:
            found = generate(case, waiting.budget, seed=seed, bound=_known_bound(case, deadline))
        except ValueError as error:
            raise CommandError(f"{case_file}: {error}", status=ExitStatus.FAILURE) from error
        plan, is_optimal, proof = found.plan, found.gap <= 1e-9, ""
        if proves and not is_optimal:
            end = None if deadline is None else begin + deadline
            plan, is_optimal, proof = _prove(case, plan, lambda: waiting.is_over(end))
    document = _document(case, plan, found.bound, is_optimal)
    document["search"] = {
        "evaluations": found.evaluations,
        "seed": seed,
        "seconds": round(time.monotonic() - begin, 3),
        "interrupted": waiting.budget.is_stopped,
    }
    if output_of(context, output) is OutputFormat.JSON:
        show_json(document)
    else:
        show_rows(document["devices"], COLUMNS, OutputFormat.TABLE)
        verdict = "proven optimal" if is_optimal else f"{document['gap']:.2%} above the lower bound {found.bound:g}"
        say(f"makespan {document['makespan']:g}, {len(plan.partition)} stages: {verdict}; -o json shows the order")
    if layout_file is not None:
        _write_layout(layout_of(plan, replicas or 1), layout_file)
    if proof:
        say(f"not proven: {proof}")
    if waiting.budget.is_stopped:
        say("interrupted: this is the best plan so far")
        raise typer.Exit(INTERRUPTED)


class _Waiting:
    """What whoever waits sees and can do: a bar on a terminal; the first Ctrl-C ends the search with its best plan."""

    def __init__(self, evaluations: int, deadline_seconds: float | None) -> None:
        columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
        console = Console(stderr=True)
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        bar = self._progress.add_task("searching, Ctrl-C ends it with the best plan so far", total=1.0)
        self.budget = Budget(
            evaluations,
            deadline_seconds=deadline_seconds,
            clock=time.monotonic,
            on_progress=lambda spent: self._progress.update(bar, completed=spent),
        )

    def is_over(self, end: float | None) -> bool:
        """Whether somebody pressed Ctrl-C or the clock has reached the end."""
        return self.budget.is_stopped or (end is not None and time.monotonic() >= end)

    def __enter__(self) -> Self:
        self._progress.start()
        self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGINT, self._before)
        self._progress.stop()

    def _interrupt(self, *_: object) -> None:
        if self.budget.is_stopped:
            raise KeyboardInterrupt
        self.budget.stop()


def _read(path: Path) -> Case:
    document = read_json(path, "docs/pipelines.md")
    try:
        case = case_from_json(document)
    except ValueError as error:
        raise CommandError(
            f"{path}: {error}", next_step="docs/pipelines.md shows a case", status=ExitStatus.USAGE
        ) from error
    if notes := passed_over(document):
        say(f"{path}: passed over, a case has no such keys: {', '.join(notes)}")
    return case


def _write_layout(layout: Layout, path: Path) -> None:
    message = json_format.MessageToDict(layout_to_proto(layout), preserving_proto_field_name=True)
    try:
        path.write_text(json.dumps(message) + "\n", encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}", status=ExitStatus.USAGE) from error


def _known_bound(case: Case, deadline: float | None) -> float:
    """What whole layers make certain; 0 where that is not known to be more than the search's own bound."""
    is_large = case.devices * len(case.layers) > _MOST_DEALS
    if is_large or not case.has_equal_devices or case.stage_bias is not None:
        return 0.0
    if deadline is not None and deadline < _LOADING_SECONDS:
        return 0.0
    try:
        from evenkeel.pipelines.proofs.placement_bound import placement_bound  # noqa: PLC0415 - needs ortools, which may be missing
    except ModuleNotFoundError:
        return 0.0
    part = None if deadline is None else _BOUND_PART * deadline
    return placement_bound(case, seconds=_BOUND_SECONDS, deadline_seconds=part)


def _prove(case: Case, plan: Plan, is_over: Callable[[], bool]) -> tuple[Plan, bool, str]:
    """The best plan known, whether that is proven, and if not why."""
    with needing("--prove needs", "pip install 'evenkeel[pipelines]'"):
        from evenkeel.pipelines.proofs.exact import prove  # noqa: PLC0415 - only proofs need ortools
    try:
        proof = prove(case, plan, is_over=is_over)
    except ValueError as error:
        return plan, False, str(error)
    return proof.plan, proof.is_optimal, "" if proof.is_optimal else "the time did not suffice"


def _document(case: Case, plan: Plan, bound: float, is_optimal: bool) -> dict[str, Any]:
    evaluation = evaluate(case, plan)
    first = [sum(plan.partition[:stage]) for stage in range(len(plan.partition))]
    devices = []
    for device in range(case.devices):
        stages = [stage for stage, other in enumerate(plan.placement) if other == device]
        devices.append(
            {
                "device": device,
                "stages": stages,
                "layers": [f"{first[s]}-{first[s] + plan.partition[s] - 1}" for s in stages],
                "busy": evaluation.busy[device],
                "bubble_fraction": evaluation.bubble_fractions[device],
                "peak_activation": evaluation.peak_activation[device],
            }
        )
    return {
        "name": case.name,
        "makespan": evaluation.makespan,
        "lower_bound": bound,
        "gap": evaluation.makespan / bound - 1.0 if bound else 0.0,
        "is_optimal": is_optimal,
        "devices": devices,
        "plan": plan_to_json(plan),
    }
