"""One rank of a loop under torchrun: ``-m benchmarks.detection.live.loops CASE FOLDER``; leaves its rows there."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks.detection.live.cases import Case, Loop
from benchmarks.detection.live.rows import RowEmitter, write_rows
from benchmarks.detection.live.slowdown import WARM_UP, Slowdown
from evenkeel.trainer_sdk.watch.run import Run

WIDTH = 256
ROWS = 1536
"""Of a rank's batch: a quota counts in periods of 100 ms, and no real job's iterations are much shorter."""


class Burden(torch.nn.Module):
    """Where a rank's forward pass takes longer; leaves what passes as it is."""

    def __init__(self, slowdown: Slowdown) -> None:
        super().__init__()
        self._slowdown = slowdown

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Takes longer, where that is so."""
        self._slowdown.in_forward()
        return batch


def train_plainly(case: Case, run: Run, slowdown: Slowdown) -> None:
    """A network of a few layers on random data, replicated or sharded."""
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH))
    network = torch.nn.Sequential(Burden(slowdown), inner)
    model: torch.nn.Module
    if case.loop is Loop.FSDP2:
        for layer in (inner[0], inner[2]):
            fully_shard(layer)
        model = network
        fully_shard(model)
    else:
        model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters())
    run.watch(model, optimizer)
    for _ in range(WARM_UP + case.iterations):
        slowdown.begin_iteration()
        with run.iteration(tokens=ROWS) as iteration:
            with iteration.compute("data"):
                slowdown.in_input()
                batch = torch.randn(ROWS, WIDTH)
            loss = (model(batch) - batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            iteration.loss = loss


def train_with_trainer(case: Case, run: Run, slowdown: Slowdown) -> None:
    """A tiny Llama under the Trainer of transformers, watched by a callback."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments  # noqa: PLC0415

    from evenkeel.hf import Watch  # noqa: PLC0415

    class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return 4096

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            tokens = (index + torch.arange(48)) % 61
            return {"input_ids": tokens, "labels": tokens}

    class Strike(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            slowdown.begin_iteration()

    torch.manual_seed(0)
    sizes = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes))
    model.model.register_forward_pre_hook(lambda *_: slowdown.in_forward())
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=8,
            max_steps=WARM_UP + case.iterations,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=Rows(), callbacks=[Strike()])
        trainer.add_callback(Watch(trainer, run))
        trainer.train()


def main() -> None:
    """Trains, and writes the rows."""
    case, folder, rank = Case.from_json(sys.argv[1]), Path(sys.argv[2]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    emitter = RowEmitter(rank)
    slowdown = Slowdown(case, rank, os.getpid(), emitter)
    train = train_with_trainer if case.loop is Loop.HF else train_plainly
    try:
        train(case, Run(emitter=emitter), slowdown)
    finally:
        slowdown.stop()
    write_rows(folder / f"rank_{rank}.csv", emitter.rows, skipped=WARM_UP)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
