"""Crews of replicas, ended with the test."""

from collections.abc import Callable, Iterator

import pytest

from evenkeel.trainer_sdk.launcher.agent.script_rank import preload
from tests.integration.replicas.crew import Crew, Report, alone
from tests.integration.replicas.torchruns import Torchruns


@pytest.fixture(scope="module", autouse=True)
def preloaded() -> None:
    """Without it each forked rank imports for a second and a half of a processor before it joins."""
    preload()


@pytest.fixture
def start_crew() -> Iterator[Callable[..., Crew]]:
    crews: list[Crew] = []

    def start(*arguments: object, **options: object) -> Crew:
        crews.append(Crew(*arguments, **options))  # type: ignore[arg-type]
        return crews[-1]

    yield start
    for crew in crews:
        crew.close()


@pytest.fixture(scope="module")
def failure_free() -> Report:
    return alone()


@pytest.fixture
def start_torchruns() -> Iterator[Callable[..., Torchruns]]:
    started: list[Torchruns] = []

    def start_some(script: str, num_replicas: int, per_replica: int, **options: int) -> Torchruns:
        started.append(Torchruns(script, num_replicas, per_replica, **options))
        return started[-1]

    yield start_some
    for each in started:
        each.close()
