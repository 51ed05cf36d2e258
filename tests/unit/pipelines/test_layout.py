"""A plan as a layout: the engine's programs take what the plan was said to take."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.layouts.codec import layout_from_proto, layout_to_proto
from evenkeel.layouts.programs.instructions import Instruction, Op
from evenkeel.layouts.programs.orders import Turn
from evenkeel.pipelines.case import Case
from evenkeel.pipelines.evaluate import evaluate
from evenkeel.pipelines.layout import layout_of
from evenkeel.pipelines.plan import Plan
from evenkeel.pipelines.search.budget import Budget
from evenkeel.pipelines.search.generate import generate
from tests.unit.layouts.timeline import timeline_of
from tests.unit.pipelines.documents import small_cases


@settings(max_examples=40, deadline=None)
@given(case=small_cases(), num_replicas=st.integers(1, 2))
def test_the_programs_of_the_layout_end_when_the_plan_ends(case: Case, num_replicas: int) -> None:
    plan = generate(case, Budget(60), seed=1).plan
    layout = layout_of(plan, num_replicas)

    def seconds_of(replica: int, stage: int, one: Instruction) -> float:
        first = sum(plan.partition[:stage])
        layers = case.layers[first : first + plan.partition[stage]]
        parts = {
            Op.FORWARD: sum(layer.forward for layer in layers),
            Op.BACKWARD_INPUT: sum(layer.backward_input for layer in layers),
            Op.BACKWARD_WEIGHT: sum(layer.backward_weight for layer in layers),
        }
        parts[Op.BACKWARD] = parts[Op.BACKWARD_INPUT] + parts[Op.BACKWARD_WEIGHT]
        return parts[one.op] / case.speeds[plan.placement[stage]]

    timeline = timeline_of(layout, seconds_of, transfer_seconds=case.communication)
    assert timeline.iteration_seconds == pytest.approx(evaluate(case, plan).makespan)
    assert layout.num_blocks == len(case.layers)
    assert layout.num_micro_batches == num_replicas * case.micro_batches
    assert sorted((*layout.ranks, *layout.standbys)) == list(range(num_replicas * case.devices))
    assert layout_from_proto(layout_to_proto(layout)) == layout


def test_devices_that_a_plan_leaves_out_stand_by() -> None:
    passes = (Turn(Op.FORWARD, 0, 0), Turn(Op.BACKWARD, 0, 0))
    plan = Plan(partition=(3,), placement=(1,), orders=((), passes))
    layout = layout_of(plan, 2)
    assert layout.ranks == (1, 3)
    assert layout.standbys == (0, 2)
