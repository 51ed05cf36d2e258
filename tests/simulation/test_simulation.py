"""Seeds of the protocol's simulation; and that it finds mistakes that were made here before."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import structlog

from evenkeel.layouts import copies
from evenkeel.services.scheduler.dispatch.board import StateBoard
from evenkeel.services.scheduler.serving import job_effects
from evenkeel.trainer_sdk.control.acceptor import Acceptor
from evenkeel.trainer_sdk.control.standing import Committed, Standing, Switching, without_switch
from evenkeel.trainer_sdk.control.state import ApplyMode, Commit, Reshape
from tests.simulation.faults import Fault, Scenario, drawn
from tests.simulation.run import run
from tests.simulation.search import first_broken, quiet, shrunk

NUM_SEEDS = 200


@pytest.fixture(autouse=True)
def few_words() -> Iterator[None]:
    before = structlog.get_config()
    quiet()
    yield
    structlog.configure(**before)


def test_nothing_breaks_in_any_of_the_seeds() -> None:
    found = first_broken(range(NUM_SEEDS))
    assert found is None, f"make simulate SEED={found[0].seed} RUNS=1 shows it: {found[2].broken}"


def test_a_seed_repeats_exactly() -> None:
    scenario, faults = drawn(11)
    first, second = run(scenario, faults), run(scenario, faults)
    assert first.trace == second.trace
    assert len(first.trace) > 20


def test_a_job_to_which_nothing_happens_trains_on_without_a_plan() -> None:
    outcome = run(Scenario(seed=0), ())
    assert (outcome.broken, outcome.num_plans) == ([], 0)
    assert outcome.num_steps > 100


def locked_out(stack: ExitStack) -> None:
    """A plan that a rank was handed and could not apply kept it from every later one, and nobody else was told."""
    handed: dict[Acceptor, int] = {}

    def take(self: Acceptor, epoch: int | None = None, real: Any = Acceptor.take) -> Commit | None:
        commit: Commit | None = real(self, epoch)
        handed[self] = commit.reshape.epoch if commit else handed.get(self, 0)
        return commit

    def prepare(self: Acceptor, plan: Reshape, real: Any = Acceptor.prepare) -> None:
        waits = isinstance(_rest(self.standing), Committed) or handed.get(self, 0) > self.state.epoch
        if plan.mode is ApplyMode.BOUNDARY and waits:
            raise self._stale("another plan waits")
        real(self, plan)

    real_dispatch = job_effects.flight_of
    stack.enter_context(mock.patch.object(Acceptor, "take", take))
    stack.enter_context(mock.patch.object(Acceptor, "prepare", prepare))
    stack.enter_context(mock.patch.object(StateBoard, "failure", return_value=""))
    stack.enter_context(
        mock.patch.object(job_effects, "flight_of", lambda *asked: replace(real_dispatch(*asked), others={}))
    )


def _rest(standing: Standing) -> Standing:
    return without_switch(standing) if isinstance(standing, Switching) else standing


def without_copies(stack: ExitStack) -> None:
    stack.enter_context(mock.patch.object(copies, "place_copies", return_value=()))


def without_an_end(stack: ExitStack) -> None:
    """A hand-over that is never said to have failed."""
    stack.enter_context(mock.patch.object(Acceptor, "fail", return_value=None))


@pytest.mark.parametrize("mistake", [locked_out, without_copies, without_an_end])
def test_a_mistake_is_found_and_made_small(mistake: Any) -> None:
    with ExitStack() as stack:
        mistake(stack)
        found = first_broken(range(NUM_SEEDS))
        assert found is not None
        scenario, faults, _ = found
        least = shrunk(scenario, faults)
        assert run(scenario, least).broken
        assert len(least) <= len(faults)
        assert all(isinstance(fault, Fault) for fault in least)
