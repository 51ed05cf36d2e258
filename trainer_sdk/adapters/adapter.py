"""The port of trainer adapters."""

from typing import Protocol

from torch import nn

from evenkeel.trainer_sdk.emit.phases import Phases


class Adapter(Protocol):
    """Tells compute from waiting in one kind of model, by its public hooks."""

    def matches(self, model: nn.Module) -> bool:
        """Whether this is such a model."""

    def watch(self, model: nn.Module, phases: Phases) -> None:
        """From now on the model's forward and backward passes switch the phases.

        Raises:
            ValueError: It waits for others where no hook shows it.
        """
