"""Seeds of the protocol's simulation; and that it finds mistakes that were made here before."""

import re
from collections.abc import Callable, Iterator
from functools import cache

import pytest
import structlog

from tests.simulation.faults import (
    ALONE,
    HALF_WAY_BACK,
    HURTFUL,
    NOT_WANTED,
    ONE_BY_ONE,
    TWO_NODES,
    Fault,
    Outcome,
    Scenario,
    Shape,
    drawn,
)
from tests.simulation.mistakes import MISTAKES, Patches, commit_before_it_is_durable, made
from tests.simulation.run import run
from tests.simulation.search import first_broken, quiet, shrunk

NUM_SEEDS = 200
NUM_TOGETHER = 20
"""A test of a part that has little right to the processors still ends within its limit."""
ONCE_BROKEN = {
    "a scheduler that dies while it takes over leaves nothing that is waited for without end": 734210062,
    "one that hung and moves on with the others before it can be told so leaves all the same": 850001151,
    "a replacement that dies under its plan is itself replaced, though the plan without it is good enough": 860004379,
    "of a plan that was decided and not applied a rank that has moved and holds the last copy is asked too": 870005943,
}
"""A seed each."""
STRUCK = re.compile(r" dies| is cut off| stops for | is slow")


@pytest.fixture(autouse=True)
def few_words() -> Iterator[None]:
    before = structlog.get_config()
    quiet()
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, NUM_TOGETHER))
def test_nothing_breaks_in_any_of_the_seeds(first: int) -> None:
    found = first_broken(range(first, first + NUM_TOGETHER))
    assert found is None, f"make simulate SEED={found[0].seed} RUNS=1 shows it: {found[2].broken}"


@pytest.mark.parametrize("what", ONCE_BROKEN)
def test_what_was_broken_once_holds(what: str) -> None:
    assert first_broken([ONCE_BROKEN[what]]) is None


def test_a_seed_repeats_exactly() -> None:
    scenario, faults = drawn(11)
    first, second = run(scenario, faults), run(scenario, faults)
    assert first.trace == second.trace
    assert len(first.trace) > 20


def test_a_job_to_which_nothing_happens_trains_on_without_a_plan() -> None:
    outcome = run(Scenario(seed=0), ())
    assert (outcome.broken, outcome.num_plans) == ([], 0)
    assert outcome.num_steps > 100


@pytest.mark.parametrize("whom", HURTFUL)
def test_a_fault_that_hurts_leaves_a_job_that_is_whole_again(whom: str) -> None:
    outcome = run(TWO_NODES, HURTFUL[whom])
    assert not outcome.broken, "\n".join([*outcome.broken, *outcome.trace[-60:]])
    struck = [line for line in outcome.trace if STRUCK.search(line)]
    assert len(struck) == len(HURTFUL[whom]), struck
    assert ("rank 3.1 dies" in struck[-1]) == whom.startswith("a joiner")


def test_a_plan_that_goes_back_and_fails_half_way_leaves_a_step_at_which_all_can_meet() -> None:
    outcome = run(ALONE, HALF_WAY_BACK)
    assert not outcome.broken, "\n".join([*outcome.broken, *outcome.trace[-60:]])
    assert len([line for line in outcome.trace if STRUCK.search(line)]) == len(HALF_WAY_BACK)
    assert outcome.num_plans >= 4


@pytest.mark.parametrize("seed", [1, 3])
def test_replicas_that_die_one_by_one_are_counted_in_again_whoever_comes_back_first(seed: int) -> None:
    shape = Shape(pipeline=1, data=2, devices_per_node=1, is_whole=True)
    outcome = run(Scenario(seed=seed, jobs=(shape,)), ONE_BY_ONE)
    assert not outcome.broken, "\n".join([*outcome.broken, *outcome.trace[-60:]])
    assert outcome.num_plans >= 3


@cache
def broken_by(mistake: Callable[[], Patches]) -> tuple[Scenario, tuple[Fault, ...], Outcome] | None:
    with made(mistake):
        return first_broken([MISTAKES[mistake], *range(NUM_SEEDS)])


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: Callable[[], Patches]) -> None:
    with made(mistake):
        hurt = run(TWO_NODES, HURTFUL[NOT_WANTED]).broken
    assert hurt or broken_by(mistake) is not None


def test_what_breaks_is_made_small() -> None:
    found = broken_by(commit_before_it_is_durable)
    assert found is not None
    scenario, faults, _ = found
    with made(commit_before_it_is_durable):
        smaller, least = shrunk(scenario, faults)
        assert run(smaller, least).broken
        assert len(least) <= len(faults)
