"""The loops that are compared: the same model, data and optimizer, under torch's own wrappers and as replicas."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from evenkeel.trainer_sdk.groups.c10d import c10d
from evenkeel.trainer_sdk.replicas import Place, join_replicas

Step = Callable[[], None]
"""Runs one optimizer step."""

TOKENS = {1_000_000: 512, 3_000_000: 384, 10_000_000: 256, 50_000_000: 128}
_NUM_BATCHES = 4


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is compared.

    Attributes:
        parameters: Of the model, about.
        micro_batches: Of a step, on each rank.
        replicas: How many.
        size: Ranks of each, over which its model is sharded where there are several.
    """

    parameters: int
    micro_batches: int
    replicas: int = 2
    size: int = 1


def _make(case: Case, mesh: DeviceMesh | None = None) -> tuple[nn.Module, list[torch.Tensor]]:
    """Linear layers of one width, each sharded where there is a mesh, and what they are fed."""
    torch.manual_seed(0)
    depth = 8
    width = max(32, round((case.parameters / depth) ** 0.5))
    model = nn.Sequential(*[layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())])
    if mesh is not None:
        for layer in (*model[::2], model):
            fully_shard(layer, mesh=mesh)
    tokens = TOKENS[case.parameters]
    batches = [
        torch.randn(tokens, width, generator=torch.Generator().manual_seed(each)) for each in range(_NUM_BATCHES)
    ]
    return model, batches


def ddp(case: Case, address: str, rank: int) -> tuple[Step, Step]:
    """A step under DistributedDataParallel, every micro-batch but the last under ``no_sync``; and what ends it."""
    _begin_torch(address, "ddp", rank, case.replicas)
    model, batches = _make(case)
    wrapped = DistributedDataParallel(model)

    def accumulate(is_last: bool) -> None:
        wrapped.require_backward_grad_sync = is_last

    return _torch_step(case, wrapped, batches, accumulate), distributed.destroy_process_group


def hsdp(case: Case, address: str, rank: int) -> tuple[Step, Step]:
    """A step under FSDP2 over two dimensions: replicas exchange in the last micro-batch; and what ends it."""
    _begin_torch(address, "hsdp", rank, case.replicas * case.size)
    mesh = init_device_mesh("cpu", (case.replicas, case.size), mesh_dim_names=("replicate", "shard"))
    model, batches = _make(case, mesh)

    def accumulate(is_last: bool) -> None:
        model.set_requires_all_reduce(is_last)  # type: ignore[operator]

    return _torch_step(case, model, batches, accumulate), distributed.destroy_process_group


def replicas(case: Case, address: str, rank: int) -> tuple[Step, Step]:
    """A step as replicas; and what ends them."""
    replica, index = divmod(rank, case.size)
    place = Place(store_address=address, replica=replica, num_replicas=case.replicas, index=index, size=case.size)
    mesh = None
    if case.size > 1:
        _begin_torch(address, f"replica/{replica}", index, case.size)
        mesh = init_device_mesh("cpu", (case.size,))
    model, batches = _make(case, mesh)
    run = join_replicas(place, model, num_micro_batches=case.micro_batches * case.replicas)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        for batch in run.micro_batches(lambda step, index: batches[index % _NUM_BATCHES]):
            run.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()

    return step, run.close


def _torch_step(case: Case, model: nn.Module, batches: list[torch.Tensor], accumulate: Callable[[bool], None]) -> Step:
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        for each in range(case.micro_batches):
            accumulate(each == case.micro_batches - 1)
            (model(batches[each % _NUM_BATCHES]).square().mean() / case.micro_batches).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _begin_torch(address: str, name: str, rank: int, num_ranks: int) -> None:
    """Torch's own group."""
    host, port = address.split(":")
    store = c10d.PrefixStore(name, c10d.TCPStore(host, int(port), is_master=False))
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks)


LOOPS = {"ddp": ddp, "hsdp": hsdp, "replicas": replicas}
os.environ["OMP_NUM_THREADS"] = "1"
