"""Published model shapes as costs per layer."""

from dataclasses import dataclass

from evenkeel.layouts.model import BlockCost, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """Decoder-only transformer with gated feed-forward.

    Attributes:
        num_layers: Layers; each is one block. Embedding and head are left out.
        hidden: Model width.
        heads: Attention heads: the granule in which a layer is cut.
        kv_heads: Key and value heads (fewer than shards are repeated, at no modelled cost).
        feed_forward: Inner width.
    """

    num_layers: int
    hidden: int
    heads: int
    kv_heads: int
    feed_forward: int

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        head = self.hidden // self.heads
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_heads * head
        return attention + 3 * self.hidden * self.feed_forward

    def spec(self) -> ModelSpec:
        """The model as a planner needs it: bf16 weights, fp32 gradients, master copy and Adam (18 bytes in all)."""
        layer = BlockCost(
            forward_flops_per_token=2.0 * self.layer_parameters,
            forward_flops_per_squared_length=2.0 * self.hidden,
            parameter_bytes=6 * self.layer_parameters,
            optimizer_bytes=12 * self.layer_parameters,
            max_width=self.heads,
        )
        return ModelSpec(blocks=(layer,) * self.num_layers, activation_bytes_per_token=2 * self.hidden)

    def halved_spec(self, feed_forward_granule: int = 16) -> ModelSpec:
        """The same with attention and feed-forward as blocks of their own: heads are coarse, the inner width is fine.

        Args:
            feed_forward_granule: Columns of the inner width that stay together.
        """
        feed_forward = 3 * self.hidden * self.feed_forward
        attention = self.layer_parameters - feed_forward

        def block(parameters: int, squared: float, width: int) -> BlockCost:
            return BlockCost(
                forward_flops_per_token=2.0 * parameters,
                forward_flops_per_squared_length=squared,
                parameter_bytes=6 * parameters,
                optimizer_bytes=12 * parameters,
                max_width=width,
            )

        layer = (
            block(attention, 2.0 * self.hidden, self.heads),
            block(feed_forward, 0.0, self.feed_forward // feed_forward_granule),
        )
        return ModelSpec(blocks=layer * self.num_layers, activation_bytes_per_token=2 * self.hidden)


MODELS: dict[str, TransformerShape] = {
    "llama2-7b": TransformerShape(num_layers=32, hidden=4096, heads=32, kv_heads=32, feed_forward=11008),
    "llama2-13b": TransformerShape(num_layers=40, hidden=5120, heads=40, kv_heads=40, feed_forward=13824),
    "llama2-30b": TransformerShape(num_layers=60, hidden=6656, heads=52, kv_heads=52, feed_forward=17920),
    "llama3-405b": TransformerShape(num_layers=126, hidden=16384, heads=128, kv_heads=8, feed_forward=53248),
    "llama2-70b": TransformerShape(num_layers=80, hidden=8192, heads=64, kv_heads=8, feed_forward=28672),
    "qwen2.5-7b": TransformerShape(num_layers=28, hidden=3584, heads=28, kv_heads=4, feed_forward=18944),
    "qwen2.5-14b": TransformerShape(num_layers=48, hidden=5120, heads=40, kv_heads=8, feed_forward=13824),
    "qwen2.5-32b": TransformerShape(num_layers=64, hidden=5120, heads=40, kv_heads=8, feed_forward=27648),
    "qwen2.5-72b": TransformerShape(num_layers=80, hidden=8192, heads=64, kv_heads=8, feed_forward=29568),
    "dense-480b": TransformerShape(num_layers=96, hidden=20480, heads=128, kv_heads=128, feed_forward=53248),
}
