from collections.abc import Iterator
from pathlib import Path

import pytest

from evenkeel.stack.stack import Stack


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The closed loop comes last: it asks most of the clock, and the parts beside it are nearly done by then."""
    items.sort(key=lambda item: item.path == Path(__file__).with_name("test_closed_loop.py"))


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """One stack for many jobs, as a fleet has it; whoever takes parts of a stack away starts one of their own."""
    with Stack("e2e-jobs", keep_data=False) as stack:
        yield stack
