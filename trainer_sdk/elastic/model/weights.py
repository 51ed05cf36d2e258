"""How a stage computes with its weights: what stands between the model's formulas and where gradients are kept."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor
from torch.nn import functional

NORM_EPSILON = 1e-5


class Weights(Protocol):
    """One micro-batch's use of a shard's weights, by their names. Training thread only.

    Attributes:
        deferred: True when the backward pass gives the input's gradient alone, and the weights' come later.
    """

    deferred: bool

    def project(self, x: Tensor, name: str) -> Tensor:
        """``x`` times the transposed weight."""
        ...

    def normalise(self, x: Tensor, name: str) -> Tensor:
        """Root-mean-square norm over the last axis, times the weight."""
        ...

    def look_up(self, indices: Tensor, name: str) -> Tensor:
        """Rows of the weight."""
        ...


class DirectWeights:
    """Autograd gives the weights' gradients in the same backward pass as the input's.

    Args:
        parameters: Values by name; read at every use.
    """

    deferred = False

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters

    def project(self, x: Tensor, name: str) -> Tensor:
        """``x`` times the transposed weight."""
        return x @ self._parameters[name].T

    def normalise(self, x: Tensor, name: str) -> Tensor:
        """Root-mean-square norm over the last axis, times the weight."""
        return functional.rms_norm(x, x.shape[-1:], self._parameters[name], NORM_EPSILON)

    def look_up(self, indices: Tensor, name: str) -> Tensor:
        """Rows of the weight."""
        return functional.embedding(indices, self._parameters[name])
