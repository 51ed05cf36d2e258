"""How a stage computes with its weights: what stands between the model's formulas and where gradients are kept."""

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional

NORM_EPSILON = 1e-5


class Weights:
    """One micro-batch's use of a shard's weights, by their names. Training thread only.

    Autograd gives the weights' gradients in the same backward pass as the input's.

    Args:
        parameters: Values by name; read at every use.

    Attributes:
        deferred: True when the backward pass gives the input's gradient alone, and the weights' come later.
    """

    deferred = False

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.parameters = parameters

    def project(self, x: Tensor, name: str) -> Tensor:
        """``x`` times the transposed weight."""
        return x @ self.parameters[name].T

    def normalise(self, x: Tensor, name: str) -> Tensor:
        """Root-mean-square norm over the last axis, times the weight."""
        return functional.rms_norm(x, x.shape[-1:], self.parameters[name], NORM_EPSILON)

    def look_up(self, indices: Tensor, name: str) -> Tensor:
        """Rows of the weight."""
        return functional.embedding(indices, self.parameters[name])
