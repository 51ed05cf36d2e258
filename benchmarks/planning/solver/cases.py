"""ResiHP's jobs as planning cases: shapes as published, micro-batches where they were published, else assumed.

ResiHP's Table 4 names 4 micro-batches per replica for the small jobs and 8 for the medium ones, twice the number of
stages; the large ones are not named and continue that rule. Run lengths follow from "half of the devices are left at
the end" of the 30 min setting: 4, 8 and 16 hours.
"""

from dataclasses import dataclass

from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.planning.costs.cost_model import CostModel, Workload
from evenkeel.simulator.fleet.cost.iteration import fleet_cost
from evenkeel.simulator.fleet.operation.operation import operation_of, operation_seconds
from evenkeel.simulator.fleet.scenario.models import MODELS

SECONDS_PER_FLOP = 1.0 / 160e12
"""An A100 at about half of its peak: gives the published fault-free samples per second within some tens of percent."""

TOKENS, MEAN_LENGTH = 8192.0, 2048.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One job.

    Attributes:
        model: Key of :data:`evenkeel.simulator.fleet.scenario.models.MODELS`.
        home: Its full shape.
        cost: Its cost model.
        hours: Length of a run.
    """

    model: str
    home: Layout
    cost: CostModel
    hours: float

    @property
    def num_devices(self) -> int:
        """Devices of the job; there are no spares."""
        return len(self.home.ranks)

    @property
    def healthy(self) -> dict[int, float]:
        """Everybody at full speed."""
        return dict.fromkeys(self.home.ranks, 1.0)


def case_of(model: str, tensor: int, data: int, pipeline: int, quota: int, hours: float) -> Case:
    """A job of a published model."""
    spec = MODELS[model].spec()
    workload = Workload(
        seconds_per_flop=SECONDS_PER_FLOP, tokens=TOKENS, sum_of_squares=TOKENS * MEAN_LENGTH, transfer_seconds=0.002
    )
    home = uniform_layout(
        num_blocks=len(spec.blocks), tensor=tensor, pipeline=pipeline, data=data, num_micro_batches=quota * data
    )
    return Case(model=model, home=home, cost=fleet_cost(spec, workload), hours=hours)


def resihp_cases(quota_factor: int = 1) -> list[Case]:
    """The six jobs of Table 6 and Fig. 9; micro-batches times a factor, to see what hangs on their number."""
    shapes = {
        "llama2-7b": (4, 2, 2, 4, 4.0),
        "llama2-13b": (4, 2, 4, 8, 8.0),
        "llama2-30b": (4, 2, 8, 16, 16.0),
        "qwen2.5-7b": (4, 2, 2, 4, 4.0),
        "qwen2.5-14b": (4, 2, 4, 8, 8.0),
        "qwen2.5-32b": (4, 2, 8, 16, 16.0),
    }
    return [case_of(m, t, d, p, quota * quota_factor, hours) for m, (t, d, p, quota, hours) in shapes.items()]


def large_case() -> Case:
    """LLaMA-2 70B on 256 devices."""
    return case_of("llama2-70b", 4, 4, 16, 32, 24.0)


def throughput_for_residual(case: Case, rank: int, residual: float) -> float:
    """Speed of one device with which the job, when nothing is done, keeps ``residual`` of its throughput."""
    operation = operation_of(case.home)
    healthy = operation_seconds(case.cost, operation, case.healthy)
    low, high = 0.01, 1.0
    for _ in range(40):
        middle = (low + high) / 2.0
        seconds = operation_seconds(case.cost, operation, {**case.healthy, rank: middle})
        low, high = (middle, high) if healthy / seconds < residual else (low, middle)
    return (low + high) / 2.0
