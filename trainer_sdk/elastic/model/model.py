"""The byte-level GPT as the engine and the planner see it: blocks, their parameters, their cost.

Attention and MLP of a layer run side by side on the same normalised input (as in PaLM, arXiv 2204.02311), which
leaves one tensor-parallel reduction per layer and direction instead of two.
"""

import math
from typing import Any

from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.trainer_sdk.elastic.config import ModelConfig, TrainingConfig, config_from_json
from evenkeel.trainer_sdk.elastic.model.parameters import ParameterSpec
from evenkeel.trainer_sdk.elastic.state.ownership import Slice

BACKWARD_MULTIPLE = 2.0
"""A matrix product's backward is two products of the same size; activations are kept, nothing is recomputed."""

_MOMENTS = 2


def parameter_specs(model: ModelConfig) -> tuple[ParameterSpec, ...]:
    """All parameters, block by block."""
    width, hidden, vocabulary = model.width, model.mlp_width, model.vocabulary
    specs = [
        ParameterSpec(name="embedding.token", block=0, shape=(vocabulary, width)),
        ParameterSpec(name="embedding.position", block=0, shape=(model.max_document_length, width)),
    ]
    for layer in range(model.num_layers):
        block, prefix = layer + 1, f"layer{layer}"
        specs.append(ParameterSpec(name=f"{prefix}.norm", block=block, shape=(width,)))
        specs += [
            ParameterSpec(name=f"{prefix}.{name}", block=block, shape=(width, width), axis=0, granule=model.head_dim)
            for name in ("wq", "wk", "wv")
        ]
        specs += [
            ParameterSpec(name=f"{prefix}.wo", block=block, shape=(width, width), axis=1, granule=model.head_dim),
            ParameterSpec(name=f"{prefix}.w_up", block=block, shape=(hidden, width), axis=0),
            ParameterSpec(name=f"{prefix}.w_down", block=block, shape=(width, hidden), axis=1),
        ]
    last = model.num_blocks - 1
    specs.append(ParameterSpec(name="head.norm", block=last, shape=(width,)))
    specs.append(ParameterSpec(name="head.weight", block=last, shape=(vocabulary, width), axis=0))
    return tuple(specs)


def block_flops(model: ModelConfig, block: int, held: dict[str, Slice]) -> tuple[float, float]:
    """Forward operations of one block for a shard that holds ``held``: per token, and per squared document length."""
    width = model.width
    if block == 0:
        return 2.0 * width, 0.0
    if block == model.num_blocks - 1:
        return 2.0 * width * len(held["head.weight"]), 0.0
    prefix = f"layer{block - 1}"
    heads_width, hidden = len(held[f"{prefix}.wq"]), len(held[f"{prefix}.w_up"])
    # Causal attention: query-key and weight-value products over half of each document's square.
    return 8.0 * width * heads_width + 4.0 * width * hidden, 2.0 * heads_width


def backward_flops(block: int, of_tokens: float, of_squares: float) -> tuple[float, float]:
    """Operations of a block's backward: (of its input's gradient, of its weights').

    Args:
        block: Block. The embedding's input has no gradient.
        of_tokens: Forward operations that grow with tokens: products with weights.
        of_squares: Forward operations that grow with squared lengths: attention, which has no weights.
    """
    whole = BACKWARD_MULTIPLE * (of_tokens + of_squares)
    of_weights = whole if block == 0 else of_tokens
    return whole - of_weights, of_weights


def model_spec(config: TrainingConfig) -> ModelSpec:
    """The model's costs for planners, whole blocks."""
    model = config.model
    specs = parameter_specs(model)
    whole = {spec.name: Slice(0, spec.cut_size) for spec in specs}
    item = 8 if config.dtype == "float64" else 4
    tokens = config.workload.token_budget
    widths = {0: 1, model.num_blocks - 1: model.vocabulary}
    blocks = []
    for block in range(model.num_blocks):
        per_token, per_square = block_flops(model, block, whole)
        elements = sum(math.prod(spec.shape) for spec in specs if spec.block == block)
        kept = {0: 1, model.num_blocks - 1: model.vocabulary // model.width + 2}.get(block, 6 + 2 * model.mlp_multiple)
        blocks.append(
            BlockCost(
                forward_flops_per_token=per_token,
                forward_flops_per_squared_length=per_square,
                backward_multiple=BACKWARD_MULTIPLE,
                parameter_bytes=elements * item,
                optimizer_bytes=elements * item * _MOMENTS,
                activation_bytes=kept * tokens * model.width * item,
                max_width=widths.get(block, model.num_heads),
            )
        )
    return ModelSpec(blocks=tuple(blocks), activation_bytes_per_token=model.width * item)


def model_spec_of(config: dict[str, Any]) -> ModelSpec:
    """The model's costs from a job file's ``config``: what its ``model`` entry names.

    Raises:
        ValueError: The configuration is not usable.
    """
    return model_spec(config_from_json(config))
