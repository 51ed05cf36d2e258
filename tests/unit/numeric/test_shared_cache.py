"""Whoever compiles at the same time gets back what belongs to the types that were asked for."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from evenkeel.numeric.shared_cache import SharedCacheFile

NUM_WRITERS, NUM_KEYS = 4, 25


@pytest.fixture
def hurried():
    """Threads take turns as often as processes do."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("hurried")
def test_what_many_write_at_once_is_all_there(tmp_path: Path) -> None:
    def file() -> SharedCacheFile:
        return SharedCacheFile(str(tmp_path), "function", "stamp")

    together = threading.Barrier(NUM_WRITERS)

    def write(writer: int) -> None:
        together.wait()
        for number in range(NUM_KEYS):
            file().save((writer, number), f"code for {writer} {number}")

    with ThreadPoolExecutor(NUM_WRITERS) as pool:
        list(pool.map(write, range(NUM_WRITERS)))
    keys = [(writer, number) for writer in range(NUM_WRITERS) for number in range(NUM_KEYS)]
    assert [file().load(key) for key in keys] == [f"code for {writer} {number}" for writer, number in keys]


def test_what_nobody_can_write_to_is_read_all_the_same(tmp_path: Path) -> None:
    SharedCacheFile(str(tmp_path), "function", "stamp").save("types", "code")
    (tmp_path / "function.nbi.lock").unlink()
    (tmp_path / "function.nbi.lock").mkdir()  # root may write anywhere, but not to a folder
    assert SharedCacheFile(str(tmp_path), "function", "stamp").load("types") == "code"
