"""Plans without the planner: only who is left, in plain Python."""

import subprocess
import sys

import pytest
from hypothesis import given

from evenkeel.planning.search.solver import solve, solve_at_once
from evenkeel.planning.situation import Situation
from evenkeel.planning.solution import NoPlanError
from tests.unit.planning.planning_cases import situation_of, situations
from tests.unit.planning.search.test_solver import DEMO


@given(situations())
def test_whoever_is_left_can_go_on_as_far_as_memory_allows(situation: Situation) -> None:
    try:
        rough = solve_at_once(situation)
    except NoPlanError:
        if situation.device_bytes is None:
            with pytest.raises(NoPlanError):
                solve(situation)
        return
    assert set(rough.layout.ranks) <= situation.throughputs.keys()
    assert rough.layout.num_micro_batches == situation.layout.num_micro_batches
    assert {action.lever for action in rough.actions} <= {"drop_dead", "rejoin"}
    assert solve(situation).predicted_seconds <= 1.1 * rough.predicted_seconds


def test_ranks_that_are_back_are_taken_in() -> None:
    left = solve_at_once(situation_of(DEMO, dead=(3,))).layout
    assert solve_at_once(situation_of(DEMO, layout=left)).layout.replicas == DEMO.replicas


_SCRIPT = """
import sys
from evenkeel.services.scheduler import main
main.run_service = lambda *_, **__: None
main.load_settings = lambda _: None
main.main()
from tests.unit.scheduler.jobs.play import Play
from evenkeel.history.vocabulary import VerdictKind
from evenkeel.planning.costs.price import TransitionCosts
from evenkeel.planning.search.solver import solve_at_once
from evenkeel.services.scheduler.jobs import events
play = Play()
(question,) = play.say(VerdictKind.FAIL_STOP, 3).meanwhile
answer = solve_at_once(question.known.situation(TransitionCosts()))
play.on(events.Solved(question, answer, 0.01, is_makeshift=True))
print(3 in play.plan.record.layout.ranks, sorted({"numba", "ortools", "torch"} & sys.modules.keys()))
"""


def test_the_scheduler_takes_profiles_and_answers_a_death_without_a_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False []\n", "")
