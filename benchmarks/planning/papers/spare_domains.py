"""How many spare scale-up domains a job needs: ``python -m benchmarks.planning.papers.spare_domains``.

NTP's second question (arXiv 2504.06095): with the batch fixed and devices dead, how many domains must be kept beyond
the job's own for nothing to be lost? Published, 32 K devices in domains of 32: dropping 90, NTP 16. A spare replica
is eight domains anywhere; the dead are drawn among all devices, spare ones too. The same batch is dealt among all
replicas; throughput is relative to the job without spares and with nobody dead. Simulated.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.planning.papers.availability import (
    FRACTIONS,
    NUM_DEVICES,
    PIPELINE,
    Job,
    dropped,
    healthy_seconds,
    job,
    nonuniform,
    question_of,
    throughput,
    tuned,
    widths_after,
)
from benchmarks.planning.tables import percent, table, write_json


def lost(where: Job, spare: int, fraction: float, seed: int, healthy: float) -> dict[str, float]:
    """Throughput lost with so many spare replicas, by system; below 0 is faster than the healthy job."""
    wider = where.with_replicas(where.num_replicas + spare)
    left, dead = widths_after(wider, np.random.default_rng((seed, where.width)), fraction)
    more = wider.num_replicas / where.num_replicas
    done = throughput(wider, tuned(wider, dead), question_of(wider, dead), healthy)
    return {
        "drop": max(0.0, 1.0 - dropped(wider, left) * more),
        "NTP": max(0.0, 1.0 - nonuniform(wider, left) * more),
        "Evenkeel": 1.0 - done,
    }


def run(widths: Sequence[int], spares: Sequence[int], seeds: int, num_devices: int) -> dict[str, Any]:
    """The tables, printed and as data."""
    found: dict[str, Any] = {"seeds": seeds, "num_devices": num_devices, "curves": {}}
    for width in widths:
        where = job(width, num_devices)
        healthy = healthy_seconds(where)
        lines = []
        for fraction in FRACTIONS[1:]:
            for spare in spares:
                rows = [lost(where, spare, fraction, seed, healthy) for seed in range(seeds)]
                row = {name: fmean(each[name] for each in rows) for name in rows[0]}
                entry = {"fraction": fraction, "spare_domains": spare * PIPELINE, **row}
                found["curves"].setdefault(str(width), []).append(entry)
                part = spare / where.num_replicas
                lines.append(
                    [
                        f"{fraction:g}",
                        f"{spare * PIPELINE} ({percent(part, 2)} %)",
                        *(percent(v, 2) for v in row.values()),
                    ]
                )
        header = ["dead", "spare domains", *row]
        print(f"## Domains of {width}: throughput lost, %\n\n{table(header, lines)}\n", flush=True)
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--spares", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="spare replicas")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--devices", type=int, default=NUM_DEVICES)
    parser.add_argument("--json", type=Path, default=Path("out/planning/spare_domains.json"))
    chosen = parser.parse_args()
    write_json(chosen.json, run(chosen.widths, chosen.spares, chosen.seeds, chosen.devices))


if __name__ == "__main__":
    main()
