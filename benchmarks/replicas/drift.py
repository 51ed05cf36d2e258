"""``python -m benchmarks.replicas.drift``: whether a bfloat16 model drifts from a failure-free run over many deaths.

Three replicas of a small network learn a fixed function; every hundredth step one of them is killed and starts again.
The other run is one process with the same micro-batches. Prints the largest relative difference of the loss, averaged
over a hundred steps, and JSON.
"""

import argparse
import json
import os
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.replicas.job import Job
from evenkeel.trainer_sdk.replicas import Place, join_replicas

_WIDTH = 32
_WINDOW_STEPS = 100
_NUM_MICRO_BATCHES = 6


def _batch(step: int, micro_batch: int) -> Tensor:
    return torch.randn(64, _WIDTH, generator=torch.Generator().manual_seed(step * _NUM_MICRO_BATCHES + micro_batch))


def _train(place: Place, tell: Callable[[Any], None], num_steps: int) -> None:
    """Tells for each step its number and its loss."""
    torch.manual_seed(0)
    target = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Tanh()).requires_grad_(False)
    model = nn.Sequential(nn.Linear(_WIDTH, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, _WIDTH))
    model.bfloat16()
    run = join_replicas(place, model, num_micro_batches=_NUM_MICRO_BATCHES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    while run.step < num_steps:
        for batch in run.micro_batches(_batch):
            run.backward((model(batch.bfloat16()).float() - target(batch)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        tell((run.step, run.loss))
    run.close()


def _with_deaths(num_steps: int) -> dict[int, float]:
    """Loss by step, of a job in which a replica dies in every window."""
    job = Job(3, lambda place, tell: _train(place, tell, num_steps))
    losses: dict[int, float] = {}
    try:
        for number, step in enumerate(range(_WINDOW_STEPS // 2, num_steps, _WINDOW_STEPS)):
            victim = number % 3
            job.until(lambda victim=victim, step=step: any(each >= step for each, _ in job.told[victim]))  # type: ignore[misc]
            losses |= dict(job.told[victim])
            job.kill(victim)
            job.start(victim)
        job.until(lambda: any(each >= num_steps for told in job.told.values() for each, _ in told))
    finally:
        job.close()
    return losses | {step: loss for told in job.told.values() for step, loss in told}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replicas.drift", description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    alone: list[tuple[int, float]] = []
    _train(Place(), alone.append, options.steps)
    losses = _with_deaths(options.steps)
    differences = []
    for start in range(0, options.steps, _WINDOW_STEPS):
        window = [(loss, losses[step]) for step, loss in alone[start : start + _WINDOW_STEPS]]
        theirs, ours = map(statistics.fmean, zip(*window, strict=True))
        differences.append(abs(ours - theirs) / theirs)
    print(f"first loss {alone[0][1]:.4f}, last {alone[-1][1]:.4f}")
    print("relative difference by window:", " ".join(f"{each:.1e}" for each in differences))
    print(json.dumps({"worst": max(differences), "load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()
