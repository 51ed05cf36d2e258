from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.stack.stack import Stack
from tests.warm import launched_warm, warm_up

LAST = tuple(Path(__file__).with_name(name) for name in ("test_outages.py", "test_closed_loop.py"))
"""They take parts of the stack away; the closed loop asks most of the clock, and what runs beside it is nearly done."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LAST.index(item.path) if item.path in LAST else -1)


@pytest.fixture(scope="session", autouse=True)
def warm() -> Iterator[None]:
    """Ranks of all jobs are forked from one process that has loaded torch, which does so beside the stack's start."""
    warm_up()
    with launched_warm():
        yield


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """One stack for all jobs, as a fleet has it."""
    with Stack("e2e", keep_data=False) as stack:
        yield stack
