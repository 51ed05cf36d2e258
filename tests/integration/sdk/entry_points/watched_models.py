"""A rank that trains small models of every kind: ``python watched_models.py FOLDER``; torchrun says who it is.

Each model is trained twice from the same start, unwatched and watched, and what was measured, marked and learned goes
to FOLDER. Rank 1 is slow. Then it hangs, in a model of each kind that waits, until the file ``KIND.go`` is there.
"""

import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from evenkeel.trainer_sdk.emit.emitter import Emitter
from evenkeel.trainer_sdk.emit.iteration import Iteration
from evenkeel.trainer_sdk.emit.progress import Mark, ProgressMark
from evenkeel.trainer_sdk.watch.run import Run

ITERATIONS = 3
SLOW_RANK, SLOW_SECONDS = 1, 0.1


class Block(nn.Module):
    """A residual block that ``pause`` may hold up."""

    def __init__(self, *, recomputed: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.recomputed = recomputed
        self.pause: Callable[[], None] = lambda: None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.pause()
        inner = checkpoint(self.inner, x, use_reentrant=False) if self.recomputed else self.inner(x).tanh()
        inner.register_hook(self.hold_up)
        return x + inner  # type: ignore[no-any-return]

    def hold_up(self, _: torch.Tensor) -> None:
        """In the backward pass likewise."""
        self.pause()


class Head(nn.Module):
    """One that can be compiled whole."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)  # type: ignore[no-any-return]


class Model(nn.Module):
    """Two blocks, a head and a buffer; gives a mapping, as models of libraries do."""

    def __init__(self, *, recomputed: bool = False, scaled: bool = True) -> None:
        super().__init__()
        self.scaled = scaled
        self.blocks = nn.ModuleList(Block(recomputed=recomputed) for _ in range(2))
        self.head = Head()
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        for block in self.blocks:
            x = block(x)
        scores = self.head(x)
        return {"scores": scores * self.scale if self.scaled else scores}


def sharded(model: Model, dtype: torch.dtype | None = None) -> nn.Module:
    for block in (*model.blocks, *(() if model.scaled else (model.head,))):
        fully_shard(block, mp_policy=MixedPrecisionPolicy(param_dtype=dtype))
    output_dtype = torch.float32 if dtype else None  # cast on the way out, behind fully_shard's own hooks
    fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=dtype, output_dtype=output_dtype))
    return model


def hooked(model: Model) -> Model:
    """One with a hook of the user's own, from before the watch."""
    model.register_forward_pre_hook(lambda *_: first_block(model).pause())
    return model


def compiled(model: Model) -> Model:
    model.head.compile(fullgraph=True, backend="aot_eager")
    return model


KINDS: dict[str, Callable[[], nn.Module]] = {
    "single": Model,
    "ddp": lambda: DistributedDataParallel(Model()),
    "hooked": lambda: DistributedDataParallel(hooked(Model())),
    "accumulated": lambda: DistributedDataParallel(Model()),
    "sharded": lambda: sharded(Model()),
    "last sharded": lambda: sharded(Model(scaled=False)),
    "compiled": lambda: sharded(compiled(Model(scaled=False))),
    "recomputed": lambda: sharded(Model(recomputed=True)),
    "mixed": lambda: sharded(Model(), torch.bfloat16),
}


class NotedMarks(ProgressMark):
    """Keeps every operation of the iteration."""

    def __init__(self) -> None:
        self.operations: list[str] = []
        super().__init__()

    def begin_iteration(self, iteration: int, epoch: int) -> None:
        self.operations.clear()
        super().begin_iteration(iteration, epoch)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "newest":
            self.operations.append(str(value[0]))
        super().__setattr__(name, value)


def new_run() -> tuple[Run, NotedMarks, list[Iteration]]:
    emitter = Emitter()
    marks = NotedMarks()
    emitter.progress = marks
    run = Run(emitter=emitter)
    finished: list[Iteration] = []
    run._finished = finished.append  # type: ignore[method-assign]
    return run, marks, finished


def train(kind: str, *, watched: bool) -> dict[str, Any]:
    """The loop of a user."""
    torch.manual_seed(0)
    model = KINDS[kind]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run, marks, finished = new_run()
    if watched:
        run.watch(model, optimizer)
        if dist.get_rank() == SLOW_RANK:
            first_block(model).pause = lambda: time.sleep(SLOW_SECONDS)
    for number in range(ITERATIONS):
        with run.iteration(tokens=8) as iteration:
            for part in range(2 if kind == "accumulated" else 1):
                torch.manual_seed(100 * number + 10 * part + dist.get_rank())
                alone = isinstance(model, DistributedDataParallel) and kind == "accumulated" and part == 0
                with model.no_sync() if alone else nullcontext():  # type: ignore[operator]
                    loss = model(torch.randn(8, 16))["scores"].square().mean()
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            iteration.loss = loss
    return {
        "operations": list(marks.operations),
        "samples": [
            {
                "compute": measured.forward_seconds + measured.backward_seconds,
                "backward": measured.backward_seconds,
                "optimizer": measured.optimizer_seconds,
                "waiting": measured.wait_gradient_seconds,
                "wall": measured.wall_seconds,
                "cpu": measured.cpu_seconds,
                "queued": measured.queued_seconds,
            }
            for measured in (one.measured() for one in finished)
        ],
        "parameters": [
            (value.full_tensor() if isinstance(value, DTensor) else value).tolist()
            for value in (parameter.detach() for parameter in model.parameters())
        ],
    }


def graphs_kept(kind: str) -> int:
    """What is left of forward passes whose gradients nobody asks for, as those of an evaluation."""
    model = KINDS[kind]()
    run, _, _ = new_run()
    run.watch(model)
    for _ in range(ITERATIONS):
        with run.iteration(tokens=8):
            model(torch.randn(8, 16))
    gc.collect()
    return sum(issubclass(type(each), BackwardCFunction) for each in gc.get_objects())


def hang(kind: str, folder: Path) -> None:
    """Rank 1 stays in a forward pass until ``KIND.go`` is there; all say meanwhile where they are."""
    model = KINDS[kind]()
    run, marks, _ = new_run()
    run.watch(model)
    goes_on = threading.Event()
    if dist.get_rank() == SLOW_RANK:
        first_block(model).pause = goes_on.wait
    teller = threading.Thread(target=tell, args=(marks, folder, kind, goes_on))
    teller.start()
    with run.iteration(tokens=8):
        model(torch.randn(8, 16))["scores"].sum().backward()
    teller.join()


def tell(marks: ProgressMark, folder: Path, kind: str, goes_on: threading.Event) -> None:
    while not (folder / f"{kind}.go").exists():
        mark: Mark = marks.read()
        written = folder / f"{kind}.{dist.get_rank()}.part"
        written.write_text(json.dumps({"operation": str(mark.operation), "waiting_for": mark.waiting_for}))
        written.rename(folder / f"{kind}.{dist.get_rank()}.mark")
        time.sleep(0.02)
    goes_on.set()


def first_block(model: nn.Module) -> Block:
    return next(module for module in model.modules() if isinstance(module, Block))


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    said = {
        kind: {
            "plain": train(kind, watched=False),
            "watched": train(kind, watched=True),
            "graphs_kept": graphs_kept(kind),
        }
        for kind in KINDS
    }
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(said))
    for kind in ("ddp", "sharded"):
        hang(kind, folder)
    dist.destroy_process_group()
    # While the interpreter ends, torch destroys threads of its own that still run, now and then: it aborts.
    os._exit(0)


if __name__ == "__main__":
    main()
