"""``evenkeel schedule``: the best pipeline plan for a case in a file."""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from google.protobuf import json_format

from cli.errors import CommandError, ExitStatus
from cli.output import OutputFormat, say, show_json, show_rows
from cli.session import OutputOption, output_of
from layouts.codec import layout_to_proto
from layouts.layout import Layout
from pipelines.case import Case, case_from_json
from pipelines.evaluate import evaluate
from pipelines.layout import layout_of
from pipelines.plan import Plan, plan_to_json
from pipelines.search.budget import Budget
from pipelines.search.generate import DEFAULT_EVALUATIONS, generate

COLUMNS = {
    "device": "DEVICE",
    "stages": "STAGES",
    "layers": "LAYERS",
    "busy": "BUSY",
    "bubble_fraction": "BUBBLE",
    "peak_activation": "PEAK ACTIVATION",
}


def schedule(
    context: typer.Context,
    case_file: Annotated[Path, typer.Argument(metavar="CASE.json", help="The case (docs/pipelines.md).")],
    deadline: Annotated[
        float | None,
        typer.Option("--deadline", min=0.001, metavar="SECONDS", help="Stop then with the best found so far."),
    ] = None,
    evaluations: Annotated[
        int,
        typer.Option("--evaluations", min=1, help="Schedules to try; alone, it always gives the same plan."),
    ] = DEFAULT_EVALUATIONS,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the search.")] = 0,
    proves: Annotated[
        bool, typer.Option("--prove", help="Go on until the plan is proven to be the best; small cases only.")
    ] = False,
    layout_file: Annotated[
        Path | None,
        typer.Option("--layout", metavar="FILE", help="Write the plan there as the layout of a job (docs/engine.md)."),
    ] = None,
    replicas: Annotated[int, typer.Option("--replicas", min=1, help="Replicas of the layout that work like this.")] = 1,
    output: OutputOption = None,
) -> None:
    """Find the partition, placement and F/B/W order of a pipeline.

    Example: evenkeel schedule case.json --deadline 10 -o json
    """
    case = _read(case_file)
    begin = time.monotonic()
    try:
        found = generate(case, Budget(evaluations, deadline_seconds=deadline, clock=time.monotonic), seed=seed)
        plan, is_optimal = found.plan, found.gap <= 1e-9
        if proves and not is_optimal:
            plan, is_optimal = _prove(case, plan)
    except ValueError as error:
        raise CommandError(f"{case_file}: {error}", status=ExitStatus.FAILURE) from error
    document = _document(case, plan, found.bound, is_optimal)
    document["search"] = {
        "evaluations": found.evaluations,
        "seed": seed,
        "seconds": round(time.monotonic() - begin, 3),
    }
    if layout_file is not None:
        _write_layout(layout_of(plan, replicas), layout_file)
    if output_of(context, output) is OutputFormat.JSON:
        show_json(document)
        return
    show_rows(document["devices"], COLUMNS, OutputFormat.TABLE)
    verdict = "proven optimal" if is_optimal else f"{document['gap']:.2%} above the lower bound {found.bound:g}"
    say(f"makespan {document['makespan']:g}, {len(plan.partition)} stages: {verdict}; -o json shows the order of work")


def _read(path: Path) -> Case:
    try:
        return case_from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}", status=ExitStatus.USAGE) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CommandError(
            f"{path} is no JSON: {error}", next_step="docs/pipelines.md shows a case", status=ExitStatus.USAGE
        ) from error
    except ValueError as error:
        raise CommandError(
            f"{path}: {error}", next_step="docs/pipelines.md shows a case", status=ExitStatus.USAGE
        ) from error


def _write_layout(layout: Layout, path: Path) -> None:
    message = json_format.MessageToDict(layout_to_proto(layout), preserving_proto_field_name=True)
    try:
        path.write_text(json.dumps(message) + "\n", encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}", status=ExitStatus.USAGE) from error


def _prove(case: Case, plan: Plan) -> tuple[Plan, bool]:
    try:
        from pipelines.exact import prove  # noqa: PLC0415 - only proofs need ortools
    except ModuleNotFoundError as error:
        raise CommandError(
            "--prove needs ortools", next_step="pip install 'evenkeel[pipelines]'", status=ExitStatus.USAGE
        ) from error
    proof = prove(case, plan)
    return proof.plan, proof.is_optimal


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
        "gap": evaluation.makespan / bound - 1.0,
        "is_optimal": is_optimal,
        "devices": devices,
        "plan": plan_to_json(plan),
    }
