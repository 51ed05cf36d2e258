"""Ctrl-C while the servers come up, and a folder that takes nothing: nothing stays behind, and one line says why."""

import os
import signal
import threading
from pathlib import Path

import pytest

from evenkeel.stack import paths, stack
from evenkeel.stack.errors import StackError
from evenkeel.stack.stack import Stack
from evenkeel.stack.state import is_owned, lock_path


class FakeServer:
    """One that takes its time to come up, and says what became of it."""

    process = None

    def __init__(self, folder: Path, *_: object) -> None:
        self.name = folder.name
        self.said = list[str]()
        self.told = threading.Event()

    def start(self) -> None:
        self.said.append("starts")
        if self.name == "kafka":
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        self.told.wait(60.0)
        self.said.append("is up")

    def stop(self, **_: object) -> None:
        self.said.append("is stopped")
        self.told.set()


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "checkout_root", lambda: tmp_path)
    for name in ("EVENKEEL_KAFKA_BOOTSTRAP_SERVERS", "EVENKEEL_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)


def test_servers_that_are_on_their_way_up_are_stopped_and_none_comes_up_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = list[FakeServer]()

    def make(*arguments: object) -> FakeServer:
        made.append(FakeServer(*arguments))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(stack, "Kafka", make)
    monkeypatch.setattr(stack, "Postgres", make)
    with pytest.raises(KeyboardInterrupt):
        Stack("mine").start()
    for server in made:
        assert "is stopped" in server.said[: server.said.index("is up")], "it was told before it was up"
        assert server.said[-1] == "is stopped"


def test_a_folder_that_cannot_be_written_is_one_line() -> None:
    lock_path("mine").parent.parent.write_text("no folder")
    with pytest.raises(StackError, match="the folder of the stack 'mine' cannot be used"):
        is_owned("mine")


def test_addresses_that_a_shell_still_holds_from_another_stack_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/nothing")
    monkeypatch.setenv("EVENKEEL_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    with pytest.raises(StackError, match=r"EVENKEEL_DATABASE_URL and EVENKEEL_KAFKA_BOOTSTRAP_SERVERS; unset"):
        Stack("mine").start()
