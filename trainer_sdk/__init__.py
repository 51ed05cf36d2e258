"""What runs inside the training process: ``import trainer_sdk as evenkeel``, then ``start``; see :mod:`.api`."""

from trainer_sdk.api import start, stop
from trainer_sdk.run import Run

__all__ = ["Run", "start", "stop"]
