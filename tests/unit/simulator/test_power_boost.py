"""Power beyond the design: what it buys, who gets it, and that nobody does where the machine park has no such lever."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.simulator.baselines import STRATEGIES
from evenkeel.simulator.fleet.faults import Fault
from evenkeel.simulator.fleet.operation import operation_of, operation_seconds
from evenkeel.simulator.fleet.power import PowerBoost
from evenkeel.simulator.fleet.scenario import ScenarioError, scenario_of
from evenkeel.simulator.fleet.strategy import Costs, Question
from evenkeel.simulator.fleet.transition import transition_seconds
from evenkeel.simulator.levers.power_boost import at_the_limit, boostable, boosted, extra_power

POWER = PowerBoost()
SCENARIO = {
    "hours": 1,
    "job": {"model": "llama2-7b", "tensor": 4, "pipeline": 2, "data": 2, "micro_batches": 4},
    "fleet": {"devices_per_node": 4},
    "faults": [{"at_hours": 0, "devices": [0]}],
}


def asked(job, dead=(), slow=(), power=POWER):
    speeds = {rank: 1.0 for rank in job.home.ranks if rank not in dead} | dict(slow)
    topology = replace(job.topology, devices_per_node=4)
    return Question(
        at_seconds=0.0,
        home=job.home,
        current=operation_of(job.home),
        throughputs=speeds,
        cost=job.cost,
        topology=topology,
        costs=replace(Costs(), power=power),
    )


def test_power_buys_what_was_published():
    # NTP: 2.8 and 6.5 % of the performance per watt at 1.1 and 1.2 x.
    assert POWER.speed(1.1) / 1.1 == pytest.approx(1 - 0.028)
    assert POWER.speed(1.2) / 1.2 == pytest.approx(1 - 0.065)
    assert POWER.speed(1.0) == 1.0
    assert POWER.most_speed == pytest.approx(1.156, abs=1e-3)


@given(st.floats(1.0, 1.3))
def test_the_power_for_a_speed_is_the_power_that_has_it(power):
    assert POWER.power(POWER.speed(power)) == pytest.approx(power, abs=1e-9)


@pytest.mark.parametrize("wrong", [{"limit": 0.9}, {"limit": 3.0}, {"linear_loss": -0.1}])
def test_a_limit_at_which_devices_get_slower_is_refused(wrong):
    with pytest.raises(ValueError, match="limit"):
        PowerBoost(**wrong)
    with pytest.raises(ValueError, match="power"):
        POWER.speed(1.4)


def test_only_healthy_devices_of_domains_that_lost_something_may_be_boosted(medium):
    question = asked(medium, dead=(0,), slow={9: 0.5})
    assert boostable(question) == {1, 2, 3, 8, 10, 11}
    speeds = at_the_limit(question)
    assert speeds[1] == POWER.most_speed
    assert speeds[9] == 0.5
    assert speeds[4] == 1.0


@pytest.mark.parametrize("name", ["NTP-PW", "Evenkeel + power"])
def test_a_machine_park_whose_power_is_fixed_is_offered_none(medium, name):
    question = asked(medium, dead=(0,), power=None)
    assert not boostable(question)
    found = STRATEGIES[name].answer(question)
    assert found.operation.boosts == ()
    alike = {"NTP-PW": "NTP", "Evenkeel + power": "Evenkeel + sequence mix"}[name]
    assert found == STRATEGIES[alike].answer(question)


@pytest.mark.parametrize(("plain", "powered"), [("NTP", "NTP-PW"), ("Evenkeel + sequence mix", "Evenkeel + power")])
def test_with_power_a_death_costs_less_and_nobody_is_boosted_beyond_the_limit(medium, plain, powered):
    question = asked(medium, dead=(0,))
    with_power, without = (STRATEGIES[name].answer(question).operation for name in (powered, plain))
    fast, slow = (operation_seconds(medium.cost, each, question.throughputs) for each in (with_power, without))
    assert fast < slow
    assert with_power.boosts
    assert all(1.0 < factor <= POWER.most_speed for _, factor in with_power.boosts)
    assert {rank for rank, _ in with_power.boosts} <= boostable(question)
    assert 0.0 < extra_power(with_power, POWER, len(medium.home.ranks)) <= 0.3 * 3 / 32


def test_no_more_power_is_drawn_than_keeps_pace_with_the_healthy_job(medium):
    home, everybody = operation_of(medium.home), dict.fromkeys(medium.home.ranks, 1.0)
    healthy = operation_seconds(medium.cost, home, everybody)
    assert boosted(asked(medium), home).boosts == ()
    ample = PowerBoost(limit=1.6, linear_loss=0.1, quadratic_loss=0.0)
    question = asked(medium, dead=(0,), power=ample)
    found = STRATEGIES["NTP-PW"].answer(question).operation
    seconds = operation_seconds(medium.cost, found, question.throughputs)
    assert seconds == pytest.approx(healthy, rel=0.005)
    factor = max(factor for _, factor in found.boosts)
    assert factor < ample.most_speed
    less = replace(found, boosts=tuple((rank, factor - 0.02) for rank, _ in found.boosts))
    assert operation_seconds(medium.cost, less, question.throughputs) > seconds


def test_a_change_of_power_alone_is_no_pause(medium):
    home = operation_of(medium.home)
    hot = replace(home, boosts=((1, 1.1),))
    assert transition_seconds(medium.cost.model, home, hot, Costs()) == 0.0
    assert operation_seconds(medium.cost, hot, dict.fromkeys(medium.home.ranks, 1.0)) > 0.0


@pytest.mark.parametrize("name", ["NTP-PW", "Evenkeel + power"])
def test_a_run_with_power_ends_faster_than_one_without(medium, name):
    faults = [Fault(at_seconds=0.0, devices=(0,))]
    powered = medium.run(STRATEGIES[name], faults, hours=8.0, costs=Costs(power=POWER)).segments[-1].rate
    assert powered > medium.run(STRATEGIES[name], faults, hours=8.0).segments[-1].rate


def test_a_scenario_says_whether_there_is_power_and_how_much():
    assert scenario_of(SCENARIO, list(STRATEGIES)).costs.power is None
    found = scenario_of({**SCENARIO, "power": {"limit": 1.2}}, list(STRATEGIES)).costs.power
    assert found == PowerBoost(limit=1.2)
    with pytest.raises(ScenarioError, match="power"):
        scenario_of({**SCENARIO, "power": {"limit": 0.5}}, list(STRATEGIES))
    with pytest.raises(ScenarioError, match=r"power.*unknown"):
        scenario_of({**SCENARIO, "power": {"limit": 1.2, "watts": 3}}, list(STRATEGIES))
