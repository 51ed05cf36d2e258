"""What runs inside the training process: ``import evenkeel``, then ``start``; see :mod:`.api`."""

from evenkeel.trainer_sdk.api import start, stop
from evenkeel.trainer_sdk.watch.run import Run

__all__ = ["Run", "start", "stop"]
