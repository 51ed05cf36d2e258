import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.layouts.layout import uniform_layout
from evenkeel.planning.costs.cost_model import CostModel, Workload
from evenkeel.planning.costs.measured.replay import Replay
from evenkeel.simulator.baselines import STRATEGIES
from evenkeel.simulator.baselines.evenkeel import Evenkeel
from evenkeel.simulator.baselines.restarting.synchronous_restart import SynchronousRestart, recovery_seconds
from evenkeel.simulator.baselines.whole_replicas.ft_hsdp import STALL_SECONDS, FtHsdp
from evenkeel.simulator.fleet.cost.group_building import Vote, group_building, group_seconds
from evenkeel.simulator.fleet.faults.detection import DetectorModel, measured_detector
from evenkeel.simulator.fleet.faults.faults import Fault
from evenkeel.simulator.fleet.faults.topology import Topology
from evenkeel.simulator.fleet.operation.operation import operation_of, operation_seconds
from evenkeel.simulator.fleet.representatives import Representatives
from evenkeel.simulator.fleet.scenario.models import MODELS
from evenkeel.simulator.fleet.simulation import FleetSimulation
from evenkeel.simulator.fleet.strategy import Costs, Question


class Wide:
    """A job of 24 replicas of TP 4 x PP 2."""

    def __init__(self):
        spec = MODELS["llama2-7b"].spec()
        self.home = uniform_layout(
            num_blocks=len(spec.blocks), tensor=4, pipeline=2, data=24, num_micro_batches=24 * 16
        )
        self.cost = CostModel(spec, Workload(seconds_per_flop=1 / 160e12, tokens=8192.0, sum_of_squares=8192.0 * 2048))
        self.topology = Topology(num_devices=len(self.home.ranks))

    def question(self, ill, current=None):
        throughputs = dict.fromkeys(self.home.ranks, 1.0) | {rank: p for rank, p in ill.items() if p > 0}
        for rank in [rank for rank, p in ill.items() if p <= 0]:
            del throughputs[rank]
        return Question(
            at_seconds=0.0,
            home=self.home,
            current=current or operation_of(self.home),
            throughputs=throughputs,
            cost=self.cost,
            topology=self.topology,
            costs=Costs(),
        )

    def run(self, strategy, faults, seconds=7200.0, **detector):
        return FleetSimulation(
            home=self.home,
            cost=self.cost,
            topology=self.topology,
            faults=faults,
            detector=DetectorModel(**detector),
            costs=Costs(replacement_seconds=600.0),
            strategy=strategy,
            duration_seconds=seconds,
        ).run()


@pytest.fixture(scope="module")
def wide():
    return Wide()


@settings(max_examples=10, deadline=None)
@given(st.dictionaries(st.integers(0, 191), st.sampled_from([0.0, 0.0, 0.4, 0.8]), min_size=1, max_size=3))
def test_asking_about_representatives_is_as_good_as_asking_about_everybody(wide, ill):
    question = wide.question(ill)
    whole = Evenkeel().answer(question).operation
    part = Representatives(Evenkeel(), 16).answer(question).operation
    assert sum(part.quotas) == sum(whole.quotas) == wide.home.num_micro_batches
    assert part.ranks <= question.throughputs.keys()
    seconds = [operation_seconds(wide.cost, each, question.throughputs) for each in (whole, part)]
    assert seconds[1] == pytest.approx(seconds[0], rel=0.006)


def test_representatives_come_back_to_the_full_shape_when_all_are_healthy(wide):
    strategy = Representatives(Evenkeel(), 4)
    result = wide.run(strategy, [Fault(at_seconds=600.0, devices=(70,), duration_seconds=600.0)])
    assert result.segments[-1].rate == pytest.approx(1.0)
    assert result.num_answers == 2


def test_a_death_in_the_midst_of_an_iteration_costs_what_was_done_of_it_unless_survivors_keep_it(wide):
    iteration = Replay(wide.cost).seconds(wide.home, dict.fromkeys(wide.home.ranks, 1.0))

    def later(name):
        early, late = (
            wide.run(STRATEGIES[name], [Fault(at_seconds=(100 + part) * iteration, devices=(0,))])
            for part in (0.1, 0.9)
        )
        return late.paused_seconds - early.paused_seconds

    assert later("strengthened Oobleck") == pytest.approx(0.8 * iteration, rel=1e-6)
    assert later("Evenkeel") < 0.5 * iteration


def test_a_silent_death_is_noticed_later_than_one_that_is_told(wide):
    told = wide.run(Evenkeel(), [Fault(at_seconds=600.0, devices=(0,))], silent_seconds=40.0)
    silent = wide.run(Evenkeel(), [Fault(at_seconds=600.0, devices=(0,), silent=True)], silent_seconds=40.0)
    assert told.stopped_seconds == pytest.approx(2.0)
    assert silent.stopped_seconds == pytest.approx(40.0)


def test_ft_hsdp_reaches_its_published_estimate(wide):
    # (8 + 7 x 11/12) / 18: a death every 18 min, 3 min of stall, back after 10.
    faults = [Fault(at_seconds=1080.0 * i + 8 * 60, devices=(i,), duration_seconds=600.0) for i in range(10)]
    result = wide.run(FtHsdp(stall_seconds=STALL_SECONDS), faults, seconds=10800.0, stop_seconds=0.0)
    assert result.throughput == pytest.approx((8 + 7 * 11 / 12) / 18, abs=0.005)


def test_a_synchronous_job_of_98304_devices_reaches_its_published_estimate(wide):
    assert recovery_seconds(98_304, 180.0) == 600.0
    faults = [Fault(at_seconds=1080.0 * i + 8 * 60, devices=(i,), duration_seconds=600.0) for i in range(10)]
    result = wide.run(SynchronousRestart(), faults, seconds=10800.0, stop_seconds=0.0)
    assert result.throughput == pytest.approx(8 / 18, abs=0.005)


@given(st.integers(2, 200_000), st.integers(2, 200_000))
def test_larger_groups_take_longer_to_build(one, other):
    assert (group_seconds(one) <= group_seconds(other)) == (one <= other)


def test_a_flat_vote_builds_a_group_of_everybody():
    home = uniform_layout(num_blocks=16, tensor=8, pipeline=16, data=128, num_micro_batches=128)
    assert group_building(home, Vote.FLAT).vote == group_seconds(16_384) == 17.0
    assert group_building(home).vote == 2 * group_seconds(26) + group_seconds(25)


def test_up_to_64_ranks_the_vote_is_flat():
    home = uniform_layout(num_blocks=4, tensor=8, pipeline=2, data=4, num_micro_batches=16)
    assert group_building(home) == group_building(home, Vote.FLAT)


def test_our_measured_detector_scales_with_the_iteration_and_hears_of_told_deaths_at_once():
    quick, slow = measured_detector(0.5), measured_detector(16.0)
    told, silent = Fault(at_seconds=0.0, devices=(0,)), Fault(at_seconds=0.0, devices=(0,), silent=True)
    assert quick.delay_seconds(told) == slow.delay_seconds(told) == 0.05
    assert (quick.delay_seconds(silent), slow.delay_seconds(silent)) == (1.5, 32.0)
    assert slow.delay_seconds(Fault(at_seconds=0.0, devices=(0,), throughput=0.5)) == 48.0
