"""Runs a job of the demo on the engine, step by step: gloo, emulated devices (real compute, paced)."""

import math
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.planning.live.steps import GONE, HEALTHY, Step
from evenkeel.demo.script.job import MainJob
from evenkeel.trainer_sdk.devices.emulated_device import EmulatedDevice
from evenkeel.trainer_sdk.devices.links import EmulatedLinks, Links
from evenkeel.trainer_sdk.devices.speeds import SpeedTable
from evenkeel.trainer_sdk.emit.measured import Measured
from tests.integration.elastic.fleet import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment(Step):
    """An epoch of the run.

    Attributes:
        num_iterations: Before devices change again.
    """

    num_iterations: int


def run(
    job: MainJob,
    steps: Iterable[Step],
    num_iterations: int,
    pace: float = 1.0,
    link_bytes_per_second: float = math.inf,
) -> tuple[list[Segment], dict[int, dict[int, Measured]]]:
    """Runs the job at home and then through all steps.

    Args:
        job: Job.
        steps: What is to come.
        num_iterations: Under each layout; devices change half as long before the layout does, so that they are noticed.
        pace: How many times slower than the job's devices are.
        link_bytes_per_second: Of the emulated link between each two ranks; infinite = what this machine takes.

    Returns:
        The epochs, and samples by iteration and rank.
    """
    torch.set_num_threads(1)
    everybody = dict.fromkeys(job.layout.ranks, 1.0)
    segments = [Segment(name="home", speeds=HEALTHY, layout=job.layout, num_iterations=num_iterations)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "speeds"
        speed_table = SpeedTable.create(path, len(everybody))

        def device(rank: int) -> EmulatedDevice:
            mine = SpeedTable(path)
            return EmulatedDevice(flops_per_second=job.flops_per_second / pace, speed=lambda: mine.speed(rank))

        def links() -> Links | None:
            return EmulatedLinks(bytes_per_second=link_bytes_per_second) if link_bytes_per_second < math.inf else None

        fleet = Fleet(job.config, job.layout, make_device=device, make_links=links)

        def go_on(count: int) -> None:
            fleet.reached(max(fleet.samples, default=-1) + count)

        try:
            go_on(num_iterations)
            for step in steps:
                for rank, speed in {**everybody, **step.speeds}.items():
                    if speed > GONE:
                        speed_table.set_speed(rank, speed)
                go_on(num_iterations // 2)
                fleet.boundary(step.layout)
                segments.append(
                    Segment(name=step.name, speeds=step.speeds, layout=step.layout, num_iterations=num_iterations)
                )
                go_on(num_iterations)
        finally:
            fleet.close()
        return segments, fleet.samples
