"""``python -m benchmarks.replicas``: a healthy step as replicas beside DDP, in one run, in turns; table and JSON."""

import argparse
import json
import os
import statistics

from benchmarks.replicas.ranks import TOKENS, in_turns, peak, run


def measure(case: dict[str, int], blocks: int, steps: int) -> dict[str, float]:
    """Ratios of one case: medians over blocks in turns, the slowest rank's wall seconds, all ranks' CPU seconds."""
    ranks = run(in_turns, case, blocks, steps)
    wall, cpu = [], []
    for rows in zip(*ranks, strict=True):
        wall.append(max(row[2] for row in rows) / max(row[0] for row in rows))
        cpu.append(sum(row[3] for row in rows) / sum(row[1] for row in rows))
    seconds = [max(row[0] for row in rows) for rows in zip(*ranks, strict=True)]
    plain, ours = (max(run(peak, case, which)) for which in ("ddp", "replicas"))
    size = 4.0 * case["parameters"]
    return {
        **case,
        "ddp_milliseconds": 1e3 * statistics.median(seconds),
        "wall_ratio": statistics.median(wall),
        "cpu_ratio": statistics.median(cpu),
        "ddp_peak": plain / size,
        "replicas_peak": ours / size,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replicas", description=__doc__)
    parser.add_argument("--parameters", type=int, nargs="*", default=list(TOKENS), choices=list(TOKENS))
    parser.add_argument("--micro-batches", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    print(f"{'parameters':>11} {'m.batches':>9} {'DDP ms':>8} {'wall x':>7} {'CPU x':>6} {'DDP peak':>9} {'peak':>6}")
    found = []
    for parameters in options.parameters:
        for micro_batches in options.micro_batches:
            case = {"ranks": options.ranks, "parameters": parameters, "micro_batches": micro_batches}
            row = measure(case, options.blocks, options.steps)
            found.append(row)
            print(
                f"{parameters:>11,} {micro_batches:>9} {row['ddp_milliseconds']:>8.1f} {row['wall_ratio']:>7.3f} "
                f"{row['cpu_ratio']:>6.3f} {row['ddp_peak']:>9.2f} {row['replicas_peak']:>6.2f}",
                flush=True,
            )
    print(json.dumps({"cases": found, "load": os.getloadavg()[0], "cores": os.cpu_count()}))


if __name__ == "__main__":
    main()
