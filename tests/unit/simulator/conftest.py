import pytest

from evenkeel.layouts.layout import uniform_layout
from evenkeel.planning.costs.cost_model import CostModel, Workload
from evenkeel.simulator.fleet.faults.detection import DetectorModel
from evenkeel.simulator.fleet.faults.topology import Topology
from evenkeel.simulator.fleet.scenario.models import MODELS
from evenkeel.simulator.fleet.simulation import FleetSimulation
from evenkeel.simulator.fleet.strategy import Costs


class Job:
    """A published job: TP 4, two replicas; runs under any strategy on given faults."""

    def __init__(self, model, pipeline, quota):
        spec = MODELS[model].spec()
        self.home = uniform_layout(
            num_blocks=len(spec.blocks), tensor=4, pipeline=pipeline, data=2, num_micro_batches=2 * quota
        )
        workload = Workload(seconds_per_flop=1 / 160e12, tokens=8192.0, sum_of_squares=8192.0 * 2048)
        self.cost = CostModel(spec, workload)
        self.topology = Topology(num_devices=len(self.home.ranks))

    def run(self, strategy, faults, hours=4.0, costs=None, seed=0, **detector):
        return FleetSimulation(
            home=self.home,
            cost=self.cost,
            topology=self.topology,
            faults=faults,
            detector=DetectorModel(**detector),
            costs=costs or Costs(),
            strategy=strategy,
            duration_seconds=3600.0 * hours,
            seed=seed,
        ).run()


@pytest.fixture(scope="session")
def small():
    return Job("llama2-7b", 2, 4)


@pytest.fixture(scope="session")
def medium():
    return Job("llama2-13b", 4, 8)
