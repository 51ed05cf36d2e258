"""Two ranks of a library's own trainer, unwatched and then watched: ``python watched_trainers.py FOLDER LIBRARY``.

They are forked here: what takes seconds to load is loaded once. They evaluate after every step
(transformers) or every third micro-batch (Lightning), and rank 1 is slow to read and slow in its forward pass.
"""

import importlib
import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

from evenkeel.trainer_sdk.emit.emitter import Emitter
from evenkeel.trainer_sdk.emit.iteration import Iteration
from evenkeel.trainer_sdk.emit.left_value import number
from evenkeel.trainer_sdk.watch.run import Run

NUM_STEPS, PER_STEP = 3, 2
SLOW_RANK, SLOW_SECONDS = 1, 0.15


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Rows of five numbers."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        hold_up()
        return {"x": torch.arange(index, index + 5).float(), "labels": torch.ones(1)}


class Model(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        hold_up()
        return {"loss": (self.inner(x / 64) - labels).square().mean()}


def hold_up() -> None:
    if os.environ["RANK"] == str(SLOW_RANK):
        time.sleep(SLOW_SECONDS)


def with_transformers(folder: Path, model: nn.Module, run: Run | None) -> None:
    from transformers import Trainer, TrainingArguments  # noqa: PLC0415

    from evenkeel.hf import Watch  # noqa: PLC0415

    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=1,
        per_device_eval_batch_size=1,
        gradient_accumulation_steps=PER_STEP,
        max_steps=NUM_STEPS,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    rows = torch.utils.data.Subset(Rows(), range(2))
    trainer = Trainer(model=model, args=arguments, train_dataset=Rows(), eval_dataset=rows)
    if run is not None:
        trainer.add_callback(Watch(trainer, run))
    trainer.train()


def with_lightning(folder: Path, model: nn.Module, run: Run | None) -> None:
    import lightning  # noqa: PLC0415

    from evenkeel.lightning import Watch  # noqa: PLC0415

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
            return self.model(**batch)["loss"]  # type: ignore[no-any-return]

        def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
            self.model(**batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        accumulate_grad_batches=PER_STEP,
        max_steps=NUM_STEPS,
        val_check_interval=2 * PER_STEP - 1,  # in the middle of the second step, and between two
        limit_val_batches=1,
        callbacks=[] if run is None else [Watch(run)],
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    loader, rows = (torch.utils.data.DataLoader(Rows(), batch_size=1) for _ in range(2))
    trainer.fit(Module(), loader, rows)


TRAIN = {"transformers": with_transformers, "lightning": with_lightning}


def train(library: str, folder: Path, run: Run | None) -> list[float]:
    """The parameters that it ends with."""
    torch.manual_seed(0)
    model = Model()
    TRAIN[library](folder, model, run)
    return [value for parameter in model.parameters() for value in parameter.detach().flatten().tolist()]


def run_rank(rank: int, folder: Path, library: str) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    run, finished = Run(emitter=Emitter()), list[Iteration]()
    run._finished = finished.append  # type: ignore[method-assign]
    said = {
        "library": library,
        "plain": train(library, folder, None),
        "watched": train(library, folder, run),
        "num_errors": run.num_errors,
        "iterations": [
            {
                "index": iteration.index,
                "mark": measured.mark,
                "tokens": measured.tokens,
                "micro_batches": measured.num_micro_batches,
                "loss": number(iteration.loss, "loss"),
                "forward": measured.forward_seconds,
                "backward": measured.backward_seconds,
                "input": measured.input_seconds or 0.0,
                "waiting": measured.wait_gradient_seconds,
                "wall": measured.wall_seconds,
            }
            for iteration in finished
            for measured in (iteration.measured(),)
        ],
    }
    (folder / f"{rank}.json").write_text(json.dumps(said))


def main() -> None:
    folder, library = Path(sys.argv[1]), sys.argv[2]
    importlib.import_module(library)
    importlib.import_module({"transformers": "evenkeel.hf", "lightning": "evenkeel.lightning"}[library])
    ranks = []
    for rank in range(2):
        if (pid := os.fork()) == 0:
            run_rank(rank, folder, library)
            sys.stdout.flush()
            os._exit(0)
        ranks.append(pid)
    sys.exit(any(os.waitpid(pid, 0)[1] for pid in ranks))


if __name__ == "__main__":
    main()
