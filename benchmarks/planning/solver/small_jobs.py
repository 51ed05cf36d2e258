"""The model and the workload of small jobs, as the engine declares them: what tests and benchmarks plan for."""

from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.planning.costs.cost_model import Workload

WORKLOAD = Workload(
    seconds_per_flop=2e-10, tokens=1024.0, sum_of_squares=1e5, fixed_seconds=0.01, transfer_seconds=0.0005
)


def gpt(num_layers: int, heads: int = 12) -> ModelSpec:
    """Embedding, layers and head."""
    layer = BlockCost(
        forward_flops_per_token=2.2e5,
        forward_flops_per_squared_length=200.0,
        parameter_bytes=440_000,
        optimizer_bytes=880_000,
        max_width=heads,
    )
    embedding = BlockCost(
        forward_flops_per_token=1e3,
        forward_flops_per_squared_length=0.0,
        parameter_bytes=100_000,
        optimizer_bytes=200_000,
    )
    head = BlockCost(
        forward_flops_per_token=5e4,
        forward_flops_per_squared_length=0.0,
        parameter_bytes=100_000,
        optimizer_bytes=200_000,
        max_width=256,
    )
    return ModelSpec(blocks=(embedding, *(layer for _ in range(num_layers)), head))
