"""A sequence mix on the engine, nothing broken: ``python -m benchmarks.planning.live.mix_live``.

A job of PP 4 x DP 2 (gloo, emulated devices: real compute, paced) trains on documents of log-normal lengths, stretch by
stretch in turn as they were drawn and dealt out by the mix. Beside what was measured stands the longest path through
the programs for the very micro-batches of each iteration.
"""

import argparse
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

from benchmarks.planning.live.engine_run import Segment, run
from benchmarks.planning.live.pipelined_job import pipelined_job
from benchmarks.planning.live.steps import HEALTHY, Step
from benchmarks.planning.tables import table, write_json
from evenkeel.demo.script.job import MainJob
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.sizes.mix import mix_for
from evenkeel.planning.costs.cost_model import CostModel, Workload
from evenkeel.planning.costs.measured.recent import RecentIteration
from evenkeel.planning.costs.measured.replay import Replay
from evenkeel.trainer_sdk.emit.measured import Measured

_PIPELINE, _DATA, _QUOTA = 4, 2, 8
# The first iterations of a stretch build groups and warm up.
_SETTLING = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way to make micro-batches.

    Attributes:
        name: Which.
        num_iterations: Measured.
        measured_seconds: Mean wall time of the slowest rank.
        longest_path_seconds: Mean of the longest paths for the same micro-batches on devices of the same speed.
        largest: Mean tokens of an iteration's largest micro-batch over the mean of all.
    """

    name: str
    num_iterations: int
    measured_seconds: float
    longest_path_seconds: float
    largest: float


def main() -> None:
    """Runs the job and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=20, help="of each stretch")
    parser.add_argument("--rounds", type=int, default=4, help="stretches of each kind")
    parser.add_argument("--seconds", type=float, default=1.0, help="of an iteration of equal micro-batches, about")
    parser.add_argument("--json", type=Path, default=Path("out/planning/mix_live.json"))
    options = parser.parse_args()
    job = pipelined_job(
        "mix",
        num_layers=2 * _PIPELINE - 2,
        pipeline=_PIPELINE,
        data=_DATA,
        quota=_QUOTA,
        token_budget=256,
        iteration_seconds=options.seconds,
        fill=0.8,
    )
    segments, samples = run(job, steps_of(job, options.rounds), options.iterations)
    rows = list(rows_of(job, segments, samples))
    header = [
        "micro-batches",
        "iterations",
        "measured s",
        "longest path s",
        "largest / mean",
        "speedup measured",
        "longest path",
    ]
    print(table(header, [_cells(row, rows[0]) for row in rows]))
    write_json(options.json, [asdict(row) for row in rows])


def steps_of(job: MainJob, num_rounds: int) -> Iterator[Step]:
    """In turn with a mix and without."""
    mix = mix_for(job.model, (_QUOTA,) * _DATA, num_stages=_PIPELINE)
    for place in range(1, 2 * num_rounds):
        layout: Layout = replace(job.layout, mix=mix) if place % 2 else job.layout
        yield Step(name="dealt out" if place % 2 else "home", speeds=HEALTHY, layout=layout)


def rows_of(job: MainJob, segments: Sequence[Segment], samples: Mapping[int, Mapping[int, Measured]]) -> Iterator[Row]:
    """As drawn, and dealt out."""
    begun: dict[int, int] = {}
    found: dict[bool, list[RecentIteration]] = {False: [], True: []}
    for iteration, by_rank in sorted(samples.items()):
        epochs = {sample.place.epoch for sample in by_rank.values()}
        epoch = max(epochs)
        whole = len(epochs) == 1 and len(by_rank) == len(job.layout.ranks)
        if whole and iteration - begun.setdefault(epoch, iteration) >= _SETTLING:
            found[segments[epoch].layout.mix is not None].append(_recent(by_rank.values()))
    for is_dealt, iterations in found.items():
        workload = Workload(
            seconds_per_flop=1.0 / job.flops_per_second, tokens=1.0, sum_of_squares=0.0, recent=tuple(iterations)
        )
        paths = Replay(CostModel(job.model, workload)).slowest(job.layout, dict.fromkeys(job.layout.ranks, 1.0))
        yield Row(
            name="dealt out" if is_dealt else "as drawn",
            num_iterations=len(iterations),
            measured_seconds=fmean(one.wall_seconds for one in iterations),
            longest_path_seconds=float(paths.mean()),
            largest=fmean(max(one.tokens) / fmean(one.tokens) for one in iterations),
        )


def _recent(samples: Collection[Measured]) -> RecentIteration:
    everything = {each.index: each for sample in samples for each in sample.listed}
    in_order = [each for _, each in sorted(everything.items())]
    return RecentIteration(
        wall_seconds=max(sample.wall_seconds for sample in samples),
        tokens=tuple(each.tokens for each in in_order),
        sums_of_squares=tuple(round(each.squares) for each in in_order),
    )


def _cells(row: Row, drawn: Row) -> list[str]:
    return [
        row.name,
        str(row.num_iterations),
        f"{row.measured_seconds:.3f}",
        f"{row.longest_path_seconds:.3f}",
        f"{row.largest:.2f}",
        f"{drawn.measured_seconds / row.measured_seconds:.3f} x",
        f"{drawn.longest_path_seconds / row.longest_path_seconds:.3f} x",
    ]


if __name__ == "__main__":
    main()
