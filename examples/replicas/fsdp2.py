"""A loop of replicas of several ranks each, sharded by FSDP2; a replica dies and comes back as one. See README.md."""

import os
import time

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import clip_grad_norm_

import evenkeel

NUM_STEPS = int(os.environ.get("STEPS", "200"))
PAUSE_SECONDS = float(os.environ.get("PAUSE", "0.02"))  # stands in for a device that computes longer


def batch_of(step: int, micro_batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A micro-batch, made of its step and number alone."""
    vectors = torch.randn(16, 32, generator=torch.Generator().manual_seed(1000 * step + micro_batch))
    return vectors, vectors.cumsum(1)


def main() -> None:
    """Train, and say how it goes."""
    run = evenkeel.start()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 32))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=run.mesh)
    model = run.replicate(fully_shard(model, mesh=run.mesh), num_micro_batches=6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, NUM_STEPS)
    run.keep(schedule)

    while run.step < NUM_STEPS:
        for vectors, sums in run.micro_batches(batch_of):
            time.sleep(PAUSE_SECONDS)
            run.backward((model(vectors) - sums).square().mean())
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if run.step % 20 == 0 and os.environ.get("RANK", "0") == "0":
            print(
                f"replica {os.environ.get('EVENKEEL_REPLICA', '0')}: step {run.step}, loss {run.loss:.6f}", flush=True
            )


if __name__ == "__main__":
    main()
