"""A loop of replicas of one rank each: what DistributedDataParallel does, and any of them may die. See README.md."""

import os
import time

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

import evenkeel

NUM_STEPS = int(os.environ.get("STEPS", "200"))
PAUSE_SECONDS = float(os.environ.get("PAUSE", "0.02"))  # stands in for a device that computes longer


class Sums(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Vectors and the running sums of their entries."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        vector = torch.randn(32, generator=torch.Generator().manual_seed(index))
        return vector, vector.cumsum(0)


def main() -> None:
    """Train, and say how it goes."""
    run = evenkeel.start()
    torch.manual_seed(0)
    model = run.replicate(nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 32)), num_micro_batches=6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, NUM_STEPS)
    run.keep(schedule)
    dataset = Sums()
    replica = os.environ.get("EVENKEEL_REPLICA", "0")
    print(f"replica {replica}: begins", flush=True)

    while run.step < NUM_STEPS:
        for vectors, sums in run.micro_batches(dataset, batch_size=16):
            time.sleep(PAUSE_SECONDS)
            run.backward((model(vectors) - sums).square().mean())
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if run.step % 10 == 0:
            print(f"replica {replica}: step {run.step}, loss {run.loss:.6f}", flush=True)


if __name__ == "__main__":
    main()
