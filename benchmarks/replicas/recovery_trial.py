"""Kills one of several replicas, again and again, and says how long the others stood.

A script: run it under the Python that has the library, as :mod:`benchmarks.replicas.recovery` does.
Each trial is a new job of forked processes on this machine, gloo, whose replicas run the same model on equally many
micro-batches; a short sleep in each stands for a device that computes longer. One process is killed at a random moment.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from multiprocessing.connection import Connection, Pipe
from typing import Any

import torch
from torch import nn

PER_REPLICA = 3
PAUSE_SECONDS = 0.01
WIDTH, DEPTH = 256, 8
_BEFORE_STEPS = 15
_AFTER_STEPS = 8
_LONGEST_SECONDS = 60.0

Told = Callable[[int], None]
"""Called with the number of steps that are committed."""


def make_model() -> nn.Module:
    """About half a million parameters."""
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())])


def ours(address: str, replica: int, num_replicas: int, told: Told) -> None:
    """A loop of replicas, as its documentation has it."""
    from evenkeel.trainer_sdk.replicas import Place, join_replicas  # noqa: PLC0415 - the other Python has none

    model = make_model()
    place = Place(store_address=address, replica=replica, num_replicas=num_replicas)
    run = join_replicas(place, model, num_micro_batches=PER_REPLICA * num_replicas)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(64, WIDTH)
    while True:
        for each in run.micro_batches(lambda step, index: batch):
            time.sleep(PAUSE_SECONDS)
            run.backward(model(each).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        told(run.step)


def torchft(address: str, replica: int, num_replicas: int, told: Told, interval: float, timeout: float) -> None:
    """The same under torchft, as its documentation has it."""
    from torchft import (  # type: ignore[import-not-found]  # noqa: PLC0415 - ours has none
        DistributedDataParallel,
        Manager,
        Optimizer,
        ProcessGroupGloo,
    )

    model = make_model()
    inner = torch.optim.AdamW(model.parameters())
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    limit = timedelta(seconds=timeout)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=limit),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        timeout=limit,
        quorum_timeout=limit,
        connect_timeout=limit,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=address,
        replica_id=f"replica_{replica}",
        hostname="127.0.0.1",
        heartbeat_interval=timedelta(seconds=interval),
    )
    wrapped = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, inner)
    batch = torch.randn(64, WIDTH)
    while True:
        optimizer.zero_grad()
        for number in range(PER_REPLICA):
            last = number == PER_REPLICA - 1
            with contextlib.nullcontext() if last else wrapped.no_sync():
                time.sleep(PAUSE_SECONDS)
                (wrapped(batch).square().mean() / PER_REPLICA).backward()
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() > before:
            told(manager.current_step())


def trial(begin: Callable[[int, Told], None], num_replicas: int, rng: random.Random) -> dict[str, float]:
    """One job, and one death: median seconds of a step before it, and the survivors' longest pause around it."""
    pids, outputs = [], []
    for replica in range(num_replicas):
        reader, writer = Pipe(duplex=False)
        pid = os.fork()
        if pid == 0:
            _rank(begin, replica, writer)
        writer.close()
        pids.append(pid)
        outputs.append(reader)
    try:
        times: list[list[float]] = [[] for _ in pids]
        for _ in range(_BEFORE_STEPS):
            _hear(outputs, times)
        step = statistics.median(b - a for row in times for a, b in pairwise(row[5:]))
        time.sleep(rng.uniform(0.0, step))
        os.kill(pids[-1], signal.SIGKILL)
        killed_at = time.monotonic()
        while min(sum(at > killed_at for at in row) for row in times[:-1]) < _AFTER_STEPS:
            _hear(outputs[:-1], times)
        pauses = [b - a for row in times[:-1] for a, b in pairwise(row) if b > killed_at]
        ends = [sorted(at for at in row if at > killed_at) for row in times[:-1]]
        after = statistics.median(b - a for row in ends for a, b in pairwise(row[4:]))
        return {"step_seconds": step, "pause_seconds": max(pauses), "step_after_seconds": after}
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _hear(outputs: list[Connection], times: list[list[float]]) -> None:
    """One more step of each."""
    for output, row in zip(outputs, times, strict=False):
        if not output.poll(_LONGEST_SECONDS):
            raise TimeoutError(f"a survivor has made no step for {_LONGEST_SECONDS:g} s")
        row.append(output.recv())


def _rank(begin: Callable[[int, Told], None], replica: int, writer: Connection) -> None:
    torch.set_num_threads(1)
    try:
        begin(replica, lambda step: writer.send(time.monotonic()))
    finally:
        sys.stderr.flush()
        os._exit(1)


def main() -> None:
    """Run trials, and print them as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=("ours", "torchft"))
    parser.add_argument("--address", default="", help="of torchft's lighthouse")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--heartbeat-interval", type=float, default=0.1)
    parser.add_argument("--timeout", type=float, default=60.0)
    options = parser.parse_args()
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)], foreach=False)  # loads what each would load
    __import__("evenkeel.trainer_sdk.replicas" if options.library == "ours" else "torchft")
    rng = random.Random(options.seed)
    found = []
    for _ in range(options.trials):
        if options.library == "ours":
            store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
            address = f"127.0.0.1:{store.port}"
            found.append(
                trial(lambda replica, told: ours(address, replica, options.replicas, told), options.replicas, rng)  # noqa: B023
            )
        else:
            how = (options.heartbeat_interval, options.timeout)
            found.append(
                trial(
                    lambda replica, told: torchft(options.address, replica, options.replicas, told, *how),  # noqa: B023
                    options.replicas,
                    rng,
                )
            )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
