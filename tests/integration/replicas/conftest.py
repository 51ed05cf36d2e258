"""Crews of replicas, ended with the test."""

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.integration.replicas.crew import Crew, Report, alone


@pytest.fixture
def start_crew() -> Iterator[Callable[..., Crew]]:
    torch.set_num_threads(1)
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
