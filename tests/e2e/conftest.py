from collections.abc import Iterator

import pytest

from stack.stack import Stack


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """One stack for many jobs, as a fleet has it; whoever takes parts of a stack away starts one of their own."""
    with Stack("e2e-jobs", keep_data=False) as stack:
        yield stack
