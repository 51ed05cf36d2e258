"""Fleets and stores of the engine's tests, ended with the test."""

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.integration.elastic.fleet import Fleet
from tests.integration.elastic.kept_store import KeptStore


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
def keep_store() -> Iterator[Callable[[], KeptStore]]:
    """Starts stores that come back when they are killed, and ends them."""
    torch.set_num_threads(1)
    stores: list[KeptStore] = []

    def start() -> KeptStore:
        stores.append(KeptStore())
        return stores[-1]

    yield start
    for store in stores:
        store.close()


@pytest.fixture
def start_store(keep_store: Callable[[], KeptStore]) -> Callable[[], str]:
    """Starts stores: their addresses."""
    return lambda: keep_store().address
