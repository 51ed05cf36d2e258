"""The solver beside every published system of the simulator, in the same cost model."""

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from layouts.layout import uniform_layout
from services.scheduler.planning.cost_model import CostModel
from services.scheduler.planning.solution import TIE, NoPlanError
from services.scheduler.planning.solver import solve
from simulator.baselines import STRATEGIES
from simulator.baselines.evenkeel import situation_of
from simulator.fleet.operation import layout_of, operation_of
from simulator.fleet.strategy import Costs, Question
from simulator.fleet.topology import Topology
from tests.unit.scheduler.planning_cases import WORKLOAD, gpt

PUBLISHED = [name for name in STRATEGIES if not name.startswith("Evenkeel")]


@st.composite
def questions(draw):
    tensor, pipeline, data = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    assume(pipeline * data <= 15)  # beyond that whole stages are not dealt anew
    num_layers = draw(st.integers(max(1, pipeline - 1), 14))
    home = uniform_layout(
        num_blocks=num_layers + 2,
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        num_micro_batches=data * draw(st.integers(1, 8)),
    )
    ranks = st.sampled_from(home.ranks)
    dead = draw(st.sets(ranks, max_size=len(home.ranks) // 3))
    slow = draw(st.dictionaries(ranks, st.floats(0.2, 1.0), max_size=3))
    return Question(
        at_seconds=0.0,
        home=home,
        current=operation_of(home),
        throughputs={rank: slow.get(rank, 1.0) for rank in home.ranks if rank not in dead},
        cost=CostModel(gpt(num_layers), WORKLOAD),
        topology=Topology(num_devices=len(home.ranks), devices_per_node=tensor),
        costs=Costs(device_bytes=1e12),
    )


@given(questions())
@settings(max_examples=100, deadline=None)
def test_no_published_systems_layout_is_faster_than_the_plan(question):
    """Operations that no layout says are left out: stages that other replicas execute, a smaller batch."""
    situation = situation_of(question)
    try:
        judged = situation.judged_seconds(solve(situation).layout)
    except NoPlanError:
        assume(False)
        raise
    for name in PUBLISHED:
        operation = STRATEGIES[name].answer(question).operation
        if operation is None or not operation.is_plain or operation.batch_fraction < 1.0:
            continue
        if operation.ranks <= question.throughputs.keys():
            theirs = situation.judged_seconds(layout_of(operation, question.home.num_blocks))
            assert judged <= theirs * (1.0 + TIE) * (1.0 + 1e-9), name


def test_with_few_micro_batches_pipelines_become_shorter_as_oobleck_makes_them():
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
    assert "depths" in {action.lever for action in solution.actions}
    assert sorted(len(replica.stages) for replica in solution.layout.replicas) == [2, 3]
    assert solution.predicted_seconds <= situation.seconds(layout_of(operation, home.num_blocks)) * (1.0 + TIE)
