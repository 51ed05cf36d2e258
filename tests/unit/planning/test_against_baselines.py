"""The solver beside every published system of the simulator, in the same cost model."""

from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.planning.solver.small_jobs import WORKLOAD, gpt
from evenkeel.layouts.layout import uniform_layout
from evenkeel.planning.costs.cost_model import CostModel
from evenkeel.planning.costs.risks import RISK_MARGIN, judged_seconds
from evenkeel.planning.search.solver import solve
from evenkeel.planning.situation import Situation
from evenkeel.planning.solution import TIE, NoPlanError
from evenkeel.simulator.baselines import STRATEGIES
from evenkeel.simulator.baselines.evenkeel import situation_of
from evenkeel.simulator.fleet.faults.topology import Topology
from evenkeel.simulator.fleet.operation.operation import (
    PLAIN,
    Operation,
    layout_of,
    operation_of,
    operation_seconds,
)
from evenkeel.simulator.fleet.strategy import Costs, Question

SPLITTING = ("1f1b", "zb-h1")
PUBLISHED = [name for name in STRATEGIES if not name.startswith("Evenkeel")]


@st.composite
def questions(draw):
    tensor, pipeline = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 4))
    data = draw(st.integers(1, 4 if pipeline < 4 else 3))  # beyond 15 whole stages are not dealt anew
    num_layers = draw(st.integers(max(1, pipeline - 1), 14))
    home = uniform_layout(
        num_blocks=num_layers + 2,
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        num_micro_batches=data * draw(st.integers(1, 8)),
    )
    ranks = st.sampled_from(home.ranks)
    home = replace(home, routable=draw(st.booleans()), schedules=draw(st.sampled_from([(), SPLITTING])))
    dead = draw(st.sets(ranks, max_size=len(home.ranks) // 3))
    slow = draw(st.dictionaries(ranks, st.floats(0.2, 1.0), max_size=3))
    workload = replace(WORKLOAD, gradient_seconds=draw(st.sampled_from([0.0, 0.02, 0.2])))
    return Question(
        at_seconds=0.0,
        home=home,
        current=operation_of(home),
        throughputs={rank: slow.get(rank, 1.0) for rank in home.ranks if rank not in dead},
        cost=CostModel(gpt(num_layers), workload),
        topology=Topology(num_devices=len(home.ranks), devices_per_node=tensor),
        costs=Costs(device_bytes=1e12),
    )


def slow_first_rank() -> Question:
    """A job in which ResiHP's migration of whole micro-batches was 0.8 % faster than any plan."""
    home = replace(uniform_layout(num_blocks=15, tensor=1, pipeline=2, data=4, num_micro_batches=28), routable=True)
    return Question(
        at_seconds=0.0,
        home=home,
        current=operation_of(home),
        throughputs=dict.fromkeys(home.ranks, 1.0) | {0: 0.725},
        cost=CostModel(gpt(13), WORKLOAD),
        topology=Topology(num_devices=8, devices_per_node=1),
        costs=Costs(device_bytes=1e12),
    )


def slow_half_with_a_hole() -> Question:
    """A job in which ResiHP leaves a stage without anybody to the other replica, 1.9 % faster than any plan without."""
    home = uniform_layout(num_blocks=16, tensor=1, pipeline=2, data=2, num_micro_batches=10)
    home = replace(home, routable=True, schedules=SPLITTING)
    return Question(
        at_seconds=0.0,
        home=home,
        current=operation_of(home),
        throughputs={0: 1.0, 2: 0.67, 3: 0.46},
        cost=CostModel(gpt(14), WORKLOAD),
        topology=Topology(num_devices=4, devices_per_node=1),
        costs=Costs(device_bytes=1e12),
    )


def engine_runs(question: Question, operation: Operation) -> bool:
    """Whether the job's engine runs what an operation needs beyond a plain layout, and does the whole batch by it."""
    needs_routes = bool(operation.routes) and not question.home.routable
    needs_split = operation.discipline.decoupled and question.home.schedules != SPLITTING
    return operation.batch_fraction == 1.0 and not needs_routes and not needs_split


def their_seconds(situation: Situation, question: Question, operation: Operation) -> float:
    """As plans are judged; a stage without anybody is a structural risk: its hosts hold what nobody planned for."""
    has_hole = not all(all(row) for row in operation.replicas)
    if operation.discipline == PLAIN and not has_hole:
        return judged_seconds(situation, layout_of(operation, question.home.num_blocks))
    seconds = operation_seconds(question.cost, operation, question.throughputs)
    return seconds * (1.0 + RISK_MARGIN * has_hole)


@given(questions())
@example(slow_first_rank())
@example(slow_half_with_a_hole())
@settings(max_examples=60, deadline=None)
def test_no_published_system_is_faster_than_the_plan_or_goes_on_where_there_is_none(question):
    situation = situation_of(question)
    answers = {name: STRATEGIES[name].answer(question).operation for name in PUBLISHED}
    going_on = {
        name: operation
        for name, operation in answers.items()
        if operation is not None and operation.ranks <= question.throughputs.keys()
    }
    try:
        judged = judged_seconds(situation, solve(situation).layout)
    except NoPlanError:
        assert not going_on
        return
    for name, operation in going_on.items():
        if engine_runs(question, operation):
            theirs = their_seconds(situation, question, operation)
            assert judged <= theirs * (1.0 + TIE) * (1.0 + 1e-9), name


def test_with_few_micro_batches_pipelines_become_shorter_and_as_fast_as_those_of_oobleck():
    home = uniform_layout(num_blocks=14, tensor=2, pipeline=4, data=2, num_micro_batches=2)
    question = Question(
        at_seconds=0.0,
        home=home,
        current=operation_of(home),
        throughputs={rank: 1.0 for rank in home.ranks if rank not in (0, 3, 4)},
        cost=CostModel(gpt(12), WORKLOAD),
        topology=Topology(num_devices=16, devices_per_node=2),
        costs=Costs(device_bytes=1e12),
    )
    situation = situation_of(question)
    solution = solve(situation)
    operation = STRATEGIES["Oobleck"].answer(question).operation
    assert min(len(replica.stages) for replica in solution.layout.replicas) <= 2
    assert solution.predicted_seconds <= situation.seconds(layout_of(operation, home.num_blocks)) * (1.0 + TIE)
