"""How well the expectation foretells healthy runs: ``python -m benchmarks.detection.aspects.prediction --traces 50``.

Micro-batch: seconds of each micro-batch on each rank, from N and the sum of squared lengths at the prices learned until
then. Iteration: the longest path through the stages' programs. Both are said before the iteration runs, and scored
against what the simulator then executed. Iterations of the real runs that hold a pause (more than half over the median
of their trace) are left out of the errors, as planned pauses would be; intervals are scored with them and without.
"""

import argparse
import json
import math
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.detection.baselines.iteration_time import IterationTime
from benchmarks.detection.traces.frames import frames_of
from benchmarks.detection.traces.simulated_run import SHAPES
from benchmarks.detection.traces.traces import Trace, make_trace
from evenkeel.layouts.programs.schedules import program_of
from evenkeel.services.detector.domain.expectation.workload import WorkExpectation, work_of
from evenkeel.simulator.job.hardware import shard_work

LINES = Path("out/benchmarks/detection/prediction.jsonl")
_WARM_UP = 20
_PAUSE = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Errors of one trace, shares.

    Attributes:
        micro_batch_error: Mean absolute error of a micro-batch's seconds, relative.
        iteration_error: The same of an iteration's.
        held: Share of iterations inside their 95 % interval, pauses left out.
        held_with_pauses: The same with them.
        num_iterations: Iterations scored.
    """

    micro_batch_error: float
    iteration_error: float
    held: float
    held_with_pauses: float
    num_iterations: int


def predict_trace(trace: Trace) -> Prediction:
    """Foretells a trace iteration by iteration."""
    layout, times = trace.layout, trace.times
    expectation = WorkExpectation()
    programs = [
        [program_of(layout, d, s) for s in range(len(replica.stages))] for d, replica in enumerate(layout.replicas)
    ]
    predictor = IterationTime(programs)
    walls = times.wall.max(axis=1)
    usual = float(np.median(walls))
    batch_errors, errors, inside, plain = [], [], [], []
    for i, frame in enumerate(frames_of(trace)):
        work, seconds = work_of(frame), frame.compute_seconds
        if not expectation.has_learned:
            expectation.learn(work, seconds, seconds)
            continue
        expected = expectation.expect(work)
        ratio = seconds / expected
        prices = _prices(trace, expectation, i)
        path = predictor.longest_path(_paced(prices, predictor.pace))
        said = predictor.predict(path)
        if said is not None and i >= _WARM_UP:
            errors.append(abs(said[0] / walls[i] - 1))
            inside.append(said[1] <= walls[i] <= said[2])
            plain.append(walls[i] < _PAUSE * usual)
            batch_errors.append(float(np.mean(np.abs(predictor.pace * _price_errors(trace, prices, i) - 1))))
        middle = float(np.median(ratio))
        predictor.learn(path, float(walls[i]), middle)
        ordinary = np.abs(np.log(ratio / middle)) < 0.1
        expectation.learn(work[ordinary], seconds[ordinary], expected[ordinary], common=math.log(middle))
    chosen = np.array(plain)
    return Prediction(
        micro_batch_error=float(np.mean(np.array(batch_errors)[chosen])),
        iteration_error=float(np.mean(np.array(errors)[chosen])),
        held=float(np.mean(np.array(inside)[chosen])),
        held_with_pauses=float(np.mean(np.array(inside))),
        num_iterations=int(chosen.sum()),
    )


Prices = list[list[dict[int, tuple[float, float]]]]


def _prices(trace: Trace, expectation: WorkExpectation, i: int) -> Prices:
    """Predicted forward and backward seconds by replica, stage and micro-batch; of the stage's first shard."""
    found: Prices = []
    for d, replica in enumerate(trace.layout.replicas):
        batches = list(trace.layout.micro_batches_of(d))
        tokens, squares = trace.workload.tokens[i, batches], trace.workload.sum_of_squares[i, batches]
        stages = []
        for s in range(len(replica.stages)):
            work = shard_work(trace.model, trace.layout, d, s, 0)
            passes = 1.0 + work.backward_multiple
            dearer = work.flops_per_squared_length * squares * passes
            flops = work.flops_per_token * tokens * passes + dearer
            seconds = expectation.expect(np.column_stack([flops, dearer, np.ones(len(batches))]))
            stages.append(
                {
                    index: (float(each) / passes, float(each) * work.backward_multiple / passes)
                    for index, each in zip(batches, seconds, strict=True)
                }
            )
        found.append(stages)
    return found


def _paced(prices: Prices, pace: float) -> Prices:
    return [[{index: (pace * a, pace * b) for index, (a, b) in stage.items()} for stage in stages] for stages in prices]


def _price_errors(trace: Trace, prices: Prices, i: int) -> np.ndarray:
    """Predicted over true seconds of each micro-batch on each rank, without the pace."""
    positions = dict(trace.layout.positions())
    spent = []
    for column, rank in enumerate(trace.times.ranks):
        at = positions[rank]
        work = shard_work(trace.model, trace.layout, at.replica, at.stage, at.shard)
        batches = list(trace.layout.micro_batches_of(at.replica))
        flops = (
            work.flops_per_token * trace.workload.tokens[i, batches]
            + work.flops_per_squared_length * trace.workload.sum_of_squares[i, batches]
        ) * (1.0 + work.backward_multiple)
        true = flops * trace.hardware.seconds_per_flop * trace.slowdown[i, column]
        said = np.array([sum(prices[at.replica][at.stage][index]) for index in batches])
        spent.append(said / true)
    return np.concatenate(spent)


def table(path: Path) -> str:
    """Errors and coverage by shape, as Markdown."""
    rows: dict[str, list[Prediction]] = {}
    with path.open() as file:
        for line in map(json.loads, file):
            rows.setdefault(line["shape"], []).append(Prediction(**line["prediction"]))
    heads = ("TP x DP x PP", "traces", "iterations", "micro-batch MAPE %", "iteration MAPE %", "95 % interval held %")
    lines = ["| " + " | ".join((*heads, "with pauses %")) + " |", "|" + "---|" * (len(heads) + 1)]
    for shape in SHAPES:
        of_shape = rows.get(shape, [])
        if of_shape:
            weights = np.array([one.num_iterations for one in of_shape], dtype=np.float64)
            means = [
                100 * float(np.average([getattr(one, name) for one in of_shape], weights=weights))
                for name in ("micro_batch_error", "iteration_error", "held", "held_with_pauses")
            ]
            cells = (shape.replace("x", " x "), str(len(of_shape)), f"{weights.sum():.0f}")
            lines.append("| " + " | ".join((*cells, *(f"{mean:.2f}" for mean in means))) + " |")
    return "\n".join(lines)


def main() -> None:
    """Foretells what is not there yet, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=sorted(SHAPES))
    parser.add_argument("--traces", type=int, default=50)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--out", type=Path, default=LINES)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    done: set[tuple[str, int]] = set()
    if arguments.out.exists():
        done = {(row["shape"], row["index"]) for row in map(json.loads, arguments.out.read_text().splitlines())}
    for index in range(arguments.traces):
        for shape in arguments.shapes:
            if (shape, index) in done:
                continue
            seed = zlib.crc32(f"prediction/{shape}".encode()) * 1_000_000 + index
            found = predict_trace(make_trace(seed, shape=shape, num_iterations=arguments.iterations))
            with arguments.out.open("a") as file:
                file.write(json.dumps({"shape": shape, "index": index, "prediction": asdict(found)}) + "\n")
    print(table(arguments.out))


if __name__ == "__main__":
    main()
