"""A loop of replicas of a user's own: ``python replica_loop.py FOLDER``; torchrun's and our variables say who it is.

FOLDER/at-REPLICA has its newest step, and how many micro-batches it ran there. It goes on until FOLDER/end is there.
"""

import os
import sys
import time
from pathlib import Path

import torch

import evenkeel

FOLDER = Path(sys.argv[1])
REPLICA = os.environ["EVENKEEL_REPLICA"]
NUM_MICRO_BATCHES = 12


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    run = evenkeel.start()
    model = run.replicate(torch.nn.Linear(256, 256), num_micro_batches=NUM_MICRO_BATCHES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while not (FOLDER / "end").exists():
        ran = 0
        for batch in run.micro_batches(lambda step, index: torch.randn(512, 256)):
            ran += 1
            time.sleep(0.04)  # for the next batch: what watches the loop wants the processors more than the loop does
            run.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        note = FOLDER / f".at-{REPLICA}"
        note.write_text(f"{run.step} {ran}")
        note.rename(FOLDER / f"at-{REPLICA}")


if __name__ == "__main__":
    main()
