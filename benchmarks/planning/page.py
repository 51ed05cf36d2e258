"""Results to the page: ``python -m benchmarks.planning.page`` writes ``docs/benchmarks/planning.md``.

The words are in ``page.md`` beside this file. ``<!-- part: title -->`` in it becomes the table that a part printed
under that title (``out/planning/<part>.md``), ``{name}`` a figure out of the parts' JSON files.
"""

import argparse
import json
import re
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.planning.baselines import MOST_POINTS
from benchmarks.planning.papers.scenarios import OURS
from benchmarks.planning.tables import percent, span, table

TEMPLATE = Path(__file__).with_name("page.md")
PAGE = Path("docs/benchmarks/planning.md")
MOST_WORDS = 3000
_NEAR_BOUND = 1.03
Row = dict[str, Any]


def shown_table(out: Path, part: str, title: str) -> str:
    """The table that a part printed under a title that begins so; the first one where no title is given.

    Raises:
        SystemExit: The part has not run, or has printed no such table.
    """
    path = out / f"{part}.md"
    if not path.exists():
        raise SystemExit(f"{path} is not there: run python -m benchmarks.planning --parts {part} --out {out}")
    sections = re.split(r"^#+ ", path.read_text(), flags=re.MULTILINE)
    for section in sections:
        lines = [line for line in section.splitlines() if line.startswith("|")]
        if lines and section.startswith(title):
            return "\n".join(lines)
    raise SystemExit(f"{path} has no table {title!r}: run the part again")


def checked(checks: Iterable[Row]) -> str:
    """Re-implemented systems beside their papers, a line a system and table of a paper."""
    lines: dict[tuple[str, str], list[Row]] = {}
    for check in checks:
        lines.setdefault((check["system"], check["table"]), []).append(check)
    found = []
    for (system, where), some in lines.items():
        near = [check for check in some if abs(check["difference"]) <= MOST_POINTS]
        causes = dict.fromkeys(re.sub(r", [\d.]+$", "", check["cause"]) for check in some if check["cause"])
        differences = span([check["difference"] for check in some])
        found.append([system, where, f"{len(near)} of {len(some)}", differences, "; ".join(causes) or "-"])
    return table(["system", "published in", "within 5 points", "ours less published", "cause beyond"], found)


def figures(out: Path) -> dict[str, str]:
    """What sentences of the page say, by name."""
    rows = json.loads((out / "resihp.json").read_text())
    found: dict[str, str] = {}
    for part in ("table6", "fig9", "fig10", "table6_node"):
        some = [row for key, each in rows.items() if key.startswith(part.split("_")[0]) for row in each]
        if part.endswith("_node"):
            some = [row for row in some if row["placement"] == "node"]
        found[f"{part}_of_bound"] = span([100.0 * row["systems"][OURS[0]]["of_bound"] for row in some], 0)
        for rival in {name for row in some for name in row["systems"]}.difference(OURS):
            ratios = [row["systems"][OURS[0]]["throughput"] / row["systems"][rival]["throughput"] for row in some]
            found[f"{part}_{rival.replace(' ', '_')}"] = span(ratios, 2)
    equal = json.loads((out / "hundred_thousand.json").read_text())["equal_terms"]
    for entry in equal:
        stall = f"{entry['stall_seconds']:.0f}"
        for system, name in (("Evenkeel", "ours"), ("FT-HSDP", "ft_hsdp")):
            found[f"stall_{stall}_{name}"] = f"{100.0 * entry[system]['drawn']['effective']:.1f}"
    mixed = json.loads((out / "sequence_mix.json").read_text())
    for name, is_piped in (("mix_piped", True), ("mix_plain", False)):
        some = [row["speedup"] for row in mixed if (row["setting"]["pipeline"] > 1) == is_piped]
        found[name] = span(some, 2)
    exchanges = json.loads((out / "fidelity_shapes.json").read_text())["exchanges"]
    errors = [abs(each["gradient_seconds"] / each["gradient_predicted"] - 1.0) for each in exchanges]
    found["gradients_worst"] = percent(max(errors))
    paired = [(each["tensor_seconds"], each["tensor_predicted"]) for each in exchanges if each["tensor_predicted"]]
    found["tensors_worst"] = percent(max(abs(took / predicted - 1.0) for took, predicted in paired))
    return found | _pipelines(json.loads((out / "pipelines.json").read_text()))


def _pipelines(rows: Iterable[Row]) -> dict[str, str]:
    """What the page says of pipelines, by name."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    proven, unlimited, memory, speeds = (groups[name] for name in ("proven", "unlimited", "memory", "speeds"))
    profiled = [*unlimited, *memory, *speeds]
    ahead = {name: statistics.mean(1.0 - row["over_rules"] for row in groups[name]) for name in ("memory", "speeds")}
    return {
        "pipelines_proven": f"{sum(row['is_proven'] for row in proven)} of {len(proven)}",
        "pipelines_near": f"{sum(row['over_bound'] <= _NEAR_BOUND for row in unlimited)} of {len(unlimited)}",
        "pipelines_worst": f"{max(row['over_rules'] for row in profiled):.3f}",
        "pipelines_profiled": f"{len(profiled)}",
        "pipelines_memory": percent(ahead["memory"]),
        "pipelines_speeds_bound": f"{statistics.mean(row['over_bound'] for row in speeds):.3f}",
        "pipelines_speeds": percent(ahead["speeds"]),
    }


def page_of(template: str, out: Path) -> str:
    """The page from its words and what the parts left in a folder."""

    def put(match: re.Match[str]) -> str:
        part, title = match.group(1), match.group(2) or ""
        if part == "baselines":
            return checked(json.loads((out / "baselines.json").read_text()))
        return shown_table(out, part, title)

    known = figures(out)
    words = re.sub(r"\{(\w+)\}", lambda match: known[match.group(1)], template)
    return re.sub(r"<!-- (\w+)(?:: (.*?))? -->", put, words)


def num_words(page: str) -> int:
    """Words of a page, those in tables included."""
    return len(re.findall(r"[^\s|]*\w[^\s|]*", page))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/planning"), help="where the parts left their results")
    chosen = parser.parse_args()
    page = page_of(TEMPLATE.read_text(), chosen.out)
    if num_words(page) > MOST_WORDS:
        raise SystemExit(
            f"the page would have {num_words(page)} words, at most {MOST_WORDS} are allowed: shorten page.md"
        )
    PAGE.write_text(page)
    print(f"{PAGE}: {num_words(page)} words")


if __name__ == "__main__":
    main()
