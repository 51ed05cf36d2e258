"""Pipeline cases: published figures, the OctoPipe rules, our generator and the lower bound, case by case.

Run ``python -m benchmarks.planning.solver.pipelines``; prints Markdown tables. Each case gets S seconds of processor
time on one thread (2.5 S from 8 devices on), so that a busy machine changes how long a run takes and not what it
finds; tiny and SlackPipe cases are then proven. ``--schedules N`` gives each that many schedules instead, and finds
the same again with the same ``--seed``. Unequal speeds are the same profiled models with one device at half speed, or
two at 0.8 and 0.6.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.planning.tables import table
from evenkeel import pipelines
from evenkeel.pipelines.case import Case
from evenkeel.pipelines.case_file import case_from_json
from evenkeel.pipelines.evaluate import evaluate
from evenkeel.pipelines.octopipe import octopipe
from evenkeel.pipelines.proofs.bounds import work_bound
from evenkeel.pipelines.proofs.exact import prove
from evenkeel.pipelines.proofs.placement_bound import placement_bound
from evenkeel.pipelines.search.budget import Budget
from evenkeel.pipelines.search.generate import generate

DATA = Path(pipelines.__file__).parent / "data"
_SPEEDS = {"half": (0.5,), "0.8+0.6": (0.8, 0.6)}
_SPEED_MODELS = ("nemotron-nano-v2-9B-p4-m8", "jamba-52B-p4-m8", "llama3-8B-p4-m8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case to measure: what it is, and what was published or computed for it elsewhere."""

    group: str
    name: str
    case: Case
    published: float | None = None
    reference: float | None = None
    optimum: float | None = None


def rows() -> Iterator[Row]:
    """All cases of the row "pipeline cases"."""
    for document in _documents("simpipe_cases.json"):
        case, reference = case_from_json(document), document["reference"]
        octopipe_figure = document["published"].get("octopipe")
        yield Row(
            group="unlimited",
            name=case.name,
            case=case,
            published=octopipe_figure,
            reference=reference.get("octopipe_simpipe_rules"),
        )
        for variant in document.get("variants", ()):
            yield Row(
                group="memory",
                name=f"{case.name}-mem{variant['memory_limit']}",
                case=replace(case, memory_limit=variant["memory_limit"]),
                reference=variant["reference"].get("octopipe_simpipe_rules_with_admission"),
            )
        for label, slow in _SPEEDS.items():
            if case.name.removeprefix("simpipe-") in _SPEED_MODELS:
                speeds = (1.0,) * (case.devices - len(slow)) + slow
                yield Row(group="speeds", name=f"{case.name}-{label}", case=replace(case, speeds=speeds))
    for name in ("tiny_optimum_cases.json", "slackpipe_cases.json"):
        for document in _documents(name):
            yield Row(
                group="proven",
                name=document["name"],
                case=case_from_json(document),
                published=_published(document["published"]),
                optimum=document["optimum"]["value"],
            )


def measure(row: Row, seconds: float, schedules: int | None = None, seed: int = 0) -> dict[str, Any]:
    """One line of the table."""
    case = row.case
    seconds *= 2.5 if case.devices >= 8 else 1.0
    began = time.process_time()
    timed = Budget(10**9, deadline_seconds=seconds, clock=time.process_time)
    found = generate(case, timed if schedules is None else Budget(schedules), seed=seed)
    plan, is_optimal = found.plan, found.gap <= 1e-9
    spent = time.process_time() - began
    result: dict[str, Any] = {"group": row.group, "case": row.name, "lower_bound": work_bound(case)}
    bound = placement_bound(case) if row.group == "unlimited" else None
    result["placement_bound"] = bound
    result["generated"] = evaluate(case, plan).makespan
    if row.group == "proven":
        proof = prove(case, plan, seconds_per_choice=60.0)
        plan, is_optimal = proof.plan, proof.is_optimal
    ours = evaluate(case, plan)
    rules = evaluate(case, octopipe(case)).makespan
    best_rules = min(rules, row.reference or rules)
    return result | {
        "published": row.published,
        "reference": row.reference,
        "octopipe_rules": rules,
        "ours": ours.makespan,
        "over_bound": ours.makespan / result["lower_bound"],
        "over_placement_bound": None if bound is None else ours.makespan / bound,
        "over_rules": ours.makespan / best_rules,
        "over_reference": None if row.reference is None else ours.makespan / row.reference,
        "optimum": row.optimum,
        "is_proven": is_optimal,
        "stages": len(plan.partition),
        "peak_activation": max(ours.peak_activation),
        "evaluations": found.evaluations,
        "processor_seconds": round(spent, 1),
        "total_processor_seconds": round(time.process_time() - began, 1),
    }


def main() -> None:
    """Measure all cases and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--schedules", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    results: list[dict[str, Any]] = []
    for row in rows():
        if arguments.only in f"{row.group} {row.name}":
            results.append(measure(row, arguments.seconds, arguments.schedules, arguments.seed))
            if arguments.json is not None:
                arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for group in dict.fromkeys(result["group"] for result in results):
        _print_table(group, [result for result in results if result["group"] == group])


_TITLES = {
    "case": "case",
    "optimum": "known optimum",
    "lower_bound": "simple bound",
    "placement_bound": "our bound",
    "published": "published",
    "reference": "OctoPipe rules, recorded",
    "octopipe_rules": "OctoPipe rules, our code",
    "generated": "search alone",
    "ours": "Evenkeel",
    "over_bound": "/ simple bound",
    "over_placement_bound": "/ our bound",
    "over_reference": "/ recorded rules",
    "over_rules": "/ better rules",
    "is_proven": "proven by us",
    "evaluations": "schedules tried",
    "processor_seconds": "in seconds",
}
_LEFT_OUT = {
    "unlimited": {"published", "optimum", "generated", "is_proven", "over_reference"},
    "memory": {"optimum", "generated", "is_proven"},
    "speeds": {"optimum", "generated", "is_proven"},
    "proven": {"lower_bound", "over_bound", "over_rules", "evaluations", "processor_seconds"},
}


def _print_table(group: str, results: list[dict[str, Any]]) -> None:
    keys = [key for key in _TITLES if key not in _LEFT_OUT[group]]
    keys = [key for key in keys if any(result.get(key) is not None for result in results)]
    lines = [[_cell(key, result.get(key)) for key in keys] for result in results]
    print(f"\n### {group}\n\n{table([_TITLES[key] for key in keys], lines)}")
    for key in ("over_bound", "over_placement_bound", "over_rules", "over_reference"):
        values = [result[key] for result in results if result[key] is not None]
        if values:
            print(f"\n{key}: mean {statistics.mean(values):.4f}, worst {max(values):.4f}, of {len(values)}")


def _cell(key: str, value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and key.startswith("over_"):
        return f"{value:.4f}" if key.endswith("bound") else f"{value:.3f}"
    if isinstance(value, int | float):
        return f"**{value:,.0f}**" if key == "ours" else f"{value:,.0f}"
    return str(value).removeprefix("simpipe-").removeprefix("pipelinesimulator-")


def _published(figures: dict[str, float]) -> float | None:
    return figures.get("slackpipe_cpsat", figures.get("cpsat_proven_optimum"))


def _documents(name: str) -> list[dict[str, Any]]:
    documents: list[dict[str, Any]] = json.loads((DATA / name).read_text(encoding="utf-8"))
    return documents


if __name__ == "__main__":
    main()
