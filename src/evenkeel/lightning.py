"""``from evenkeel.lightning import EvenkeelStrategy``; see docs/on_your_trainer.md."""

from evenkeel.trainer_sdk.trainers.lightning import EvenkeelStrategy
from evenkeel.trainer_sdk.trainers.lightning_watch import Watch

__all__ = ["EvenkeelStrategy", "Watch"]
