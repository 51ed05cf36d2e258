"""Lines to processes of which some do not answer."""

import queue
import socket

import pytest

from evenkeel.trainer_sdk.control.fleet.address import join_address
from evenkeel.trainer_sdk.groups import lifelines
from evenkeel.trainer_sdk.groups.lifelines import Lifelines


def silent() -> list[socket.socket]:
    """One that listens and takes nobody, first, and who fills its queue: whoever else connects hears nothing."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    crowd = [socket.socket() for _ in range(3)]
    for each in crowd:
        each.setblocking(False)
        each.connect_ex(listener.getsockname())
    return [listener, *crowd]


def test_who_does_not_answer_keeps_no_other_line_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifelines, "_CONNECT_SECONDS", 20.0)
    ends: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    lines = Lifelines("127.0.0.1", lambda name, why: ends.put((name, why)))
    silents = [silent(), silent()]
    living = socket.create_server(("127.0.0.1", 0))
    wanted = {"one": silents[0][0], "other": silents[1][0], "living": living}
    try:
        lines.hold({name: join_address(*each.getsockname()) for name, each in wanted.items()})
        living.settimeout(10.0)
        living.accept()[0].close()
        assert ends.get(timeout=10.0) == ("living", "its process ended")
    finally:
        lines.close()
        for each in (living, *silents[0], *silents[1]):
            each.close()
