"""Predictions of layouts with routes: seconds, memory, price."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planning.solver.small_jobs import gpt
from evenkeel.layouts.layout import Layout, uniform_layout
from evenkeel.layouts.programs.instructions import Op
from evenkeel.layouts.programs.paths import Paths
from evenkeel.layouts.programs.routes import Route
from evenkeel.layouts.programs.schedules import most_live, program_of
from evenkeel.layouts.sizes.mix import mix_for
from evenkeel.planning.costs.measured.replay import Replay
from evenkeel.planning.costs.memory import replica_peaks
from evenkeel.planning.costs.risks import num_risks
from evenkeel.planning.pipelined.routed import together
from evenkeel.planning.situation import Situation
from tests.unit.layouts.strategies import possible_routes
from tests.unit.layouts.timeline import timeline_of
from tests.unit.planning.planning_cases import situation_of

HOME = uniform_layout(num_blocks=6, tensor=1, pipeline=3, data=3, num_micro_batches=12)
_PLACES = {Op.FORWARD: 0, Op.BACKWARD: 1, Op.BACKWARD_INPUT: 1, Op.BACKWARD_WEIGHT: 2}


def routed(layout: Layout, *routes: tuple[int, int, int]) -> Layout:
    return replace(layout, routes=tuple(Route(micro_batch=m, stage=s, replica=d) for m, s, d in routes))


@st.composite
def routed_situations(draw: st.DrawFn) -> Situation:
    """A job with slow ranks under a layout with any routes; quotas differ, documents may be mixed."""
    data = draw(st.integers(2, 3))
    home = uniform_layout(
        num_blocks=6,
        tensor=draw(st.integers(1, 2)),
        pipeline=draw(st.integers(1, 3)),
        data=data,
        num_micro_batches=draw(st.integers(data, 11)),
        schedule=draw(st.sampled_from(("1f1b", "zb-h1"))),
    )
    if draw(st.booleans()):
        quotas = [replica.num_micro_batches for replica in home.replicas]
        rule = mix_for(gpt(4), quotas, num_stages=len(home.replicas[0].stages))
        home = replace(home, mix=replace(rule, weights=(1000, *[draw(st.integers(800, 1200)) for _ in quotas[1:]])))
    routes = draw(st.lists(st.sampled_from(possible_routes(home)), unique_by=lambda r: (r.micro_batch, r.stage)))
    slow = draw(st.dictionaries(st.sampled_from(home.ranks), st.floats(0.2, 1.0), max_size=3))
    return situation_of(home, layout=replace(home, routes=tuple(routes)), speeds=slow)


@given(routed_situations())
def test_the_prediction_is_the_longest_path_over_the_actual_programs(situation: Situation) -> None:
    layout, cost = situation.layout, situation.cost
    paths = Paths(layout)
    quotas = [replica.num_micro_batches for replica in layout.replicas]
    scales = [1.0] * len(quotas) if layout.mix is None else layout.mix.scales(quotas)

    def seconds_of(d: int, s: int, one: object) -> float:
        parts = situation.parts(layout.replicas[d].stages, layout.schedule)[s]
        return parts[_PLACES[one.op]] * scales[paths.home(one.micro_batch)]

    if layout.mix is not None and not layout.routes:
        return  # a replica alone is taken to stretch as a whole, transfers included
    transfer = cost.workload.transfer_seconds
    timeline = timeline_of(layout, seconds_of, transfer_seconds=transfer)
    expected = cost.total(timeline.iteration_seconds)
    if layout.mix is None or len(together(layout)[0]) == len(quotas):
        assert situation.seconds(layout) == pytest.approx(expected)
    assert Replay(cost).seconds(layout, situation.throughputs) == pytest.approx(situation.seconds(layout))


def test_replicas_that_routes_tie_together_are_found_through_others() -> None:
    five = uniform_layout(num_blocks=2, tensor=1, pipeline=2, data=5, num_micro_batches=10)
    assert together(routed(five, (0, 0, 3), (8, 1, 3), (2, 0, 2))) == [(1, 2), (0, 3, 4)]
    assert together(five) == []


def test_guests_count_in_the_memory_of_their_host() -> None:
    situation = situation_of(HOME)
    model = replace(
        situation.cost.model,
        blocks=tuple(replace(block, activation_bytes=10_000_000) for block in situation.cost.model.blocks),
    )
    crowded = routed(HOME, *[(m, 0, 1) for m in range(4)], *[(m, 0, 1) for m in range(8, 12)])
    live = [most_live(program_of(crowded, 1, s)) for s in range(3)]
    assert live[0] > 3 == most_live(program_of(HOME, 1, 0))
    plain = max(replica_peaks(model, HOME.replicas[1]))
    cost = replace(situation.cost, model=model)
    tight = replace(situation, cost=cost, device_bytes=plain * 1.001)
    assert tight.excess_bytes(HOME) == 0.0
    assert tight.excess_bytes(crowded) == pytest.approx((live[0] - 3) * 2 * 10_000_000 - plain * 0.001)
    assert num_risks(situation, crowded) == num_risks(situation, routed(HOME, (0, 2, 1))) + 1
    assert num_risks(replace(situation, device_bytes=1e12), crowded) == 1, "everybody is healthy"


def test_routes_move_nothing_and_are_paid_with_a_pause() -> None:
    situation = situation_of(HOME)
    price = situation.price(routed(HOME, (0, 1, 1)))
    assert price.moved_bytes == 0
    assert price.pause_seconds == situation.transition.group_seconds
    other = replace(situation, layout=routed(HOME, (0, 1, 1)))
    assert other.price(routed(HOME, (0, 1, 1))).pause_seconds == 0.0
