"""``python -m benchmarks.replicas.rejoin``: how long the others wait while a replica that died gets the state again.

Three replicas of one process, gloo, two layers of equal size; a sleep in each micro-batch stands for a device that
computes longer. One is killed and starts again. Measured once as fast as this machine sends, and once over a link that
takes the given number of iterations, which is the donor sleeping after each piece. Table and JSON.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import time
from itertools import pairwise
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import torch
from torch import nn

from evenkeel.trainer_sdk.groups.c10d import c10d
from evenkeel.trainer_sdk.replicas import Place, join_replicas
from evenkeel.trainer_sdk.replicas.state.packing import Packed
from evenkeel.trainer_sdk.replicas.state.training_state import TrainingState

_NUM_REPLICAS = 3
_TOKENS = 16
_SLEEP_SECONDS = 0.3
_BEFORE_STEPS, _AFTER_STEPS = 8, 4
_BYTES_PER_PARAMETER = 12  # the value and two moments, float32
_LONGEST_SECONDS = 120.0


def _train(address: str, replica: int, num_parameters: int, bytes_per_second: float, output: Connection) -> None:
    """Tells for each step when it ended, and whether this replica holds the whole state."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    width = max(16, round((num_parameters / 8) ** 0.5))
    model = nn.Sequential(nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False))
    pack = TrainingState.pack

    def pack_over_a_link(self: TrainingState, unit: int) -> Packed:
        text, tensors = pack(self, unit)
        if bytes_per_second:
            time.sleep(sum(each.nbytes for each in tensors) / bytes_per_second)
        return text, tensors

    TrainingState.pack = pack_over_a_link  # type: ignore[method-assign]
    run = join_replicas(Place(store_address=address, replica=replica, num_replicas=_NUM_REPLICAS), model)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(_TOKENS, width)
    while True:
        for each in run.micro_batches(lambda step, index: batch):
            time.sleep(_SLEEP_SECONDS)
            run.backward(model(each).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        output.send((time.monotonic(), run.is_complete))


class _Job:
    """The replicas, and when each ended its steps."""

    def __init__(self, num_parameters: int, bytes_per_second: float) -> None:
        self._store = c10d.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._settings = (num_parameters, bytes_per_second)
        self.pids: dict[int, int] = {}
        self.ends: dict[int, list[tuple[float, bool]]] = {}
        self._outputs: dict[int, Connection] = {}
        for replica in range(_NUM_REPLICAS):
            self.start(replica)

    def start(self, replica: int) -> None:
        reader, writer = Pipe(duplex=False)
        pid = os.fork()
        if pid == 0:
            try:
                _train(f"127.0.0.1:{self._store.port}", replica, *self._settings, writer)
            finally:
                sys.stderr.flush()
                os._exit(1)
        writer.close()
        self.pids[replica], self._outputs[replica], self.ends[replica] = pid, reader, []

    def end(self, replica: int) -> None:
        os.kill(self.pids[replica], signal.SIGKILL)
        os.waitpid(self.pids.pop(replica), 0)
        del self._outputs[replica]

    def until(self, replica: int, num_steps: int, *, complete: bool = False) -> None:
        """Until a replica has made so many steps, if asked of those in which it held the whole state."""
        while sum(whole or not complete for _, whole in self.ends[replica]) < num_steps:
            ready = wait(list(self._outputs.values()), _LONGEST_SECONDS)
            if not ready:
                raise TimeoutError(f"nobody has made a step for {_LONGEST_SECONDS:g} s")
            for each, output in self._outputs.items():
                if output in ready:
                    self.ends[each].append(output.recv())


def measure(num_parameters: int, iterations: float, step_seconds: float = 0.0) -> dict[str, Any]:
    """One death and one return.

    Args:
        num_parameters: Of the model.
        iterations: How many iterations the state is on its way, about; 0 = as fast as it gets.
        step_seconds: What an iteration takes, where that is known.
    """
    job = _Job(num_parameters, _BYTES_PER_PARAMETER * num_parameters / (iterations * step_seconds) if iterations else 0)
    last = _NUM_REPLICAS - 1
    try:
        job.until(0, 2)
        job.end(last)
        job.until(0, len(job.ends[0]) + _BEFORE_STEPS)
        before = [b - a for (a, _), (b, _) in pairwise(job.ends[0][3 - _BEFORE_STEPS :])]  # by two, as during
        job.start(last)
        began = time.monotonic()
        job.until(last, _AFTER_STEPS, complete=True)
        is_whole = [whole for _, whole in job.ends[last]]
        whole_at = job.ends[last][is_whole.index(True)][0]
        during = [
            b - a
            for each in range(last)
            for (a, _), (b, _) in pairwise(job.ends[each])
            if began < b < whole_at + statistics.median(before)
        ]
        return {
            "parameters": num_parameters,
            "catch_up_iterations": is_whole.index(True) + 1,
            "before_seconds": statistics.median(before),
            "during_seconds": statistics.median(during),
            "longest_seconds": max(during),
            "pause_iterations": (max(during) - statistics.median(before)) / statistics.median(before),
        }
    finally:
        for replica in tuple(job.pids):
            job.end(replica)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replicas.rejoin", description=__doc__)
    parser.add_argument("--parameters", type=int, default=50_000_000)
    parser.add_argument("--iterations", type=float, default=10, help="how many the state takes over the slow link")
    options = parser.parse_args()
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)], foreach=False)  # loads what each would load
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
