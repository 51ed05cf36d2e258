"""The forward pass of one shard of one stage: the blocks it holds, computed with the slices it holds."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from trainer_sdk.elastic.config import ModelConfig
from trainer_sdk.elastic.data import MicroBatch
from trainer_sdk.elastic.model import block_flops
from trainer_sdk.elastic.ownership import Slice
from trainer_sdk.elastic.tensor_parallel import TensorRegion, sharded_cross_entropy

_NORM_EPSILON = 1e-5


class StageModel:
    """Blocks ``[first_block, stop_block)`` of the model with one shard's parameters.

    Args:
        model: Model.
        blocks: The stage's blocks.
        held: This shard's slices by parameter.
        parameters: Their values; read at every forward, so they may be replaced between iterations.
        region: The stage's shards.
    """

    def __init__(
        self,
        model: ModelConfig,
        blocks: range,
        held: Mapping[str, Slice],
        parameters: Mapping[str, Tensor],
        region: TensorRegion,
    ) -> None:
        self._model = model
        self._blocks = blocks
        self._held = held
        self._parameters = parameters
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

    def forward(self, x: Tensor | None, batch: MicroBatch) -> Tensor:
        """Run the stage.

        Args:
            x: Activation [N, width] from the previous stage; None in the first stage.
            batch: The micro-batch.

        Returns:
            Activation [N, width], the same on every shard; in the last stage the loss summed over tokens.
        """
        for block in self._blocks:
            if block == 0:
                x = self._embed(batch)
            elif block < self._model.num_blocks - 1:
                assert x is not None, "a layer needs the previous stage's activation"
                x = self._layer(block, x, batch)
            else:
                assert x is not None, "the head needs the previous stage's activation"
                x = self._loss(block, x, batch)
        assert x is not None, "a stage has at least one block"
        return x

    def embedding_flops(self, batch: MicroBatch) -> float:
        """Forward operations of the embedding, whose backward has no region to count it; 0 without the first block."""
        return self._block_flops(0, batch) if 0 in self._blocks else 0.0

    def _embed(self, batch: MicroBatch) -> Tensor:
        self._region.count_forward(self._block_flops(0, batch))
        tokens = functional.embedding(batch.tokens, self._parameters["embedding.token"])
        return tokens + functional.embedding(batch.offsets, self._parameters["embedding.position"])

    def _layer(self, block: int, x: Tensor, batch: MicroBatch) -> Tensor:
        flops = self._block_flops(block, batch)
        own = {name: self._parameters[f"layer{block - 1}.{name}"] for name in _LAYER_NAMES}
        normalised = functional.rms_norm(x, (self._model.width,), own["norm"], _NORM_EPSILON)
        entered = self._region.enter(normalised, flops)
        attended = self._attend(entered, own, batch) @ own["wo"].T
        hidden = functional.gelu(entered @ own["w_up"].T) @ own["w_down"].T
        return x + self._region.leave(attended + hidden, flops)

    def _attend(self, x: Tensor, own: Mapping[str, Tensor], batch: MicroBatch) -> Tensor:
        tokens, head_dim = x.shape[0], self._model.head_dim
        heads = own["wq"].shape[0] // head_dim
        if heads == 0:  # attention kernels refuse it; the sum keeps the parameters in the graph
            return (x @ own["wq"].T) + (x @ own["wk"].T) + (x @ own["wv"].T)
        query, key, value = (
            (x @ own[name].T).view(tokens, heads, head_dim).transpose(0, 1) for name in ("wq", "wk", "wv")
        )
        lengths = list(batch.documents.lengths)
        # Document by document: the block-diagonal causal mask without computing what it would mask.
        documents = zip(*(torch.split_with_sizes(x, lengths, dim=1) for x in (query, key, value)), strict=True)
        attended = [
            functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
            for q, k, v in documents
        ]
        return torch.cat(attended, dim=1).transpose(0, 1).reshape(tokens, heads * head_dim)

    def _loss(self, block: int, x: Tensor, batch: MicroBatch) -> Tensor:
        flops = self._block_flops(block, batch)
        normalised = functional.rms_norm(x, (self._model.width,), self._parameters["head.norm"], _NORM_EPSILON)
        entered = self._region.enter(normalised, flops)
        logits = entered @ self._parameters["head.weight"].T
        self._region.count_forward(flops)
        return sharded_cross_entropy(logits, batch.targets, self._held["head.weight"].start, self._region)

    def _block_flops(self, block: int, batch: MicroBatch) -> float:
        per_token, per_square = self._flops[block]
        return per_token * batch.documents.num_tokens + per_square * batch.documents.sum_of_squares


_LAYER_NAMES = ("norm", "wq", "wk", "wv", "wo", "w_up", "w_down")
