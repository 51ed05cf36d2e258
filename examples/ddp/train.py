"""A data-parallel loop that is watched: see "A loop of your own" in docs/running.md for how to start it."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import evenkeel


def main() -> None:
    """Train a small network on random data."""
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(dist.get_rank())
    network = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))
    model = DistributedDataParallel(network.to(device))
    optimizer = torch.optim.AdamW(model.parameters())

    run = evenkeel.start()
    run.watch(model, optimizer)
    for number in range(int(os.environ.get("ITERATIONS", "1000"))):
        batch = torch.randn(256, 512, device=device)
        with run.iteration(tokens=len(batch)) as iteration:
            loss = (model(batch) - batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            iteration.loss = loss
        if number % 100 == 0 and dist.get_rank() == 0:
            print(f"iteration {number}, loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
