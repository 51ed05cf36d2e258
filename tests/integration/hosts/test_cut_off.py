"""Hosts that die without a word, and cables that are cut: the side with most stores goes on, with the same loss."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.sharedctypes import RawValue

import pytest
import torch

from evenkeel.trainer_sdk.emit.farewell import EXIT_EVICTED
from tests.integration.hosts.host_crew import HostCrew
from tests.integration.hosts.network import Network, why_not
from tests.integration.replicas.crew import Report, alone

pytestmark = [pytest.mark.integration, pytest.mark.skipif(bool(why_not()), reason=why_not())]

NUM_STEPS = 80
"""Enough for newcomers to come in; where nobody comes back, FEW_STEPS are."""
FEW_STEPS = 30
FIRST_STEPS, SOME_STEPS = 5, 3


@pytest.fixture(scope="module")
def failure_free() -> Report:
    return alone(num_steps=NUM_STEPS)


@pytest.fixture
def start_hosts() -> Iterator[Callable[..., HostCrew]]:
    torch.set_num_threads(1)
    crews: list[HostCrew] = []

    def start(num_hosts: int, num_steps: int) -> HostCrew:
        options = {"num_steps": num_steps, "pause_seconds": 0.05, "leash": RawValue("i", FIRST_STEPS)}
        crews.append(HostCrew(Network(num_hosts), (0, 1, 2), **options))
        return crews[-1]

    yield start
    for crew in crews:
        crew.close()


def check(crew: HostCrew, failure_free: Report, survivors: list[int], num_steps: int) -> None:
    for each in survivors:
        report = crew.reports[each]
        assert report.status == 0, report.error
        assert len(report.losses) == num_steps
        for step, loss in report.losses.items():
            assert loss == pytest.approx(failure_free.losses[step], rel=1e-5)


def train_on(crew: HostCrew, replicas: Sequence[int]) -> None:
    """Until each of them has finished some more steps; nobody goes further."""
    last = crew.let_train(SOME_STEPS) - 1
    crew.until(lambda: all(last in crew.reports[each].losses for each in replicas), "more steps")


def three_that_train(start_hosts: Callable[..., HostCrew]) -> tuple[HostCrew, list[int], list[int]]:
    """Three hosts some steps on: replicas of the first two, and of the third, to which something is about to happen."""
    crew = start_hosts(3, NUM_STEPS)
    away = list(crew.replicas_of(2))
    others = [each for each in range(crew.num_replicas) if each not in away]
    crew.until(lambda: all(2 in crew.reports[each].losses for each in [*others, *away]), "some steps")
    return crew, others, away


def test_a_host_dies_with_its_store(start_hosts: Callable[..., HostCrew], failure_free: Report) -> None:
    crew = start_hosts(4, FEW_STEPS)
    everybody = list(range(crew.num_replicas))
    crew.until(lambda: all(2 in crew.reports[each].losses for each in everybody), "some steps")
    crew.let_train(FEW_STEPS)
    crew.end_host(0)
    survivors = [each for each in everybody if each not in crew.replicas_of(0)]
    crew.finish()
    check(crew, failure_free, survivors, FEW_STEPS)


def test_a_cable_is_cut_for_a_second_then_in_one_direction_for_long(
    start_hosts: Callable[..., HostCrew], failure_free: Report
) -> None:
    crew, others, away = three_that_train(start_hosts)

    crew.let_train(SOME_STEPS)
    crew.network.unplug(2)
    crew.pass_time(1.0)
    crew.network.plug(2)
    train_on(crew, [*others, *away])

    crew.network.deafen(2)
    train_on(crew, others)
    crew.pass_time(1.0)
    for step in crew.reports[away[0]].losses:
        ran = [index for report in crew.reports.values() for index in report.ran[step]]
        assert len(ran) == len(set(ran)), f"who is cut off does not go on alone, but did step {step}"
    crew.network.undo_deafen(2)
    crew.until(lambda: all(crew.reports[each].status == EXIT_EVICTED for each in away), "they hear that they are out")
    for each in away:
        crew.reports[each] = Report()
        crew.start(each)
    while not all(crew.reports[each].losses for each in away):  # a newcomer comes in at the end of a step
        train_on(crew, others)
    crew.let_train(NUM_STEPS)
    crew.finish()
    check(crew, failure_free, others, NUM_STEPS)
    assert [crew.reports[each].status for each in away] == [0, 0]


def test_a_host_that_reaches_some_of_the_others_joins_once_it_reaches_all(
    start_hosts: Callable[..., HostCrew], failure_free: Report
) -> None:
    crew, others, away = three_that_train(start_hosts)
    for each in away:
        os.kill(crew.pids[each], signal.SIGKILL)
    crew.until(lambda: all(crew.reports[each].status is not None for each in away), "their end")

    crew.network.part(0, 2)
    for each in away:
        crew.reports[each] = Report()
        crew.start(each)
    crew.until(lambda: all(crew.reports[each].num_lives for each in away), "newcomers are there")
    for _ in range(3):
        train_on(crew, others)
        crew.pass_time(1.0)
    assert [crew.reports[each].status for each in range(crew.num_replicas)] == [None] * crew.num_replicas
    assert not any(crew.reports[each].losses for each in away)
    crew.network.undo_part(0, 2)
    while not all(crew.reports[each].losses for each in away):
        train_on(crew, others)
    crew.let_train(NUM_STEPS)
    crew.finish()
    check(crew, failure_free, others, NUM_STEPS)
    assert [crew.reports[each].status for each in away] == [0, 0]
