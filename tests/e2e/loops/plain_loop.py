"""A plain data-parallel loop of a user's own, with the five lines of the README: ``python plain_loop.py ITERATIONS``.

torchrun's variables say who it is. PLAIN_LOOP_STARTED names a file that holds the newest iteration, so that whoever
started it can wait for that. While there is a file PLAIN_LOOP_STUCK with its rank in it, a rank stays in its forward
pass.
"""

import datetime
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import evenkeel


class Layer(torch.nn.Linear):
    """Does not come back while it is stuck."""

    stuck = Path(os.environ["PLAIN_LOOP_STUCK"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while self.stuck.exists() and self.stuck.read_text() == str(dist.get_rank()):
            time.sleep(0.05)
        return super().forward(x)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=600))
    run = evenkeel.start()
    model = DistributedDataParallel(Layer(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run.watch(model, optimizer)
    heard = Path(os.environ["PLAIN_LOOP_STARTED"])
    for number in range(int(sys.argv[1])):
        time.sleep(0.06)  # for the next batch: what watches the loop wants the processors more than the loop does
        with run.iteration(tokens=128) as iteration:
            loss = model(torch.randn(128, 256)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            iteration.loss = loss.item()
        if dist.get_rank() == 0:
            heard.write_text(str(number))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
