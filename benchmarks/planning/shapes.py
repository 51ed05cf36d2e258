"""Do we order shapes as they were measured? ``python -m benchmarks.planning.shapes``.

Published iteration times: BLOOM's topology trials (176B to 200B on A100, 8 a node) and Megatron-LM's functional tests
(models of some megabytes on 8 A100). The cost of shapes (``simulator/shapes.py``) is fitted on one part of the
configurations and judged on the rest, by Spearman's rank correlation; then the reverse. For BLOOM on 24 of its 48
nodes the order of shapes is compared with the log of those who tried (bigscience, ``reshaping-log.md``).
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from benchmarks.planning.tables import percent, table, write_json
from evenkeel.simulator.shapes import Shape, device_bytes, fitted

Runs = list[tuple[Shape, float]]
VOCABULARY = 250_880
DEVICE_BYTES = 80e9
RESHAPED = {
    24: {(2, 24, 1): 199.82, (4, 12, 2): 215.99, (4, 24, 1): 220.30, (4, 12, 1): 234.72},
    36: {(1, 72, 1): 140.37, (2, 36, 1): 141.22, (4, 36, 1): 155.71},
}
"""Nodes: (tensor, pipeline, micro-batch): seconds of an iteration after the first, measured by others."""


def bloom_runs(path: Path) -> tuple[Runs, list[tuple[Shape, float]]]:
    """Distinct runs with seconds, and with gigabytes; rows whose degrees contradict their nodes are left out."""
    seconds: dict[Shape, list[float]] = defaultdict(list)
    memory: dict[Shape, list[float]] = defaultdict(list)
    with path.open() as lines:
        for row in csv.DictReader(lines):
            if not row["gbs"] or not row["sec_per_iter"]:
                continue
            data, tensor, pipeline = (int(float(row[key])) for key in ("dp", "tp", "pp"))
            if float(row["nodes"]) * 8 != data * tensor * pipeline:
                continue
            billions = float(row["size"].rstrip("B"))
            hidden = int(float(row["hidden"] or (13824 if billions < 190 else 14400)))
            shape = Shape(
                layers=round((billions * 1e9 - 50_257 * hidden) / (12 * hidden**2)),
                hidden=hidden,
                sequence=2048,
                micro_batch=int(float(row["mbs"])),
                global_batch=int(float(row["gbs"])),
                tensor=tensor,
                pipeline=pipeline,
                data=data,
                vocabulary=50_257,
                recompute=True,
            )
            seconds[shape].append(float(row["sec_per_iter"]))
            if row["mem_per_gpu"].rstrip("GB"):
                memory[shape].append(float(row["mem_per_gpu"].rstrip("GB")))
    return [(s, fmean(v)) for s, v in seconds.items()], [(s, fmean(v)) for s, v in memory.items()]


def megatron_runs(path: Path) -> Runs:
    """Median over software variants and platforms of each configuration whose shape is known, 8 devices."""
    found: dict[Shape, list[float]] = defaultdict(list)
    needed = ("num_layers", "hidden", "seq_len", "mbs", "gbs", "tp", "pp", "cp", "ep")
    with path.open() as lines:
        for row in csv.DictReader(lines):
            if not all(row[key] for key in needed):
                continue
            value = {key: int(float(row[key])) for key in needed}
            group = value["tp"] * value["pp"] * value["cp"]
            if 8 % group or value["hidden"] > 2048:
                continue
            layers_per_virtual = int(float(row["vp_arg"] or 0))
            virtual = value["num_layers"] // (value["pp"] * layers_per_virtual) if layers_per_virtual else 1
            shape = Shape(
                layers=value["num_layers"],
                hidden=value["hidden"],
                sequence=value["seq_len"],
                micro_batch=value["mbs"],
                global_batch=value["gbs"],
                tensor=value["tp"],
                pipeline=value["pp"],
                data=8 // group,
                virtual=max(1, virtual),
                context=value["cp"],
                expert=value["ep"],
                recompute=row["recompute"] == "1",
            )
            found[shape].append(float(row["median_iter_s"]))
    return [(shape, median(values)) for shape, values in found.items()]


def judged(runs: Runs, seed: int, repeats: int) -> dict[str, float]:
    """Rank correlation and error on the halves that were not fitted, over random halves."""
    rng = np.random.default_rng(seed)
    correlations, errors = [], []
    for _ in range(repeats):
        order = rng.permutation(len(runs))
        halves = order[: len(runs) // 2], order[len(runs) // 2 :]
        for fit, rest in (halves, halves[::-1]):
            cost = fitted([runs[i][0] for i in fit], [runs[i][1] for i in fit])
            predicted = [cost.iteration_seconds(runs[i][0]) for i in rest]
            measured = [runs[i][1] for i in rest]
            correlations.append(float(spearmanr(predicted, measured).statistic))
            errors += [abs(p / m - 1.0) for p, m in zip(predicted, measured, strict=True)]
    return {
        "configurations": float(len(runs)),
        "rank_correlation": fmean(correlations),
        "lowest": min(correlations),
        "median_error": median(errors),
    }


def reshaped(runs: Runs, nodes: int) -> list[dict[str, Any]]:
    """BLOOM's shapes on fewer nodes, by predicted time, with what others measured; constants of all 48-node trials."""
    cost = fitted([shape for shape, _ in runs], [seconds for _, seconds in runs])
    rows = []
    for (tensor, pipeline, micro_batch), measured in RESHAPED[nodes].items():
        shape = Shape(
            layers=70,
            hidden=14336,
            sequence=2048,
            micro_batch=micro_batch,
            global_batch=2048,
            tensor=tensor,
            pipeline=pipeline,
            data=nodes * 8 // (tensor * pipeline),
            vocabulary=VOCABULARY,
            recompute=True,
        )
        rows.append(
            {
                "shape": f"TP{tensor} PP{pipeline} DP{shape.data}, micro-batch {micro_batch}",
                "predicted_seconds": cost.iteration_seconds(shape),
                "measured_seconds": measured,
                "device_bytes": device_bytes(shape),
                "fits": device_bytes(shape) <= DEVICE_BYTES,
            }
        )
    return sorted(rows, key=lambda row: row["predicted_seconds"])


def run(folder: Path, repeats: int) -> dict[str, Any]:
    """The tables, printed and as data."""
    bloom, memory = bloom_runs(folder / "bloom_topology/throughput_by_topology.csv")
    megatron = megatron_runs(folder / "megatron_iteration_times/cases.csv")
    found: dict[str, Any] = {"bloom": judged(bloom, 0, repeats), "megatron": judged(megatron, 0, repeats)}
    lines = [
        [
            name,
            f"{row['configurations']:.0f}",
            f"{row['rank_correlation']:.3f}",
            f"{row['lowest']:.3f}",
            percent(row["median_error"]),
        ]
        for name, row in found.items()
    ]
    header = ["data", "configurations", "rank correlation, other half", "lowest", "median error, %"]
    print(f"## Order of measured shapes, fitted on random halves\n\n{table(header, lines)}\n")
    predicted = [device_bytes(shape) for shape, _ in memory]
    found["bloom_memory_rank_correlation"] = float(spearmanr(predicted, [m for _, m in memory]).statistic)
    print(
        f"BLOOM's memory per device: rank correlation {found['bloom_memory_rank_correlation']:.3f}, nothing fitted.\n"
    )
    for nodes in RESHAPED:
        rows = reshaped(bloom, nodes)
        found[f"bloom_{nodes}_nodes"] = rows
        lines = [
            [
                row["shape"],
                f"{row['predicted_seconds']:.1f}",
                f"{row['measured_seconds']:.1f}",
                f"{row['device_bytes'] / 1e9:.0f}",
                "yes" if row["fits"] else "no",
            ]
            for row in rows
        ]
        header = ["shape", "predicted s", "measured s", "predicted GB", "fits 80 GB"]
        print(f"## BLOOM on {nodes} of its 48 nodes, best first\n\n{table(header, lines)}\n")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="has bloom_topology/ and megatron_iteration_times/")
    parser.add_argument("--repeats", type=int, default=20, help="random halves")
    parser.add_argument("--json", type=Path, default=Path("out/planning_shapes.json"))
    chosen = parser.parse_args(arguments)
    write_json(chosen.json, run(chosen.data, chosen.repeats))


if __name__ == "__main__":
    main()
