"""AdamW over the slices that a rank holds; element-wise, so slices step exactly as the whole tensor would."""

from collections.abc import Mapping

import torch
from torch import Tensor

from evenkeel.trainer_sdk.elastic.config import OptimizerConfig
from evenkeel.trainer_sdk.elastic.state.shard_state import ShardState

FLOPS_PER_ELEMENT = 14.0
"""Operations of one AdamW update: two moments, bias corrections, root, division, decay."""


class ShardOptimizer:
    """Does what ``torch.optim.AdamW`` does, to the bit, with its state in a :class:`ShardState`.

    Torch's own would load its compiler for it, some 400 modules, which takes a second before any rank starts.

    Args:
        config: Hyperparameters.
        state: What to update, in place; its values become the parameters to differentiate.
    """

    def __init__(self, config: OptimizerConfig, state: ShardState) -> None:
        self._config = config
        self._state = state
        self.parameters: dict[str, Tensor] = {
            name: parameter.value.requires_grad_() for name, parameter in state.parameters.items()
        }

    @property
    def flops(self) -> float:
        """Operations of one step."""
        return FLOPS_PER_ELEMENT * sum(value.numel() for value in self.parameters.values())

    @torch.no_grad()
    def step(self, gradients: Mapping[str, Tensor], scale: float) -> None:
        """Apply one step.

        Args:
            gradients: Reduced gradients by parameter.
            scale: Factor on all of them: 1.0, or less when the global norm is clipped.
        """
        config, step = self._config, self._state.steps_applied + 1
        rate = config.learning_rate * min(1.0, step / max(1, config.warm_up_iterations))
        root_of_correction = (1.0 - config.beta2**step) ** 0.5
        for name, (value, exp_avg, exp_avg_sq) in self._state.parameters.items():
            gradient = (gradients[name] * scale).to(value.dtype)
            value.mul_(1.0 - rate * config.weight_decay)
            exp_avg.lerp_(gradient, 1.0 - config.beta1)
            exp_avg_sq.mul_(config.beta2).addcmul_(gradient, gradient, value=1.0 - config.beta2)
            divisor = (exp_avg_sq.sqrt() / root_of_correction).add_(config.epsilon)
            value.addcdiv_(exp_avg, divisor, value=-rate / (1.0 - config.beta1**step))
        self._state.steps_applied = step


def clip_scale(config: OptimizerConfig, gradient_norm: float) -> float:
    """The factor that brings a gradient of this norm within the limit."""
    if config.max_gradient_norm is None:
        return 1.0
    return min(1.0, config.max_gradient_norm / (gradient_norm + 1e-12))
