"""What the watchdog's process ends when the owner is gone: all that it was told of, to the owner's last word."""

import os
import select
from collections.abc import Iterator
from typing import Any

import pytest

from evenkeel.stack.processes import _watch

OWNER = 7


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_what_the_owner_says_between_a_look_and_its_death_is_heard(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen on a loaded machine: the owner wrote and died while the watchdog waited for a processor."""
    reads, writes = pipe  # a process forked off the owner keeps the pipe open
    parents, look = [OWNER], select.select

    def first_look_is_too_early(*arguments: Any) -> Any:
        monkeypatch.setattr(select, "select", look)
        os.write(writes, b"add 11 15\nadd 12 2\nadd 13 15\nremove 13\n")
        parents.append(1)
        return [], [], []

    monkeypatch.setattr(select, "select", first_look_is_too_early)
    monkeypatch.setattr(os, "getppid", lambda: parents[-1])
    assert _watch.watch(reads, OWNER) == {11: 15, 12: 2}
