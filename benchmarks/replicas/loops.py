"""The loops that are compared: the same model, data and optimizer, under DDP and as replicas."""

import os
import resource
import time
from collections.abc import Callable

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from evenkeel.trainer_sdk.groups.c10d import c10d
from evenkeel.trainer_sdk.replicas import Place, join_replicas

Step = Callable[[], None]
"""Runs one optimizer step."""


def make_model(num_parameters: int) -> nn.Module:
    """Linear layers of one width, with about as many parameters."""
    torch.manual_seed(0)
    depth = 8
    width = max(32, round((num_parameters / depth) ** 0.5))
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers)


def _batches(model: nn.Module, tokens: int) -> list[torch.Tensor]:
    width = next(model.parameters()).shape[1]
    return [torch.randn(tokens, width, generator=torch.Generator().manual_seed(each)) for each in range(4)]


def ddp(num_parameters: int, tokens: int, per_rank: int) -> Step:
    """A step under DistributedDataParallel; every micro-batch but the last under ``no_sync``."""
    model = make_model(num_parameters)
    batches = _batches(model, tokens)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters())

    def step() -> None:
        for each in range(per_rank - 1):
            with wrapped.no_sync():
                (wrapped(batches[each % 4]).square().mean() / per_rank).backward()
        (wrapped(batches[(per_rank - 1) % 4]).square().mean() / per_rank).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def replicas(place: Place, num_parameters: int, tokens: int, per_rank: int) -> tuple[Step, Callable[[], None]]:
    """A step as replicas, and what ends them."""
    model = make_model(num_parameters)
    batches = _batches(model, tokens)
    run = join_replicas(place, model, num_micro_batches=per_rank * place.num_replicas)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        for batch in run.micro_batches(lambda step, index: batches[index % 4]):
            run.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()

    return step, run.close


def timed(step: Step, num_steps: int) -> tuple[float, float]:
    """Wall and CPU seconds of a step, on average."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(num_steps):
        step()
    return (time.perf_counter() - wall) / num_steps, (time.process_time() - cpu) / num_steps


def peak_bytes() -> int:
    """Most memory that the process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def begin_rank(address: str, rank: int, num_ranks: int) -> None:
    """Torch's own group of all ranks."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    host, port = address.split(":")
    store = c10d.PrefixStore("ddp", c10d.TCPStore(host, int(port), is_master=False))
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks)
