"""The demo's whole script on the whole stack, in float64, where nothing but a mistake can change a loss."""

import asyncio
import contextlib
import io
import os
from collections.abc import Iterator

import pytest
from rich.console import Console

from evenkeel.demo.live import choose_view
from evenkeel.demo.observed.lateness import ON_TIME, lateness_during
from evenkeel.demo.observed.observations import Observations
from evenkeel.demo.performance import perform
from evenkeel.demo.report.expectations import expectations_of
from evenkeel.demo.report.summary import loss_differences
from evenkeel.stack.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]

SEED = 3


def children_of(parent: int) -> set[int]:
    """Processes that ``parent`` started and that still run."""
    found = set()
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{int(entry)}/stat") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
            if int(fields[1]) == parent and fields[0] != "Z":
                found.add(int(entry))
    return found


@pytest.fixture(scope="module")
def story(stack: Stack) -> Iterator[tuple[Observations, set[int]]]:
    """What was seen, and which processes the performance left behind besides services that were killed."""
    before = children_of(os.getpid())
    screen = io.StringIO()
    with choose_view(Console(file=screen)) as view:
        seen = asyncio.run(perform(stack, SEED, view, stack.folder / "job", dtype="float64"))
    of_stack = {*stack.service_process_ids.values(), *stack.server_process_ids.values()}
    yield seen, children_of(os.getpid()) - before - of_stack
    print(screen.getvalue())


def test_every_expectation_of_the_scenario_holds(story: tuple[Observations, set[int]]) -> None:
    """Where a machine could not keep the devices' speeds, only what has nothing to do with speed is asked."""
    seen, _ = story
    asked = []
    for one in expectations_of(seen):
        late = 1.0 if one.iterations is None else lateness_during(seen, one.iterations)
        if late <= ON_TIME:
            asked.append(one)
        else:
            print(f"not asked, devices took up to {late:.3f} times as long as they should: {one.name}: {one.detail}")
    assert any("no sample is lost" in one.name for one in asked)
    broken = [f"{one.name}: {one.detail}" for one in asked if not one.held]
    assert not broken, "\n".join(broken)


def test_in_float64_the_losses_are_those_of_the_failure_free_run(story: tuple[Observations, set[int]]) -> None:
    seen, _ = story
    differences = dict(loss_differences(seen))
    assert len(differences) > 100
    assert max(differences.values()) < 1e-10


def test_nothing_is_left_running(story: tuple[Observations, set[int]]) -> None:
    _, left = story
    assert not left
