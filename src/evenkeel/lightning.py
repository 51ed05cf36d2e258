"""``from evenkeel.lightning import EvenkeelStrategy``; see docs/on_your_trainer.md."""

from evenkeel.trainer_sdk.trainers.lightning import EvenkeelStrategy

__all__ = ["EvenkeelStrategy"]
