"""Evenkeel: what a training loop types is here; everything else is in the packages below.

``import evenkeel``, then :func:`start`. Services and tools import their own packages and load nothing of the SDK.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenkeel.trainer_sdk.api import start, stop
    from evenkeel.trainer_sdk.watch.run import Run

__all__ = ["Run", "start", "stop"]


def __getattr__(name: str) -> Any:
    """The SDK's names, loaded when the first of them is asked for."""
    if name in __all__:
        place = "watch.run" if name == "Run" else "api"
        return getattr(importlib.import_module(f"evenkeel.trainer_sdk.{place}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
