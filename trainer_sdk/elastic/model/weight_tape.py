"""Split backward: the pass that gives the input's gradient notes what the weights' gradients are made of.

Every use of a weight multiplies it with something, so its gradient is a product of that and of the gradient that
arrives there. The backward pass hands the first on and keeps both factors; the product is made later, when nobody waits
for this stage (as in Zero Bubble, arXiv 2401.10241). Collectives of tensor parallelism lie on the input's way and so in
the first part; the second is local.
"""

from collections.abc import Callable, Mapping
from typing import Any

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
        projected: Tensor = _Project.apply(x, self.parameters[name], self, name)
        return projected

    def normalise(self, x: Tensor, name: str) -> Tensor:
        """See :class:`Weights`."""
        scaled: Tensor = _Scale.apply(
            functional.rms_norm(x, x.shape[-1:], eps=NORM_EPSILON), self.parameters[name], self, name
        )
        return scaled

    def look_up(self, indices: Tensor, name: str) -> Tensor:
        """See :class:`Weights`."""
        found: Tensor = _LookUp.apply(indices, self.parameters[name], self, name)
        return found

    def put_off(self, name: str, make: Callable[[], Tensor]) -> None:
        """Keep how a part of a weight's gradient is made."""
        self._pending.append((name, make))

    @torch.no_grad()  # the factors require gradients, and their product must not
    def fill(self) -> None:
        """Add what was put off to the ``grad`` of the weights, and let go of the factors."""
        pending, self._pending = self._pending, []
        for name, make in pending:
            parameter, part = self.parameters[name], make()
            if parameter.grad is None:
                parameter.grad = part
            else:
                parameter.grad += part


# The weight is an argument only so that autograd comes here in a stage without an input; it gets no gradient from it.


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, tape: WeightTape, name: str) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.tape, ctx.name = tape, name
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        x, weight = ctx.saved_tensors
        ctx.tape.put_off(ctx.name, lambda: gradient.T @ x)
        return gradient @ weight, None, None, None


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, tape: WeightTape, name: str) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.tape, ctx.name = tape, name
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        x, weight = ctx.saved_tensors
        ctx.tape.put_off(ctx.name, lambda: (gradient * x).sum(dim=0))
        return gradient * weight, None, None, None


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indices: Tensor, weight: Tensor, tape: WeightTape, name: str) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.tape, ctx.name, ctx.shape = tape, name, weight.shape
        return functional.embedding(indices, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None, None]:
        (indices,) = ctx.saved_tensors
        shape = ctx.shape
        ctx.tape.put_off(ctx.name, lambda: gradient.new_zeros(shape).index_add_(0, indices, gradient))
        return None, None, None, None
