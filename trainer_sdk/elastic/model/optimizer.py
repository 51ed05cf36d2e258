"""AdamW over the slices that a rank holds; element-wise, so slices step exactly as the whole tensor would."""

from collections.abc import Mapping

import torch
from torch import Tensor

from evenkeel.trainer_sdk.elastic.config import OptimizerConfig
from evenkeel.trainer_sdk.elastic.state.shard_state import ShardState

FLOPS_PER_ELEMENT = 14.0
"""Operations of one AdamW update: two moments, bias corrections, root, division, decay."""


class ShardOptimizer:
    """``torch.optim.AdamW`` whose state lives in a :class:`ShardState`.

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
        self._adamw = torch.optim.AdamW(
            list(self.parameters.values()),
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            foreach=False,
        )
        for name, value in self.parameters.items():
            held = state.parameters[name]
            self._adamw.state[value] = {
                "step": torch.tensor(float(state.steps_applied)),
                "exp_avg": held.exp_avg,
                "exp_avg_sq": held.exp_avg_sq,
            }

    @property
    def flops(self) -> float:
        """Operations of one step."""
        return FLOPS_PER_ELEMENT * sum(value.numel() for value in self.parameters.values())

    def step(self, gradients: Mapping[str, Tensor], scale: float) -> None:
        """Apply one step.

        Args:
            gradients: Reduced gradients by parameter.
            scale: Factor on all of them: 1.0, or less when the global norm is clipped.
        """
        warm_up = max(1, self._config.warm_up_iterations)
        rate = self._config.learning_rate * min(1.0, (self._state.steps_applied + 1) / warm_up)
        for group in self._adamw.param_groups:
            group["lr"] = rate
        for name, value in self.parameters.items():
            value.grad = (gradients[name] * scale).to(value.dtype)
        self._adamw.step()
        for value in self.parameters.values():
            value.grad = None
        self._state.steps_applied += 1


def clip_scale(config: OptimizerConfig, gradient_norm: float) -> float:
    """The factor that brings a gradient of this norm within the limit."""
    if config.max_gradient_norm is None:
        return 1.0
    return min(1.0, config.max_gradient_norm / (gradient_norm + 1e-12))
