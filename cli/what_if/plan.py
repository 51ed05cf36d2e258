"""``evenkeel plan``: what the planner would do in a state that a file describes. Nothing is touched."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from evenkeel.cli.documents import read_json, readable, schema_option
from evenkeel.cli.errors import CommandError, ExitStatus
from evenkeel.cli.session import OutputOption, output_of
from evenkeel.cli.terminal.output import OutputFormat, say, show_json, show_rows
from evenkeel.history.documents import layout_to_document
from evenkeel.planning.documents.question import StateError, question_from_document
from evenkeel.planning.documents.schema import STATE_SCHEMA
from evenkeel.planning.search.solver import solve
from evenkeel.planning.situation import Situation
from evenkeel.planning.solution import NoPlanError, Solution
from evenkeel.services.scheduler.plans.decision import Decision, DecisionRule, decide

COLUMNS = {"what": "WHAT", "seconds": "SECONDS", "of_bound_percent": "% OF BOUND", "reason": "WHY"}


def plan(
    context: typer.Context,
    state_file: Annotated[Path, typer.Argument(metavar="STATE.json", help="The state (docs/planning.md).")],
    output: OutputOption = None,
    _schema: Annotated[bool, schema_option(lambda: STATE_SCHEMA)] = False,
) -> None:
    """Solve a state that a file describes and say what would be done, what lost, and why. A dry run.

    Example: evenkeel plan examples/plan_state.json
    """
    document = read_json(readable(state_file), "docs/planning.md")
    try:
        situation = question_from_document(document)
    except StateError as error:
        raise CommandError(
            f"{state_file}: {error}", next_step="docs/planning.md shows a state", status=ExitStatus.USAGE
        ) from error
    begin = time.perf_counter()
    try:
        solution = solve(situation)
    except NoPlanError as error:
        raise CommandError(f"no plan: {error}") from error
    solve_seconds = time.perf_counter() - begin
    rule = DecisionRule(**{name: float(each) for name, each in document.get("rule", {}).items()})
    decision = decide(rule, solution, forced=bool(situation.dead), num_flips=int(document.get("flips", 0)))
    if output_of(context, output) is OutputFormat.JSON:
        show_json(_document(situation, solution, decision, solve_seconds))
        return
    show_rows(_rows(solution), COLUMNS, OutputFormat.TABLE)
    say(solution.reason)
    say(f"{decision.choice.value}: {decision.reason}")
    for number, replica in enumerate(solution.layout.replicas):
        stages = " | ".join(
            f"{stage.first_block}-{stage.stop_block - 1}: "
            + " ".join(f"{rank}x{share}" for rank, share in zip(stage.ranks, stage.shares, strict=True))
            for stage in replica.stages
        )
        say(f"replica {number}, {replica.num_micro_batches} micro-batches: {stages}")
    for route in solution.layout.routes:
        say(f"micro-batch {route.micro_batch}, stage {route.stage}: on replica {route.replica}")


def _rows(solution: Solution) -> list[dict[str, Any]]:
    def of_bound(seconds: float) -> float | None:
        return 100.0 * solution.bound_seconds / seconds if seconds else None

    chosen = " + ".join(action.lever for action in solution.actions) or "do nothing"
    rows = [{"what": "bound", "seconds": solution.bound_seconds, "of_bound_percent": 100.0, "reason": ""}]
    rows.append(
        {
            "what": chosen,
            "seconds": solution.predicted_seconds,
            "of_bound_percent": of_bound(solution.predicted_seconds),
            "reason": "; ".join(action.description for action in solution.actions),
        }
    )
    rows += [
        {
            "what": other.name,
            "seconds": other.predicted_seconds,
            "of_bound_percent": of_bound(other.predicted_seconds),
            "reason": other.reason,
        }
        for other in solution.alternatives
    ]
    return rows


def _document(situation: Situation, solution: Solution, decision: Decision, solve_seconds: float) -> dict[str, Any]:
    told = {**asdict(solution), **asdict(solution.price)}
    del told["price"]
    return {
        "decision": asdict(decision),
        **told,
        "layout": layout_to_document(solution.layout),
        "idle_seconds": solution.idle_seconds or None,
        "gap_to_bound": solution.predicted_seconds / solution.bound_seconds - 1.0,
        "dead": list(situation.dead),
        "solve_seconds": solve_seconds,
    }
