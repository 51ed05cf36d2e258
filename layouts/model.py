"""What a model costs, block by block: all that a planner needs to know of it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCost:
    """Cost of one whole block, all shards together.

    Attributes:
        forward_flops_per_token: Floating-point operations per token N in the forward pass.
        forward_flops_per_squared_length: Floating-point operations per unit of sum of squared document lengths.
        backward_multiple: Backward cost as a multiple of forward cost.
        parameter_bytes: Bytes of parameters.
        optimizer_bytes: Bytes of optimizer state.
        activation_bytes: Bytes one micro-batch keeps from its forward to its backward.
        max_width: Largest number of shards the block can be cut into; 1 means it is not sharded.
    """

    forward_flops_per_token: float
    forward_flops_per_squared_length: float
    backward_multiple: float = 2.0
    parameter_bytes: int = 0
    optimizer_bytes: int = 0
    activation_bytes: int = 0
    max_width: int = 1

    def forward_flops(self, tokens: float, sum_of_squares: float) -> float:
        """Operations of one forward of a micro-batch with ``tokens`` N and ``sum_of_squares`` of lengths."""
        return self.forward_flops_per_token * tokens + self.forward_flops_per_squared_length * sum_of_squares

    def weight_flops(self, tokens: float, sum_of_squares: float) -> float:
        """Operations of the weights' gradients in one backward; the rest of it is the input's.

        What grows with tokens is products with weights, and a weight's gradient takes one more product of that size.
        What grows with squared lengths is attention, which has no weights.
        """
        whole = self.forward_flops(tokens, sum_of_squares) * self.backward_multiple
        return min(self.forward_flops_per_token * tokens, whole)

    def held_bytes(self, micro_batches: float) -> float:
        """Bytes of weights, gradients as large, optimizer state, and the activations of so many micro-batches."""
        return 2 * self.parameter_bytes + self.optimizer_bytes + micro_batches * self.activation_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The model's blocks in order, and the bytes that cross a stage border per token."""

    blocks: tuple[BlockCost, ...]
    activation_bytes_per_token: int = 0
