"""What copies on peers and checkpoints cost a healthy job: ``python -m benchmarks.engine.copies_cost``.

The example job (TP 2 x PP 2, one replica: every rank is copied twice) with and without copies, a run of each kind in
turn. Prints the median iteration of each kind and the bytes that a copy has; JSON goes to ``--out``.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from evenkeel.layouts.layout import uniform_layout
from evenkeel.trainer_sdk.elastic.config import config_from_json
from evenkeel.trainer_sdk.elastic.engine import Engine
from evenkeel.trainer_sdk.elastic.model.model import parameter_specs
from evenkeel.trainer_sdk.elastic.state.ownership import OwnershipMap
from evenkeel.trainer_sdk.emit.emitter import Emitter
from evenkeel.trainer_sdk.emit.measured import Measured
from evenkeel.trainer_sdk.launcher.description.job_spec import DeviceKind, JobSpec
from evenkeel.trainer_sdk.launcher.launcher import Launcher
from evenkeel.trainer_sdk.launcher.processes.context import RankContext

LAYOUT = uniform_layout(num_blocks=4, tensor=2, pipeline=2, data=1, num_micro_batches=4)
WARM_UP_ITERATIONS = 10
MODELS = {
    "small": {"num_layers": 2, "num_heads": 6, "head_dim": 8},
    "large": {"num_layers": 2, "num_heads": 12, "head_dim": 32},
}


def rank(context: RankContext) -> None:
    """Entry point of a rank: trains, and notes when each step ended."""
    torch.set_num_threads(1)
    ended: list[float] = []

    class Noting(Emitter):
        def emit_later(self, build: Callable[[], Measured]) -> None:
            ended.append(time.perf_counter())

    Engine(replace(context, emitter=Noting())).run()
    if context.rank == 0:
        (context.run_dir / "ended.json").write_text(json.dumps(ended))


def iteration_seconds(model: dict[str, int], config: dict[str, Any], num_iterations: int) -> list[float]:
    """Seconds of each iteration of one run, without the first few."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = config.get("checkpoint")
        if checkpoint is not None:
            config = {**config, "checkpoint": {**checkpoint, "directory": f"{folder}/checkpoints"}}
        spec = JobSpec(
            job_id="copies-cost",
            entry_point="benchmarks.engine.copies_cost:rank",
            layout=LAYOUT,
            run_dir=Path(folder),
            device_kind=DeviceKind.CPU,
            config={
                "num_iterations": num_iterations,
                "model": {**model, "max_document_length": 128},
                "workload": {"num_micro_batches": 4, "token_budget": 128, "corpus_bytes": 500_000},
                **config,
            },
        )
        with Launcher(spec) as launcher:
            status = launcher.wait(600.0)
        if status != 0:
            raise RuntimeError(f"the run ended with {status}")
        ended = json.loads((Path(folder) / "ended.json").read_text())
    return [
        after - before
        for before, after in zip(ended[WARM_UP_ITERATIONS:-1], ended[WARM_UP_ITERATIONS + 1 :], strict=True)
    ]


def copy_bytes(model: dict[str, int]) -> int:
    """Bytes of the largest rank's copy: values and both moments, float32."""
    config = config_from_json({"model": {**model, "max_document_length": 128}})
    ownership = OwnershipMap(parameter_specs(config.model), LAYOUT)
    held = [
        sum(len(slice_) * ownership.specs[name].row_elements for name, slice_ in ownership.held_by(one).items())
        for one in LAYOUT.ranks
    ]
    return 3 * 4 * max(held)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=120)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    off = {"copies": {"every_iterations": 0}}
    kinds = {
        "nothing": off,
        "a copy every step": {"copies": {"every_iterations": 1}},
        "a copy every 10 steps": {"copies": {"every_iterations": 10}},
        "a checkpoint every 10 steps": {**off, "checkpoint": {"every_iterations": 10}},
    }
    rows = []
    for name in options.models:
        model = MODELS[name]
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(options.repetitions):
            for kind, config in kinds.items():
                seconds[kind].append(median(iteration_seconds(model, config, options.iterations)))
        plain = median(seconds["nothing"])
        print(
            f"\n{name} model, {copy_bytes(model) / 1e6:.2f} MB a copy; median iteration of {options.repetitions} runs"
        )
        for kind, runs in seconds.items():
            middle = median(runs)
            print(
                f"{kind:30} {1e3 * middle:7.1f} ms  ({1e3 * min(runs):.1f}-{1e3 * max(runs):.1f})  {middle / plain:.3f}"
            )
            rows.append({"model": name, "kind": kind, "seconds": runs, "copy_bytes": copy_bytes(model)})
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
