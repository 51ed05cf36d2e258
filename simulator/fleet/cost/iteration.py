"""What iterations take on a machine park: the workload with its links, for every system and for the truth.

Collectives of a tensor group take what its width and the links within a node make of them; so does the exchange of
gradients between replicas, which hangs on who holds how much of the model and with how many. Nothing of either is
hidden behind compute.
"""

from dataclasses import replace

from evenkeel.layouts.model import ModelSpec
from evenkeel.planning.costs.cost_model import CostModel, Workload

NODE_BYTES_PER_SECOND = 230e9
"""All-reduce within a node of eight A100: bus bandwidth of NVIDIA's nccl-tests over NVSwitch."""

NETWORK_BYTES_PER_SECOND = 25e9
"""Of each device between nodes: one 200 Gb/s HDR link a device."""

_GRADIENT_PART = 2.0 / 3.0
"""fp32 gradients of the six bytes that a parameter has beside the optimizer's state (bf16 weight, fp32 gradient)."""


def fleet_cost(
    model: ModelSpec,
    workload: Workload,
    *,
    node_bytes_per_second: float = NODE_BYTES_PER_SECOND,
    network_bytes_per_second: float = NETWORK_BYTES_PER_SECOND,
    collectives_per_block: int = 4,
) -> CostModel:
    """The cost of a job on a machine park.

    Args:
        model: Model.
        workload: What iterations are made of; its collectives and its exchange of gradients are replaced.
        node_bytes_per_second: All-reduce among devices of a node.
        network_bytes_per_second: Of each device to other nodes.
        collectives_per_block: All-reduces of an activation, forward and backward together (Megatron: 4 a layer).
    """
    activation_bytes = workload.tokens * model.activation_bytes_per_token
    gradient_bytes = _GRADIENT_PART * sum(block.parameter_bytes for block in model.blocks)
    links = replace(
        workload,
        exchange_seconds=collectives_per_block * activation_bytes / node_bytes_per_second,
        gradient_seconds=gradient_bytes / network_bytes_per_second,
    )
    return CostModel(model, links)
