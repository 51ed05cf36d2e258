"""A plain data-parallel loop of a user's own, with the five lines of the README: ``python plain_loop.py ITERATIONS``.

torchrun's variables say who it is. A file named by PLAIN_LOOP_STARTED is added to at each iteration, so that whoever
started it can wait for that.
"""

import datetime
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import trainer_sdk as evenkeel


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    run = evenkeel.start()
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    heard = Path(os.environ["PLAIN_LOOP_STARTED"])
    for number in range(int(sys.argv[1])):
        time.sleep(0.02)  # for the next batch, so that what watches the loop has a share of the processors
        with run.iteration(tokens=512) as iteration:
            with iteration.compute("forward"):
                loss = model(torch.randn(512, 256)).square().mean()
            with iteration.compute("backward"):
                loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
            iteration.loss = loss.item()
        if dist.get_rank() == 0:
            heard.write_text(str(number))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
