"""What links make of iterations: collectives by width, gradients by who holds how much, slow links in groups."""

import pytest

from evenkeel.layouts.layout import Stage, uniform_layout
from evenkeel.layouts.model import BlockCost, ModelSpec
from evenkeel.planning.costs.cost_model import CostModel, Workload
from evenkeel.planning.costs.links import SlowLink
from evenkeel.planning.costs.measured.replay import Replay
from evenkeel.simulator.fleet.cost.iteration import fleet_cost
from evenkeel.simulator.fleet.operation.conditions import Conditions
from evenkeel.simulator.fleet.operation.operation import Operation, operation_of, operation_seconds

BLOCK = BlockCost(
    forward_flops_per_token=1.0,
    forward_flops_per_squared_length=0.0,
    parameter_bytes=600,
    optimizer_bytes=1200,
    max_width=12,
)
MODEL = ModelSpec(blocks=(BLOCK,) * 4, activation_bytes_per_token=10)
WORKLOAD = Workload(seconds_per_flop=1.0, tokens=100.0, sum_of_squares=0.0)
COST = fleet_cost(MODEL, WORKLOAD, node_bytes_per_second=1000.0, network_bytes_per_second=100.0)
BARE = CostModel(MODEL, WORKLOAD)


def stage(*ranks, blocks=4):
    return Stage(first_block=0, stop_block=blocks, ranks=ranks, shares=(1,) * len(ranks))


@pytest.mark.parametrize(("width", "part"), [(1, 0.0), (2, 1.0), (3, 4 / 3), (4, 1.5)])
def test_collectives_take_what_a_ring_of_the_shards_sends(width, part):
    held, speeds = stage(*range(width)), dict.fromkeys(range(width), 1.0)
    more = sum(COST.parts(held, speeds, "1f1b")) - sum(BARE.parts(held, speeds, "1f1b"))
    # Four all-reduces of 1,000 bytes a block, over 1,000 bytes a second: 4 s between two, by hand.
    assert more == pytest.approx(4 * 4.0 * part)


def test_the_exchange_of_gradients_is_that_of_the_device_that_holds_most():
    wide, narrow = stage(0, 1, 2, 3), stage(4, 5)
    # 4 blocks x 400 bytes of gradients; a quarter and a half of them; 100 bytes a second, and twice half of it sent.
    assert COST.gradients.seconds([[wide], [stage(4, 5, 6, 7)]]) == pytest.approx(4.0)
    assert COST.gradients.seconds([[wide], [narrow]]) == pytest.approx(8.0)
    assert COST.gradients.seconds([[wide], [narrow], [None]]) == pytest.approx(8.0 * 4 / 3)
    assert COST.gradients.seconds([[wide]]) == 0.0


def test_an_operation_takes_its_pipelines_and_the_exchange():
    home = uniform_layout(num_blocks=4, tensor=2, pipeline=1, data=2, num_micro_batches=4)
    everybody = dict.fromkeys(home.ranks, 1.0)
    operation = operation_of(home)
    pipelines = COST.makespan(home.replicas[0].stages, 2, everybody, "1f1b")
    assert operation_seconds(COST, operation, everybody) == pytest.approx(pipelines + 8.0)
    assert Replay(COST).seconds(home, everybody) == pytest.approx(pipelines + 8.0)
    alone = Operation(replicas=operation.replicas[:1], quotas=(2,))
    assert operation_seconds(COST, alone, everybody) == pytest.approx(pipelines)


@pytest.mark.parametrize(("link", "more"), [((0, 1), 9 * 2 * 16.0), ((0, 2), 9 * 8.0), ((0, 5), 0.0)])
def test_a_slow_link_slows_the_group_that_uses_it(link, more):
    home = uniform_layout(num_blocks=4, tensor=2, pipeline=1, data=2, num_micro_batches=4)
    everybody = dict.fromkeys(home.ranks, 1.0)
    healthy = operation_seconds(COST, operation_of(home), everybody)
    slow = operation_seconds(
        COST, operation_of(home), everybody, Conditions(links=(SlowLink(ranks=link, factor=10.0),))
    )
    assert slow - healthy == pytest.approx(more)
