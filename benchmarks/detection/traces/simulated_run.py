"""What all traces have in common: one job in a published evaluation's shapes, and what a run of it sends."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from evenkeel.contracts.frames import Frames
from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.services.detector.adapters.frame_reader import observations_of
from evenkeel.services.detector.domain.frames.observation import FrameObservation
from evenkeel.simulator.job.hardware import Hardware
from evenkeel.simulator.job.observations import NodeClock, frames
from evenkeel.simulator.job.pipeline_run import RankTimes
from evenkeel.simulator.job.workload import Workload, packed_workload

SHAPES = {"4x2x2": (4, 2, 2), "4x2x4": (4, 2, 4), "4x2x8": (4, 2, 8), "4x4x16": (4, 4, 16)}
"""(TP, DP, PP) by name, as in ResiHP's evaluation."""

HARDWARE = Hardware(
    seconds_per_flop=1.0 / 150e12,
    tensor_seconds=1e-3,
    transfer_seconds=1e-3,
    exchange_seconds=0.2,
    optimizer_seconds=0.05,
)
OPERATION_NOISE_SIGMA = 0.004

_LAYERS_PER_STAGE = 4
_HIDDEN = 4096
_TOKEN_BUDGET = 32_768


class JobOfShape(NamedTuple):
    """A job, and the lengths that it trains on."""

    layout: Layout
    model: ModelSpec
    workload: Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """One run of a job, executed operation by operation; ``clocks`` are those of its nodes, all right where empty."""

    name: str
    layout: Layout
    model: ModelSpec
    hardware: Hardware
    workload: Workload
    times: RankTimes
    devices_per_node: int = 8
    clocks: tuple[NodeClock, ...] = ()

    @property
    def num_iterations(self) -> int:
        """Iterations of the run."""
        return int(self.times.wall.shape[0])

    def observations(self) -> Iterator[FrameObservation]:
        """What the detector would look at."""
        for number, frame in enumerate(self.frames()):
            yield from observations_of(self.name, number, frame)

    def frames(self) -> Iterator[Frames]:
        """What it would read, iteration by iteration."""
        return frames(
            model=self.model,
            layout=self.layout,
            hardware=self.hardware,
            workload=self.workload,
            times=self.times,
            devices_per_node=self.devices_per_node,
            node_clocks=self.clocks,
        )


def transformer(num_layers: int, hidden: int = _HIDDEN) -> ModelSpec:
    """A GPT-like model: attention costs ``4 * hidden`` operations per squared length, halved by the causal mask."""
    layer = BlockCost(
        forward_flops_per_token=24.0 * hidden**2,
        forward_flops_per_squared_length=2.0 * hidden,
        max_width=32,
    )
    return ModelSpec(blocks=(layer,) * num_layers)


def job_of_shape(
    rng: np.random.Generator, shape: str, num_iterations: int, *, length_scale: float = 16.0, tail: float = 1.5
) -> JobOfShape:
    """The job in one of its shapes, with lengths drawn from ``rng``.

    Args:
        rng: Where lengths come from.
        shape: A name in ``SHAPES``.
        num_iterations: Length of the run.
        length_scale: See ``packed_workload``.
        tail: Spread of document lengths; see ``packed_workload``.
    """
    tensor, data, pipeline = SHAPES[shape]
    layout = uniform_layout(
        num_blocks=_LAYERS_PER_STAGE * pipeline,
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        num_micro_batches=data * 2 * pipeline,
    )
    workload = packed_workload(
        rng,
        num_iterations=num_iterations,
        num_micro_batches=layout.num_micro_batches,
        token_budget=_TOKEN_BUDGET,
        length_scale=length_scale,
        tail=tail,
    )
    return JobOfShape(layout, transformer(layout.num_blocks), workload)
