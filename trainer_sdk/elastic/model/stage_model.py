"""The forward pass of one shard of one stage: the blocks it holds, computed with the slices it holds."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from evenkeel.trainer_sdk.elastic.config import ModelConfig
from evenkeel.trainer_sdk.elastic.model.data import MicroBatch
from evenkeel.trainer_sdk.elastic.model.model import backward_flops, block_flops
from evenkeel.trainer_sdk.elastic.model.tensor_parallel import TensorRegion, sharded_cross_entropy
from evenkeel.trainer_sdk.elastic.model.weights import Weights
from evenkeel.trainer_sdk.elastic.state.ownership import Slice


class StageModel:
    """Blocks ``[first_block, stop_block)`` of the model with one shard's parameters.

    Args:
        model: Model.
        blocks: The stage's blocks.
        held: This shard's slices by parameter.
        region: The stage's shards.
    """

    def __init__(
        self,
        model: ModelConfig,
        blocks: range,
        held: Mapping[str, Slice],
        region: TensorRegion,
    ) -> None:
        self._model = model
        self._blocks = blocks
        self._held = held
        self._region = region
        self._flops = {block: block_flops(model, block, dict(held)) for block in blocks}

    @property
    def flops_per_token(self) -> float:
        """Forward operations per token of this shard."""
        return sum(per_token for per_token, _ in self._flops.values())

    @property
    def flops_per_squared_length(self) -> float:
        """Forward operations per unit of the sum of squared lengths of this shard."""
        return sum(per_square for _, per_square in self._flops.values())

    def forward(self, x: Tensor | None, batch: MicroBatch, weights: Weights) -> Tensor:
        """Run the stage.

        Args:
            x: Activation [N, width] from the previous stage; None in the first stage.
            batch: The micro-batch.
            weights: What computes with the held slices, and decides when their gradients are made.

        Returns:
            Activation [N, width], the same on every shard; in the last stage the loss summed over tokens.
        """
        for block in self._blocks:
            if block == 0:
                x = self._embed(batch, weights)
            elif block < self._model.num_blocks - 1:
                assert x is not None, "a layer needs the previous stage's activation"
                x = self._layer(block, x, batch, weights)
            else:
                assert x is not None, "the head needs the previous stage's activation"
                x = self._loss(block, x, batch, weights)
        assert x is not None, "a stage has at least one block"
        return x

    def weight_flops(self, batch: MicroBatch) -> float:
        """Operations of the gradients of all weights."""
        return sum(self._backward_flops(block, batch)[1] for block in self._blocks)

    def embedding_backward_flops(self, batch: MicroBatch) -> float:
        """Operations of the embedding's backward, which has no region to count it; 0 without the first block."""
        return sum(self._backward_flops(0, batch)) if 0 in self._blocks else 0.0

    def _embed(self, batch: MicroBatch, weights: Weights) -> Tensor:
        self._region.count(self._block_flops(0, batch))
        tokens = weights.look_up(batch.tokens, "embedding.token")
        return tokens + weights.look_up(batch.offsets, "embedding.position")

    def _enter(self, block: int, x: Tensor, batch: MicroBatch, weights: Weights) -> Tensor:
        of_input, of_weights = self._backward_flops(block, batch)
        return self._region.enter(x, of_input if weights.deferred else of_input + of_weights)

    def _layer(self, block: int, x: Tensor, batch: MicroBatch, weights: Weights) -> Tensor:
        prefix = f"layer{block - 1}"
        entered = self._enter(block, weights.normalise(x, f"{prefix}.norm"), batch, weights)
        attended = weights.project(self._attend(entered, prefix, batch, weights), f"{prefix}.wo")
        hidden = weights.project(functional.gelu(weights.project(entered, f"{prefix}.w_up")), f"{prefix}.w_down")
        return x + self._region.leave(attended + hidden, self._block_flops(block, batch))

    def _attend(self, x: Tensor, prefix: str, batch: MicroBatch, weights: Weights) -> Tensor:
        tokens, head_dim = x.shape[0], self._model.head_dim
        heads = len(self._held[f"{prefix}.wq"]) // head_dim
        query, key, value = (weights.project(x, f"{prefix}.{name}") for name in ("wq", "wk", "wv"))
        if heads == 0:  # attention kernels refuse it; the sum keeps the parameters in the graph
            return query + key + value
        query, key, value = (each.view(tokens, heads, head_dim).transpose(0, 1) for each in (query, key, value))
        lengths = list(batch.documents.lengths)
        # Document by document: the block-diagonal causal mask without computing what it would mask.
        documents = zip(*(torch.split_with_sizes(x, lengths, dim=1) for x in (query, key, value)), strict=True)
        attended = [
            functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
            for q, k, v in documents
        ]
        return torch.cat(attended, dim=1).transpose(0, 1).reshape(tokens, heads * head_dim)

    def _loss(self, block: int, x: Tensor, batch: MicroBatch, weights: Weights) -> Tensor:
        entered = self._enter(block, weights.normalise(x, "head.norm"), batch, weights)
        logits = weights.project(entered, "head.weight")
        self._region.count(self._block_flops(block, batch))
        return sharded_cross_entropy(logits, batch.targets, self._held["head.weight"].start, self._region)

    def _block_flops(self, block: int, batch: MicroBatch) -> float:
        per_token, per_square = self._flops[block]
        return per_token * batch.documents.num_tokens + per_square * batch.documents.sum_of_squares

    def _backward_flops(self, block: int, batch: MicroBatch) -> tuple[float, float]:
        per_token, per_square = self._flops[block]
        documents = batch.documents
        return backward_flops(block, per_token * documents.num_tokens, per_square * documents.sum_of_squares)
