"""A module of Lightning whose Trainer has Evenkeel's strategy. See README.md."""

import os
import time
from typing import Any

import lightning
import torch
from torch import nn

from evenkeel.lightning import EvenkeelStrategy

NUM_STEPS = int(os.environ.get("STEPS", "60"))
PAUSE_SECONDS = float(os.environ.get("PAUSE", "0.02"))  # stands in for a device that computes longer


class Sums(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Vectors and the running sums of their entries."""

    def __len__(self) -> int:
        return 330

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        vector = torch.randn(32, generator=torch.Generator().manual_seed(index))
        return vector, vector.cumsum(0)


class Model(lightning.LightningModule):
    """Learns them, and prints the loss on some of them after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))
        data = Sums()
        self.vectors, self.sums = (torch.stack(column) for column in zip(*[data[i] for i in range(64)], strict=True))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """The loss of a micro-batch."""
        vectors, sums = batch
        return (self.layers(vectors) - sums).square().mean()

    def configure_optimizers(self) -> Any:
        """AdamW, with a schedule by steps."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, NUM_STEPS)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_start(self) -> None:
        """Say that all is loaded."""
        print(f"replica {os.environ.get('EVENKEEL_REPLICA', '0')}: begins", flush=True)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Print how far a replica is that holds the model."""
        if (batch_idx + 1) % 6 and not self.trainer.is_last_batch:
            return  # no step
        if not self.trainer.strategy.has_model:
            return  # not yet
        time.sleep(PAUSE_SECONDS)
        with torch.no_grad():
            loss = float((self.layers(self.vectors) - self.sums).square().mean())
        replica = os.environ.get("EVENKEEL_REPLICA", "0")
        print(f"replica {replica}: step {self.trainer.global_step}, loss {loss:.7f}", flush=True)


def main() -> None:
    """Train, and say how it goes."""
    lightning.seed_everything(0)
    loader = torch.utils.data.DataLoader(Sums(), batch_size=4)
    trainer = lightning.Trainer(
        strategy=EvenkeelStrategy(),
        accelerator="cpu",
        accumulate_grad_batches=6,  # of all replicas together
        gradient_clip_val=1.0,
        max_steps=NUM_STEPS,
        default_root_dir=os.environ.get("OUTPUT"),
        enable_checkpointing="OUTPUT" in os.environ,
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(Model(), loader)


if __name__ == "__main__":
    main()
