"""Split backward: the pass that gives the input's gradient notes what the weights' gradients are made of.

Every use of a weight multiplies it with something, so its gradient is a product of that and of the gradient that
arrives there. The backward pass hands the first on and keeps both factors; the product is made later, when nobody waits
for this stage (as in Zero Bubble, arXiv 2401.10241). Collectives of tensor parallelism lie on the input's way and so in
the first part; the second is local.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from evenkeel.trainer_sdk.elastic.model.weights import NORM_EPSILON, Weights


class WeightTape(Weights):
    """One micro-batch's uses of weights whose gradients are put off. Training thread only.

    Args:
        parameters: Values by name; each requires a gradient.
    """

    deferred = True

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__(parameters)
        self._pending: list[tuple[str, Callable[[], Tensor]]] = []

    def project(self, x: Tensor, name: str) -> Tensor:
        """See :class:`Weights`."""
        used = x.detach()
        return self._noted(x @ self.parameters[name].detach().T, name, lambda gradient: gradient.T @ used)

    def normalise(self, x: Tensor, name: str) -> Tensor:
        """See :class:`Weights`."""
        normalised = functional.rms_norm(x, x.shape[-1:], eps=NORM_EPSILON)
        used, scaled = normalised.detach(), normalised * self.parameters[name].detach()
        return self._noted(scaled, name, lambda gradient: (gradient * used).sum(dim=0))

    def look_up(self, indices: Tensor, name: str) -> Tensor:
        """See :class:`Weights`."""
        weight = self.parameters[name].detach()
        found = functional.embedding(indices, weight)
        return self._noted(found, name, lambda gradient: torch.zeros_like(weight).index_add_(0, indices, gradient))

    def _noted(self, result: Tensor, name: str, make: Callable[[Tensor], Tensor]) -> Tensor:
        """Keep how a part of a weight's gradient is made of the one that arrives at a result."""
        if not result.requires_grad:  # nothing before it has a gradient
            result.requires_grad_()
        result.register_hook(  # type: ignore[no-untyped-call]
            lambda gradient: self._pending.append((name, partial(make, gradient)))
        )
        return result

    @torch.no_grad()
    def fill(self) -> None:
        """Add what was put off to the ``grad`` of the weights, and let go of the factors."""
        pending, self._pending = self._pending, []
        for name, make in pending:
            parameter, part = self.parameters[name], make()
            if parameter.grad is None:
                parameter.grad = part
            else:
                parameter.grad += part
