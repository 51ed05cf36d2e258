from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planning.solver.cases import large_case
from evenkeel.planning.costs.links import SlowLink
from evenkeel.simulator.baselines import STRATEGIES
from evenkeel.simulator.fleet.comparison import run_scenario
from evenkeel.simulator.fleet.faults.detection import DetectorModel
from evenkeel.simulator.fleet.faults.faults import LinkFault
from evenkeel.simulator.fleet.faults.topology import Topology
from evenkeel.simulator.fleet.operation.conditions import Conditions, noise_factors, replica_seconds
from evenkeel.simulator.fleet.operation.operation import Operation, operation_of, operation_seconds
from evenkeel.simulator.fleet.scenario.scenario import ScenarioError, scenario_of
from evenkeel.simulator.fleet.simulation import FleetSimulation
from evenkeel.simulator.fleet.strategy import Costs
from tests.unit.planning.planning_cases import one_f_one_b_makespan

SCENARIO = {
    "hours": 2,
    "job": {"model": "llama2-7b", "tensor": 4, "pipeline": 2, "data": 2, "micro_batches": 4, "transfer_seconds": 0.02},
    "strategies": ["no mitigation"],
}
seconds = st.floats(0.1, 3.0)


def run(**changes):
    scenario = scenario_of({**SCENARIO, **changes}, list(STRATEGIES))
    return run_scenario(scenario, [STRATEGIES[name] for name in scenario.strategies])[0]


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=5), st.integers(1, 8), st.floats(0.0, 0.5))
def test_with_equal_borders_and_no_noise_it_is_the_planners_makespan(stages, quota, transfer):
    found = replica_seconds(stages, quota, [transfer] * (len(stages) - 1))
    assert found[0] == pytest.approx(one_f_one_b_makespan(stages, quota, transfer))


@given(st.lists(st.tuples(seconds, seconds), min_size=2, max_size=4), st.integers(1, 6), st.integers(0, 3))
def test_a_slow_border_never_makes_a_replica_faster(stages, quota, border):
    plain = [0.1] * (len(stages) - 1)
    slow = list(plain)
    slow[border % len(slow)] = 1.0
    assert replica_seconds(stages, quota, slow)[0] >= replica_seconds(stages, quota, plain)[0]


def test_noise_costs_more_than_its_mean_because_everybody_waits_for_the_slowest(medium):
    home = operation_of(medium.home)
    everyone = dict.fromkeys(medium.home.ranks, 1.0)
    quiet = operation_seconds(medium.cost, home, everyone)
    noisy = operation_seconds(medium.cost, home, everyone, Conditions(noise=0.2, seed=1))
    again = operation_seconds(medium.cost, home, everyone, Conditions(noise=0.2, seed=1))
    assert noisy == again
    assert 1.02 * quiet < noisy < 1.5 * quiet


def test_rerouted_work_has_noise_and_slow_links_too(medium):
    home = operation_of(medium.home)
    routes = tuple(tuple((d,) * 4 for _ in range(8)) for d in range(2))
    own = Operation(replicas=home.replicas, quotas=home.quotas, routes=routes)
    everyone = dict.fromkeys(medium.home.ranks, 1.0)
    cost = replace(medium.cost, workload=replace(medium.cost.workload, transfer_seconds=0.002))
    plain = operation_seconds(cost, own, everyone)
    slow = Conditions(links=(SlowLink(ranks=(0, 4), factor=100.0),))
    assert operation_seconds(cost, own, everyone, slow) > 1.05 * plain
    assert operation_seconds(cost, own, everyone, slow) == pytest.approx(
        operation_seconds(cost, home, everyone, slow), rel=0.1
    )
    assert operation_seconds(cost, own, everyone, Conditions(noise=0.2)) > 1.02 * plain


def test_a_slow_link_slows_the_job_while_it_lasts():
    links = [{"at_hours": 0.5, "hours": 1, "devices": [1, 5], "factor": 20}]
    result = run(links=links)
    rates = [round(segment.rate, 6) for segment in result.segments]
    assert rates[0] == rates[-1] == 1.0
    assert 0.3 < rates[1] < 0.9
    assert result.bound == 1.0


def test_a_slow_link_between_devices_that_do_not_talk_changes_nothing():
    # Device 12 is in the second replica: stages of different replicas send nothing to one another.
    assert run(links=[{"at_hours": 0.5, "devices": [1, 12], "factor": 50}]).throughput == pytest.approx(1.0)


def test_noise_is_in_the_reference_too():
    assert run(job={**SCENARIO["job"], "noise": 0.1}).throughput == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"links": [{"at_hours": 1, "devices": [0], "factor": 2}]}, r"links\[0\].devices: expected a list"),
        ({"links": [{"at_hours": 1, "devices": [0, 99], "factor": 2}]}, r"devices 0 to 15"),
        (
            {"links": [{"at_hours": 1, "devices": [0, 4], "factor": 0.5}]},
            r"links\[0\].factor: expected a number \(more than 1",
        ),
        ({"links": [{"at_hours": 1, "devices": [0, 4], "factor": 2, "speed": 1}]}, "unknown speed"),
        ({"job": {**SCENARIO["job"], "noise": 3}}, r"job.noise: expected a number \(at least 0, at most 1\), found 3"),
        ({"faults": [{"at_hours": 1, "devices": [0], "silent": "yes"}]}, r"silent: expected true or false"),
    ],
)
def test_what_cannot_be_used_says_where_and_what_is_allowed(changes, message):
    with pytest.raises(ScenarioError, match=message):
        scenario_of({**SCENARIO, **changes}, list(STRATEGIES))


def test_a_link_has_two_ends():
    with pytest.raises(ValueError, match="two different"):
        LinkFault(at_seconds=0.0, devices=(3, 3), factor=2.0)


def test_log_normal_noise_has_mean_one():
    assert float(np.mean(noise_factors(np.random.default_rng(0), 0.3, 100_000))) == pytest.approx(1.0, abs=0.01)


def test_a_slow_link_that_is_named_gets_out_of_the_way_and_comes_back():
    case = large_case()
    iteration = operation_seconds(case.cost, operation_of(case.home), case.healthy)
    stages = case.home.replicas[0].stages
    link = LinkFault(
        at_seconds=3600.0, devices=(stages[13].ranks[0], stages[14].ranks[0]), factor=20.0, duration_seconds=3600.0
    )

    def run(link_seconds):
        return FleetSimulation(
            home=case.home,
            cost=case.cost,
            topology=Topology(num_devices=case.num_devices),
            faults=(),
            link_faults=(link,),
            detector=DetectorModel(link_seconds=link_seconds),
            costs=Costs(),
            strategy=STRATEGIES["Evenkeel"],
            duration_seconds=10_000.0,
        ).run()

    suffered, named = run(None), run(7.0 * iteration)
    assert suffered.num_answers == 0
    assert named.num_answers >= 1
    during = [segment.rate for segment in named.segments if 3650.0 < segment.from_seconds < 7200.0]
    assert max(during) > 0.99 > min(segment.rate for segment in suffered.segments)
    assert named.throughput > suffered.throughput
    assert named.segments[-1].rate == pytest.approx(1.0, abs=0.01)
