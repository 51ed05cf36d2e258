"""Real loops with a fault in one rank: ``python -m benchmarks.detection.live``; ``--quick`` takes a few minutes.

torchrun with DDP (2, 4 and 8 ranks), FSDP2 and the Trainer of transformers, and the engine on devices of kind ``cpu``,
watched by the SDK. One rank gets more work, sleeps, gets a CPU quota, is stopped again and again, touches fresh memory
or waits for input; from the middle, from the start, or with an end; on a quiet machine and beside busy programs. Each
job is kept in ``--out`` as a file that ``evenkeel replay --format iterations`` reads, with ``truth.csv`` beside it, and
is replayed with all clocks. What is in the folder already is replayed, not run again. Quotas need root and cgroup v1.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.detection.live.cases import QUICK, Case, all_cases, healthy_cases
from benchmarks.detection.live.record import record
from benchmarks.detection.recorded.recordings import judge, read_truth, summary_of, table_of, write_outcomes
from evenkeel.offline.iterations.clocks import ClockChoice

OUT = Path("out/benchmarks/detection/live")
OUT_OF_QUICK = OUT.with_name("live_quick")
OUTCOMES, TRUTH_FILE = "outcomes.json", "truth.csv"


def main() -> None:
    """Records what is not there yet, replays all, prints a table and writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="eight cases")
    parser.add_argument("--healthy", action="store_true", help="only jobs of which nobody may be accused")
    parser.add_argument("--healthy-iterations", type=int, default=3000, help="of each of those")
    parser.add_argument("--cases", nargs="*", default=[], help="only cases whose names hold one of these words")
    parser.add_argument("--again", action="store_true", help="run cases whose recording is there already")
    parser.add_argument("--list", action="store_true", help="say what would be run")
    parser.add_argument("--out", type=Path, help=f"folder of the recordings; {OUT}, of --quick {OUT_OF_QUICK}")
    options = parser.parse_args()
    folder = options.out or (OUT_OF_QUICK if options.quick else OUT)
    count = options.healthy_iterations
    cases = QUICK if options.quick else tuple(healthy_cases(count) if options.healthy else all_cases(count))
    chosen = [case for case in cases if not options.cases or any(word in case.name for word in options.cases)]
    if options.list:
        print("\n".join(case.name for case in chosen))
        return
    _record(chosen, folder, again=options.again)
    if not (folder / TRUTH_FILE).exists():
        sys.exit(f"nothing was recorded in {folder}")
    names = {case.name for case in chosen}
    outcomes = [
        judge(folder / f"{truth.name}.csv.gz", truth, ClockChoice.ALL)
        for truth in read_truth(folder)
        if truth.name in names
    ]
    print(table_of(outcomes))
    print(summary_of(outcomes))
    found = folder / OUTCOMES
    write_outcomes(found, outcomes)
    print(f"{found} written")


def _record(cases: Sequence[Case], folder: Path, *, again: bool) -> None:
    for case in cases:
        if again or not (folder / f"{case.name}.csv.gz").exists():
            print(case.name, flush=True)
            try:
                record(case, folder)
            except RuntimeError as error:
                print(f"left out: {error}", flush=True)


if __name__ == "__main__":
    main()
