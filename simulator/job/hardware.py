"""What a simulated job runs on, and what each of its ranks has to compute."""

from dataclasses import dataclass

from evenkeel.layouts.cut import shard_parts
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What the job runs on.

    Attributes:
        seconds_per_flop: Of a healthy device.
        tensor_seconds: One tensor-parallel collective pass of one micro-batch through one block.
        transfer_seconds: One activation over one stage border.
        exchange_seconds: The gradient exchange.
        optimizer_seconds: The optimizer step.
    """

    seconds_per_flop: float
    tensor_seconds: float = 0.0
    transfer_seconds: float = 0.0
    exchange_seconds: float = 0.0
    optimizer_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardWork:
    """Forward operations of one shard of one stage, per token and per squared length."""

    flops_per_token: float
    flops_per_squared_length: float
    backward_multiple: float


def shard_work(model: ModelSpec, layout: Layout, replica: int, stage: int, shard: int) -> ShardWork:
    """What one rank computes, with widths rounded as the engine rounds them."""
    held = layout.replicas[replica].stages[stage]
    per_token = per_square = backward = 0.0
    for block in model.blocks[held.first_block : held.stop_block]:
        fraction = shard_parts(block.max_width, held.shares)[shard]
        per_token += block.forward_flops_per_token * fraction
        per_square += block.forward_flops_per_squared_length * fraction
        backward += block.backward_multiple * (block.forward_flops_per_token * fraction)
    return ShardWork(
        flops_per_token=per_token,
        flops_per_squared_length=per_square,
        backward_multiple=backward / per_token if per_token else 2.0,
    )
