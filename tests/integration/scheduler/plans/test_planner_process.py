"""The planner's own process: it answers what the library answers, and its death costs no job its plan."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from evenkeel.history.vocabulary import PlanMode, PlanState, VerdictKind
from evenkeel.layouts.layout import uniform_layout
from evenkeel.planning.search.solver import solve
from evenkeel.planning.solution import NoPlanError
from evenkeel.services.scheduler.adapters import planner_process
from evenkeel.services.scheduler.adapters.planner_process import PlannerAwayError, PlannerProcess
from tests.integration.scheduler.conftest import World
from tests.unit.planning.planning_cases import situation_of
from tests.unit.planning.search.test_solver import DEMO

pytestmark = pytest.mark.integration


@pytest_asyncio.fixture(scope="module")
async def running_planner() -> AsyncIterator[PlannerProcess]:
    """One for all tests: a process takes a second and a half of a processor to be ready."""
    planner = PlannerProcess(deadline_seconds=60.0)
    running = asyncio.create_task(planner.run())
    try:
        yield planner
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest_asyncio.fixture
async def planner(running_planner: PlannerProcess) -> PlannerProcess:
    """One that is ready."""
    await until(lambda: running_planner._is_ready)
    return running_planner


async def until(condition: Callable[[], object]) -> None:
    ends = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < ends, "waited in vain"
        await asyncio.sleep(0.005)


async def asked(planner: PlannerProcess) -> int:
    """Wait until the process has a question, which it has not answered; its id."""
    await until(lambda: planner._answer is not None)
    assert planner.pid is not None
    return planner.pid


def stop(planner: PlannerProcess) -> None:
    """Nothing is answered from now on."""
    assert planner.pid is not None
    os.kill(planner.pid, signal.SIGSTOP)


@pytest.mark.asyncio
async def test_it_answers_as_the_library_does(planner: PlannerProcess) -> None:
    situation = situation_of(DEMO, dead=(3,), speeds={5: 0.5})
    assert await planner.solve(situation) == solve(situation)
    with pytest.raises(NoPlanError, match="start replacements"):
        await planner.solve(situation_of(DEMO, dead=tuple(DEMO.ranks)))


@pytest.mark.asyncio
async def test_one_that_dies_on_a_question_says_so_at_once_and_another_one_answers_the_next(
    planner: PlannerProcess,
) -> None:
    stop(planner)
    answer = asyncio.create_task(planner.solve(situation_of(DEMO, dead=(3,))))
    pid = await asked(planner)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(PlannerAwayError, match="exit code -9"):
        await answer
    await until(lambda: planner._is_ready)
    assert planner.pid != pid
    assert 3 not in (await planner.solve(situation_of(DEMO, dead=(3,)))).layout.ranks


@pytest.mark.asyncio
@pytest.mark.parametrize("num_replicas", [2, 512], ids=["a question", "one that fits in no pipe"])
async def test_one_that_does_nothing_is_replaced(planner: PlannerProcess, num_replicas: int) -> None:
    stop(planner)
    pid, planner._deadline_seconds = planner.pid, 0.05
    layout = uniform_layout(num_blocks=8, tensor=2, pipeline=2, data=num_replicas, num_micro_batches=8 * num_replicas)
    with pytest.raises(PlannerAwayError, match=r"0\.05 s of a processor, or did nothing"):
        await asyncio.wait_for(planner.solve(situation_of(layout, dead=(3,))), 60.0)
    planner._deadline_seconds = 60.0
    await until(lambda: planner.pid != pid and planner._is_ready)
    assert (await planner.solve(situation_of(DEMO))).layout == DEMO


@pytest.mark.asyncio
async def test_nobody_in_a_hurry_waits_for_one_that_is_still_compiling_and_is_asked_already() -> None:
    planner = PlannerProcess(deadline_seconds=60.0, command=(sys.executable, "-c", "import sys; sys.stdin.read()"))
    running = asyncio.create_task(planner.run())
    await until(lambda: planner.pid is not None)
    answer = asyncio.create_task(planner.solve(situation_of(DEMO)))
    try:
        assert await asked(planner) == planner.pid
        with pytest.raises(PlannerAwayError, match="is being started"):
            await asyncio.wait_for(planner.solve(situation_of(DEMO, dead=(3,)), is_urgent=True), 5.0)
    finally:
        running.cancel()
        answer.cancel()
        await asyncio.gather(running, answer, return_exceptions=True)


A_BUSY_MACHINE = """
import base64, pickle, sys, time
from evenkeel.planning.solution import NoPlanError
def say(number, what):
    print(number, base64.b64encode(pickle.dumps(what)).decode(), flush=True)
say(0, 0.0)
for line in sys.stdin:
    ends = time.monotonic() + 2.5
    while time.monotonic() < ends:
        turn_ends = time.thread_time() + float(sys.argv[1])
        while time.thread_time() < turn_ends:
            pass
        time.sleep(0.02)
    say(line.split()[0], NoPlanError("late, but said"))
"""


@contextlib.asynccontextmanager
async def slow_planner(busy_seconds: float) -> AsyncIterator[PlannerProcess]:
    """One that takes 2.5 s for an answer and is at work for a part of each hundredth of it."""
    command = (sys.executable, "-c", A_BUSY_MACHINE, str(busy_seconds))
    planner = PlannerProcess(deadline_seconds=1.0, command=command)
    running = asyncio.create_task(planner.run())
    try:
        await until(lambda: planner._is_ready)
        yield planner
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.asyncio
async def test_one_that_is_kept_from_the_processor_is_waited_for_but_not_where_it_is_urgent() -> None:
    async with slow_planner(0.004) as planner:
        pid = planner.pid
        with pytest.raises(PlannerAwayError, match="did not answer in 1 s"):
            await planner.solve(situation_of(DEMO, dead=(3,)), is_urgent=True)
        with pytest.raises(NoPlanError, match="late, but said"):
            await planner.solve(situation_of(DEMO, dead=(3,)))
        assert planner.pid == pid


@pytest.mark.asyncio
async def test_one_that_has_had_its_time_on_the_processor_is_replaced() -> None:
    async with slow_planner(1e9) as planner:
        pid = planner.pid
        with pytest.raises(PlannerAwayError, match="1 s of a processor"):
            await planner.solve(situation_of(DEMO, dead=(3,)))
        await until(lambda: planner.pid not in (None, pid))


@pytest.mark.asyncio
async def test_an_answer_that_nobody_waits_for_any_more_is_not_taken_for_the_next_one(planner: PlannerProcess) -> None:
    stop(planner)
    given_up = asyncio.create_task(planner.solve(situation_of(DEMO, dead=(3,))))
    pid = await asked(planner)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    os.kill(pid, signal.SIGCONT)
    assert (await planner.solve(situation_of(DEMO))).layout == DEMO


@pytest.mark.asyncio
async def test_what_fails_in_it_is_told_with_its_traceback_and_it_goes_on(planner: PlannerProcess) -> None:
    odd = situation_of(DEMO)
    object.__setattr__(odd, "device_bytes", -1.0)
    with pytest.raises(PlannerAwayError, match=r"Traceback(.|\n)*device_bytes is -1"):
        await planner.solve(odd)
    assert (await planner.solve(situation_of(DEMO))).layout == DEMO


@pytest.mark.asyncio
async def test_without_one_that_starts_questions_are_refused_at_once() -> None:
    planner = PlannerProcess(deadline_seconds=60.0, command=(sys.executable, "-c", "raise SystemExit(3)"))
    running = asyncio.create_task(planner.run())
    with pytest.raises(PlannerAwayError):
        await planner.solve(situation_of(DEMO))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert planner.pid is None


@pytest.mark.asyncio
async def test_a_death_has_a_plan_though_the_planner_is_killed_on_it_and_a_better_one_once_it_is_back(
    world: World, planner: PlannerProcess
) -> None:
    await world.restart(planner=planner)
    stop(planner)
    world.toys.ranks[3].kill()
    said = asyncio.create_task(world.say(VerdictKind.FAIL_STOP, 3))
    os.kill(await asked(planner), signal.SIGKILL)
    await said
    await world.until_epoch(1)
    assert 3 not in world.job.layout.ranks
    await world.until_epoch(2)
    await world.steps_are_gapless()
    rough, better = await world.plans()
    assert [plan.state for plan in (rough, better)] == [PlanState.APPLIED, PlanState.APPLIED]
    assert [plan.plan.mode for plan in (rough, better)] == [PlanMode.RECOVER, PlanMode.BOUNDARY]
    assert [action.lever for action in rough.plan.actions] == ["drop_dead"]
    assert better.plan.predicted_seconds < rough.plan.predicted_seconds


@pytest.mark.asyncio
async def test_a_planner_of_other_code_answers_nothing(
    planner: PlannerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner_process, "_CODE", b"0" * 64)
    with pytest.raises(PlannerAwayError, match="restart the scheduler"):
        await planner.solve(situation_of(DEMO))
