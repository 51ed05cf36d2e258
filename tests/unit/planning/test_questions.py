"""Questions and answers between processes: what is sent is what comes."""

import pickle
from contextlib import suppress
from dataclasses import fields, replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from evenkeel.planning.costs.cost_model import ASSUMED_WORKLOAD, CostModel
from evenkeel.planning.costs.links import SlowLink
from evenkeel.planning.costs.looks import Looks
from evenkeel.planning.costs.measured.recent import RecentIteration
from evenkeel.planning.search.solver import solve
from evenkeel.planning.situation import Situation
from evenkeel.planning.solution import NoPlanError
from tests.unit.planning.planning_cases import situations


@st.composite
def questions(draw: st.DrawFn) -> Situation:
    """Situations with all that a live job's question may hold."""
    situation = draw(situations())
    home, cost = situation.home, situation.cost
    ranks = st.sampled_from(sorted(situation.throughputs)) if situation.throughputs else st.nothing()
    workload = replace(cost.workload, exchange_seconds=draw(st.floats(0.0, 1e-3)), measured=draw(st.booleans()))
    if draw(st.booleans()):
        tokens = tuple(draw(st.integers(1, 4096)) for _ in range(home.num_micro_batches))
        recent = RecentIteration(wall_seconds=draw(st.floats(0.1, 9.0)), tokens=tokens, sums_of_squares=tokens)
        workload = replace(workload, recent=(recent,))
    model = CostModel(cost.model, draw(st.sampled_from([workload, ASSUMED_WORKLOAD])), draw(st.floats(0.5, 3.0)))
    capable = {name: draw(st.booleans()) for name in ("routable", "interleavable", "whole")}
    links = [SlowLink(ranks=(rank,), factor=draw(st.floats(1.01, 9.0))) for rank in draw(st.sets(ranks, max_size=1))]
    return replace(
        situation,
        layout=replace(situation.layout, **capable),
        home=replace(situation.with_orders or home, **capable),
        cost=model,
        holders=situation.holders.difference(draw(st.sets(ranks, max_size=2))),
        domains={rank: f"node-{rank // 2}" for rank in draw(st.sets(ranks))},
        links=tuple(links),
    )


@given(questions())
@settings(max_examples=20)
def test_a_question_comes_back_as_it_was(question: Situation) -> None:
    """Without what was looked at: that is told apart by objects of the process that looked."""
    with suppress(NoPlanError):
        solve(question)
    read = pickle.loads(pickle.dumps(question))
    assert vars(read).keys() == {each.name for each in fields(Situation)}
    assert vars(read.looks) == vars(Looks())
    for name in vars(read).keys() - {"cost", "looks"}:
        assert getattr(read, name) == getattr(question, name), name
    for name in ("model", "workload", "correction"):
        assert getattr(read.cost, name) == getattr(question.cost, name), name


@given(situations())
@settings(max_examples=20)
def test_an_answer_to_a_question_that_was_sent_is_the_answer_and_comes_back_to_the_bit(question: Situation) -> None:
    """So the same question has the same answer too."""
    try:
        solution = solve(question)
    except NoPlanError:
        assume(False)
    assert pickle.loads(pickle.dumps(solve(pickle.loads(pickle.dumps(question))))) == solution
