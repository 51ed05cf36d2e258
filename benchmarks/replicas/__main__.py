"""``python -m benchmarks.replicas``: a healthy step as replicas beside torch's own wrappers, in turns; table and JSON.

A replica of one rank is compared with DistributedDataParallel, one of several with FSDP2 over two dimensions. Seconds
are those of blocks of steps that follow one another, and what is told is the median of their ratios.
"""

import argparse
import json
import os
import statistics
from dataclasses import asdict

from benchmarks.replicas.loops import TOKENS, Case
from benchmarks.replicas.ranks import Ranks


def measure(case: Case, blocks: int, steps: int) -> dict[str, float | str]:
    """One case: medians of ratios over blocks in turns, and the most memory of a rank, in bytes of its parameters."""
    against = "ddp" if case.size == 1 else "hsdp"
    loops = {kind: Ranks(kind, case) for kind in (against, "replicas")}
    wall, cpu, seconds = [], [], []
    peaks = dict.fromkeys(loops, 0.0)
    for ranks in loops.values():
        ranks.run(2)
    for block in range(blocks):
        order = sorted(loops, reverse=block % 2 == 1)
        took = {kind: loops[kind].run(steps) for kind in order}
        seconds.append(took[against].wall_seconds)
        wall.append(took["replicas"].wall_seconds / took[against].wall_seconds)
        cpu.append(took["replicas"].cpu_seconds / took[against].cpu_seconds)
        peaks = {kind: each.peak_bytes / (4.0 * case.parameters / case.size) for kind, each in took.items()}
    for ranks in loops.values():
        ranks.close()
    return {
        **asdict(case),
        "against": against,
        "milliseconds": 1e3 * statistics.median(seconds),
        "wall_ratio": statistics.median(wall),
        "cpu_ratio": statistics.median(cpu),
        "peak": peaks[against],
        "replicas_peak": peaks["replicas"],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replicas", description=__doc__)
    parser.add_argument("--parameters", type=int, nargs="*", default=list(TOKENS), choices=list(TOKENS))
    parser.add_argument("--micro-batches", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--size", type=int, nargs="*", default=[1, 2], help="ranks of a replica")
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    print("against  parameters m.batches   its ms  wall x  CPU x   peak   ours")
    found = []
    for size in options.size:
        for parameters in options.parameters:
            for micro_batches in options.micro_batches:
                case = Case(parameters=parameters, micro_batches=micro_batches, replicas=options.replicas, size=size)
                row = measure(case, options.blocks, options.steps)
                found.append(row)
                print(
                    f"{row['against']:>7} {parameters:>11,} {micro_batches:>9} {row['milliseconds']:>8.1f} "
                    f"{row['wall_ratio']:>7.3f} {row['cpu_ratio']:>6.3f} {row['peak']:>6.2f} "
                    f"{row['replicas_peak']:>6.2f}",
                    flush=True,
                )
    print(json.dumps({"cases": found, "load": os.getloadavg()[0], "cores": os.cpu_count()}))


if __name__ == "__main__":
    main()
