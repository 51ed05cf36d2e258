"""The run that nothing happens to: one process, one layout, the same seed. What every other run is compared with."""

import time

import torch

from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.trainer_sdk.devices.device import Computed, ComputeKind
from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.measure.clock import Clock
from evenkeel.trainer_sdk.elastic.model.data import Dataset
from evenkeel.trainer_sdk.elastic.model.optimizer import clip_scale
from evenkeel.trainer_sdk.elastic.program.runtime import EpochRuntime
from evenkeel.trainer_sdk.elastic.state.shard_state import initial_state
from evenkeel.trainer_sdk.emit.progress import ProgressMark


class UnpacedDevice:
    """Computes as fast as it can and measures nothing."""

    def begin(self, kind: ComputeKind) -> float:
        """Only the time."""
        return time.perf_counter()

    def end(self, flops: float, kind: ComputeKind) -> float:
        """Only the time."""
        return time.perf_counter()

    def take(self) -> Computed:
        """Nothing was measured."""
        return Computed({}, None, False)


def single_layout(config: TrainingConfig) -> Layout:
    """Everything on rank 0."""
    return uniform_layout(
        num_blocks=config.model.num_blocks,
        tensor=1,
        pipeline=1,
        data=1,
        num_micro_batches=config.workload.num_micro_batches,
    )


def reference_runtime(config: TrainingConfig) -> EpochRuntime:
    """A single-process runtime at the start of the job."""
    layout = single_layout(config)
    clock = Clock(UnpacedDevice(), ProgressMark())
    dataset = Dataset(config, torch.device(config.device))
    return EpochRuntime(config, dataset, layout, 0, initial_state(config, layout, 0), {}, clock)


def reference_losses(config: TrainingConfig, num_iterations: int) -> list[float]:
    """Mean loss of each iteration of the failure-free single-process run. Blocks for the whole computation."""
    runtime = reference_runtime(config)
    losses = []
    for iteration in range(num_iterations):
        losses.append(runtime.run_iteration(iteration))
        runtime.step(clip_scale(config.optimizer, runtime.sums.squared_norm_part() ** 0.5))
    return losses
