"""The elastic engine on devices of kind ``cpu``: ``-m benchmarks.detection.live.engine CASE FOLDER``."""

import os
import sys
from pathlib import Path

import torch

from benchmarks.detection.live.cases import Case
from benchmarks.detection.live.rows import RowEmitter, row_of, write_rows
from benchmarks.detection.live.slowdown import WARM_UP, Slowdown
from evenkeel.layouts.layout import uniform_layout
from evenkeel.trainer_sdk.devices.device import Computed, ComputeKind
from evenkeel.trainer_sdk.devices.real_device import CpuDevice
from evenkeel.trainer_sdk.elastic.config import ModelConfig, TrainingConfig, WorkloadConfig
from evenkeel.trainer_sdk.emit.measured import Measured
from tests.integration.elastic.fleet import Fleet

_AT_ONCE = 20


class SlowedDevice(CpuDevice):
    """A CPU to which a case happens: in the first forward pass of each iteration."""

    def __init__(self, case: Case, rank: int) -> None:
        super().__init__()
        self._case, self._rank = case, rank
        self._slowdown: Slowdown | None = None
        self._emitter = RowEmitter(rank)
        self._is_first = True

    def begin(self, kind: ComputeKind) -> float:
        """As for any other CPU, and longer where that is so."""
        now = super().begin(kind)
        if self._is_first and kind is ComputeKind.FORWARD:
            self._is_first = False
            if self._slowdown is None:  # the process of the rank is another than that which made the device
                self._slowdown = Slowdown(self._case, self._rank, os.getpid(), self._emitter)
            self._slowdown.begin_iteration()
            self._slowdown.in_forward()
        return now

    def take(self) -> Computed:
        """What was measured; it says how long iterations take."""
        taken = super().take()
        if self._slowdown is not None and not self._is_first:
            seconds = sum(taken.seconds.values())
            cpu = taken.thread[0] if taken.thread is not None else seconds
            self._emitter.measured.append(Measured(iteration=0, wall_seconds=seconds, cpu_seconds=cpu))
            self._is_first = True
        return taken


def main() -> None:
    """Trains, and writes the rows of all ranks."""
    case, folder = Case.from_json(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    count = WARM_UP + case.iterations
    model = ModelConfig(num_layers=4, head_dim=8)
    config = TrainingConfig(
        job_id=case.name,
        seed=case.seed,
        num_iterations=count + _AT_ONCE,
        model=model,
        workload=WorkloadConfig(num_micro_batches=2 * case.ranks, token_budget=256),
    )
    layout = uniform_layout(
        num_blocks=model.num_blocks,
        tensor=1,
        pipeline=1,
        data=case.ranks,
        num_micro_batches=config.workload.num_micro_batches,
    )
    fleet = Fleet(config, layout, make_device=lambda rank: SlowedDevice(case, rank))
    try:
        for reached in range(_AT_ONCE, count + _AT_ONCE, _AT_ONCE):
            fleet.reached(min(reached, count))  # each has a deadline of its own
    finally:
        fleet.close()
    complete = [by_rank for _, by_rank in sorted(fleet.samples.items()) if len(by_rank) == case.ranks]
    recorded = complete[:count]
    rows = [row_of(rank, measured) for by_rank in recorded for rank, measured in sorted(by_rank.items())]
    write_rows(folder / "ranks.csv", rows, skipped=WARM_UP)


if __name__ == "__main__":
    main()
