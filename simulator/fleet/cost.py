"""What iterations take on a machine park: the planner's cost model with its links, for every system and for the truth.

Collectives of a tensor group take what its width and the links within a node make of them; so does the exchange of
gradients between replicas, which hangs on who holds how much of the model and with how many. Nothing of either is
hidden behind compute. Planners reckon with the collectives; the exchange of gradients is only in what operations take,
so every planner learns of it as of anything that it measures.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evenkeel.layouts.layout import Layout, Stage
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.traffic import ring_part
from evenkeel.planning.costs.cost_model import CostModel, Workload, block_slowness

NODE_BYTES_PER_SECOND = 230e9
"""All-reduce within a node of eight A100: bus bandwidth of NVIDIA's nccl-tests over NVSwitch."""

NETWORK_BYTES_PER_SECOND = 25e9
"""Of each device between nodes: one 200 Gb/s HDR link a device."""

_GRADIENT_PART = 2.0 / 3.0
"""fp32 gradients of the six bytes that a parameter has beside the optimizer's state (bf16 weight, fp32 gradient)."""


@dataclass(frozen=True, slots=True, eq=False)
class FleetCost(CostModel):
    """The planner's cost model, and what the exchange of gradients takes.

    Attributes:
        gradient_bytes_per_second: Of each device to the other replicas.
    """

    gradient_bytes_per_second: float = math.inf

    def iteration_seconds(self, layout: Layout, throughputs: Mapping[int, float]) -> float:
        """Seconds per iteration of a layout, the exchange of gradients included.

        Raises:
            ValueError: A rank of the layout is dead.
        """
        pipelines = CostModel.iteration_seconds(self, layout, throughputs)
        return pipelines + self.gradient_seconds([replica.stages for replica in layout.replicas])

    def gradient_seconds(self, replicas: Sequence[Sequence[Stage | None]], factor: float = 1.0) -> float:
        """Seconds of a ring all-reduce among the replicas, by the device that holds most.

        Args:
            replicas: Stages of each replica; None where nobody is.
            factor: Of the slowest link between replicas, 1 = healthy.
        """
        most = max((self._held_bytes(stage) for stages in replicas for stage in stages if stage), default=0.0)
        return factor * ring_part(max(1, len(replicas))) * most * _GRADIENT_PART / self.gradient_bytes_per_second

    def _held_bytes(self, stage: Stage) -> float:
        healthy = (1.0,) * len(stage.shares)
        blocks = self.model.blocks[stage.first_block : stage.stop_block]
        return sum([block.parameter_bytes * block_slowness(block.max_width, stage.shares, healthy) for block in blocks])


def fleet_cost(
    model: ModelSpec,
    workload: Workload,
    *,
    node_bytes_per_second: float = NODE_BYTES_PER_SECOND,
    network_bytes_per_second: float = NETWORK_BYTES_PER_SECOND,
    collectives_per_block: int = 4,
) -> FleetCost:
    """The cost of a job on a machine park.

    Args:
        model: Model.
        workload: What iterations are made of; its collectives are replaced.
        node_bytes_per_second: All-reduce among devices of a node.
        network_bytes_per_second: Of each device to other nodes.
        collectives_per_block: All-reduces of an activation, forward and backward together (Megatron: 4 a layer).
    """
    activation_bytes = workload.tokens * model.activation_bytes_per_token
    exchange_seconds = collectives_per_block * activation_bytes / node_bytes_per_second
    return FleetCost(
        model,
        replace(workload, exchange_seconds=exchange_seconds),
        gradient_bytes_per_second=network_bytes_per_second,
    )
