"""``python -m benchmarks.replicas.rejoin``: how long the others wait while a replica that died gets the state again.

Three replicas of one process, gloo, two layers of equal size; a sleep in each micro-batch stands for a device that
computes longer. One is killed and starts again. Measured once as fast as this machine sends, and once over a link that
takes the given number of iterations, which is the donor sleeping after each piece. Table and JSON.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from benchmarks.replicas.job import Job
from evenkeel.trainer_sdk.replicas import Place, join_replicas
from evenkeel.trainer_sdk.replicas.state.packing import Packed
from evenkeel.trainer_sdk.replicas.state.training_state import TrainingState

_TOKENS = 16
_SLEEP_SECONDS = 0.3
_NUM_STEPS = 8
_AFTER_STEPS = 4
_BYTES_PER_PARAMETER = 12  # the value and two moments, float32


def _trainer(num_parameters: int, bytes_per_second: float) -> Callable[[Place, Callable[[Any], None]], None]:
    """Tells for each step when it ended, and whether this replica holds the whole state."""

    def train(place: Place, tell: Callable[[Any], None]) -> None:
        torch.manual_seed(0)
        width = max(16, round((num_parameters / 8) ** 0.5))
        model = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False)
        )
        pack = TrainingState.pack

        def pack_over_a_link(self: TrainingState, unit: int) -> Packed:
            text, tensors = pack(self, unit)
            if bytes_per_second:
                time.sleep(sum(each.nbytes for each in tensors) / bytes_per_second)
            return text, tensors

        TrainingState.pack = pack_over_a_link  # type: ignore[method-assign]
        run = join_replicas(place, model)
        optimizer = torch.optim.AdamW(model.parameters())
        batch = torch.randn(_TOKENS, width)
        while True:
            for each in run.micro_batches(lambda step, index: batch):
                time.sleep(_SLEEP_SECONDS)
                run.backward(model(each).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            tell((time.monotonic(), run.is_complete))

    return train


def measure(num_parameters: int, iterations: float, step_seconds: float = 0.0) -> dict[str, float]:
    """One death and one return.

    Args:
        num_parameters: Of the model.
        iterations: How many iterations the state is on its way, about; 0 = as fast as it gets.
        step_seconds: What an iteration takes, where that is known.
    """
    rate = _BYTES_PER_PARAMETER * num_parameters / (iterations * step_seconds) if iterations else 0.0
    job = Job(3, _trainer(num_parameters, rate))
    told = job.told
    try:
        job.until(lambda: len(told[0]) >= 2)
        job.kill(2)
        alone_from = len(told[0]) + 2  # the two that are left run all micro-batches, as they do while it catches up
        job.until(lambda: len(told[0]) >= alone_from + _NUM_STEPS)
        before = statistics.median(b - a for (a, _), (b, _) in pairwise(told[0][alone_from:]))
        job.start(2)
        began = time.monotonic()
        job.until(lambda: sum(is_whole for _, is_whole in told[2]) >= _AFTER_STEPS)
        steps = [is_whole for _, is_whole in told[2]].index(True)
        ends = told[2][steps][0] + before
        during = [b - a for each in (0, 1) for (a, _), (b, _) in pairwise(told[each]) if began < b < ends]
        return {
            "parameters": num_parameters,
            "catch_up_iterations": steps + 1,
            "before_seconds": before,
            "during_seconds": statistics.median(during),
            "longest_seconds": max(during),
            "pause_iterations": max(during) / before - 1.0,
        }
    finally:
        job.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replicas.rejoin", description=__doc__)
    parser.add_argument("--parameters", type=int, default=50_000_000)
    parser.add_argument("--iterations", type=float, default=10, help="how many the state takes over the slow link")
    options = parser.parse_args()
    fast = measure(options.parameters, 0)
    slow = measure(options.parameters, options.iterations, fast["before_seconds"])
    print(f"{'caught up in':>12} {'before s':>9} {'during s':>9} {'longest s':>9} {'pause, iterations':>18}")
    for row in (fast, slow):
        print(
            f"{row['catch_up_iterations']:>12} {row['before_seconds']:>9.2f} {row['during_seconds']:>9.2f} "
            f"{row['longest_seconds']:>9.2f} {row['pause_iterations']:>18.2f}"
        )
    print(json.dumps({"cases": [fast, slow], "load": os.getloadavg()[0], "cores": os.cpu_count()}))


if __name__ == "__main__":
    main()
