"""What collectives took in a run, beside what follows from those of its first epoch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from benchmarks.planning.live.engine_run import Segment
from evenkeel.layouts.layout import Layout
from evenkeel.layouts.model import ModelSpec
from evenkeel.layouts.ranks.traffic import ring_part
from evenkeel.planning.costs.gradients import GradientExchange
from evenkeel.trainer_sdk.emit.measured import Measured

_SETTLING = 2
"""First iterations of an epoch: they build groups and warm up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Collectives of one epoch, as the detector takes them: of those who wait for one, the least wait; medians.

    Attributes:
        name: Of its layout.
        gradient_seconds: Exchange of the gradients in the first stages.
        gradient_predicted: By the formula, from the first epoch's.
        tensor_seconds: Tensor collectives of a micro-batch in all stages of a replica; 0 where there are none.
        tensor_predicted: The same.
    """

    name: str
    gradient_seconds: float
    gradient_predicted: float
    tensor_seconds: float
    tensor_predicted: float


def exchanges_of(
    model: ModelSpec, segments: Sequence[Segment], samples: Mapping[int, Mapping[int, Measured]]
) -> Iterator[Exchange]:
    """Each epoch's; devices that are not alike make ranks wait in turn, which is no exchange: for healthy runs."""
    whole, pair, block = GradientExchange(model, 1.0), 0.0, 0.0
    newest = [list(samples[iteration].values()) for iteration in sorted(samples)]
    for epoch, iterations in groupby(newest, key=lambda some: some[0].place.epoch):
        layout = segments[epoch].layout
        settled = [some for some in iterations if len(some) == len(layout.ranks)][_SETTLING:]
        gradient = median([min(one.wait_gradient_seconds for one in some if not one.place.stage) for some in settled])
        tensor = median([_tensor_seconds(some) for some in settled]) / len(layout.replicas)
        parts = whole.seconds([replica.stages[:1] for replica in layout.replicas]), _sharded(model, layout)
        if not epoch:
            pair, block = gradient / parts[0], tensor / parts[1]
        yield Exchange(
            name=segments[epoch].name,
            gradient_seconds=gradient,
            gradient_predicted=pair * parts[0],
            tensor_seconds=tensor,
            tensor_predicted=block * parts[1],
        )


def _tensor_seconds(some: Sequence[Measured]) -> float:
    """Of a micro-batch in all stages of all replicas: of each the wait of the shard that waits least."""
    least: dict[tuple[int, int], float] = {}
    for one in some:
        cell = one.place.replica, one.place.stage
        waited = one.wait_tensor_seconds / one.num_micro_batches
        least[cell] = min(least.get(cell, waited), waited)
    return sum(least.values())


def _sharded(model: ModelSpec, layout: Layout) -> float:
    """Sharded blocks of a replica, each by what its collectives take over those of two shards."""
    found = 0.0
    for stage in (stage for replica in layout.replicas for stage in replica.stages):
        blocks = model.blocks[stage.first_block : stage.stop_block]
        found += ring_part(len(stage.ranks)) * sum(block.max_width > 1 for block in blocks)
    return found / len(layout.replicas)
