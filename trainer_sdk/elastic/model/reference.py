"""The run that nothing happens to: one process, one layout, the same seed. What every other run is compared with."""

from collections.abc import Iterator
from itertools import count

import torch

from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.trainer_sdk.devices.real_device import CpuDevice
from evenkeel.trainer_sdk.elastic.config import TrainingConfig
from evenkeel.trainer_sdk.elastic.model.data import Dataset
from evenkeel.trainer_sdk.elastic.model.optimizer import clip_scale
from evenkeel.trainer_sdk.elastic.program.runtime import EpochRuntime
from evenkeel.trainer_sdk.elastic.state.shard_state import initial_state
from evenkeel.trainer_sdk.emit.phases import Phases
from evenkeel.trainer_sdk.emit.progress import ProgressMark


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
    phases = Phases(CpuDevice(), ProgressMark())
    dataset = Dataset(config, torch.device(config.device))
    return EpochRuntime(config, dataset, 0, initial_state(config, single_layout(config), 0), {}, phases)


def reference_losses(config: TrainingConfig) -> Iterator[float]:
    """Mean loss of each iteration of the failure-free single-process run; each is computed when it is asked for."""
    runtime = reference_runtime(config)
    for iteration in count():
        yield runtime.run_iteration(iteration)
        runtime.step(clip_scale(config.optimizer, runtime.sums.squared_norm_part() ** 0.5))
