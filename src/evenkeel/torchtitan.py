"""``from evenkeel.torchtitan import Trainer``; see docs/on_your_trainer.md."""

from evenkeel.trainer_sdk.trainers.torchtitan import Trainer

__all__ = ["Trainer"]
