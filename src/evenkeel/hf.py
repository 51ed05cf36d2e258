"""``from evenkeel.hf import Trainer``; see docs/on_your_trainer.md."""

from evenkeel.trainer_sdk.trainers.hf import Trainer

__all__ = ["Trainer"]
