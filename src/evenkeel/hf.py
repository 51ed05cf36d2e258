"""``from evenkeel.hf import Trainer``; see docs/on_your_trainer.md."""

from evenkeel.trainer_sdk.trainers.hf import Trainer
from evenkeel.trainer_sdk.trainers.hf_watch import Watch

__all__ = ["Trainer", "Watch"]
