"""Fleets and stores of the engine's tests, ended with the test."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest
import torch

from tests.integration.elastic.fleet import Fleet
from tests.integration.elastic.rank_process import fork_store


@pytest.fixture
def start_fleet() -> Iterator[Callable[..., Fleet]]:
    """Starts fleets; whatever is left of them ends with the test."""
    torch.set_num_threads(1)
    fleets: list[Fleet] = []

    def start(*arguments: object, **options: object) -> Fleet:
        fleets.append(Fleet(*arguments, **options))
        return fleets[-1]

    yield start
    for fleet in fleets:
        fleet.close()


@pytest.fixture
def start_store() -> Iterator[Callable[[], str]]:
    """Starts stores, each in a process of its own, and ends them."""
    torch.set_num_threads(1)
    pids: list[int] = []

    def start() -> str:
        pid, address = fork_store()
        pids.append(pid)
        return address

    yield start
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
