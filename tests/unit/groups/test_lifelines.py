"""Lines to processes of which some do not answer."""

import errno
import queue
import socket
import threading

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


class _Lines(Lifelines):
    """Lines that note who has ended."""

    def __init__(self) -> None:
        self.ends: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        super().__init__("127.0.0.1", lambda name, why: self.ends.put((name, why)))


def test_who_does_not_answer_keeps_no_other_line_waiting() -> None:
    lines = _Lines()
    silents = [silent(), silent()]
    living = socket.create_server(("127.0.0.1", 0))
    wanted = {"one": silents[0][0], "other": silents[1][0], "living": living}
    try:
        lines.hold({name: join_address(*each.getsockname()) for name, each in wanted.items()})
        living.settimeout(10.0)
        living.accept()[0].close()
        assert lines.ends.get(timeout=10.0) == ("living", "its process ended")
    finally:
        lines.close()
        for each in (living, *silents[0], *silents[1]):
            each.close()


def test_lines_are_held_where_there_are_no_more_threads_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, other = _Lines(), _Lines()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    try:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with socket.create_server(("127.0.0.1", 0)) as living:
                living.settimeout(10.0)
                lines.hold({"other": other.address, "living": join_address(*living.getsockname())})
                living.accept()[0].close()
            assert lines.ends.get(timeout=10.0) == ("living", "its process ended")
        other.close()
        assert lines.ends.get(timeout=10.0) == ("other", "its process ended")
    finally:
        lines.close()
        other.close()


def test_a_network_that_is_away_for_a_moment_ends_no_line_and_who_refuses_it_is_gone_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound, num_failures = lifelines.bound_silence, 3

    def bound_later(line: socket.socket) -> None:
        nonlocal num_failures
        num_failures -= 1
        if num_failures >= 0:
            raise OSError(errno.ENETUNREACH, "Network is unreachable")
        bound(line)

    monkeypatch.setattr(lifelines, "bound_silence", bound_later)
    lines = _Lines()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = join_address(*closed.getsockname())
    try:
        with socket.create_server(("127.0.0.1", 0)) as living:
            living.settimeout(10.0)
            lines.hold({"living": join_address(*living.getsockname())})
            living.accept()[0].close()
        assert lines.ends.get(timeout=10.0) == ("living", "its process ended")
        lines.hold({"gone": gone})
        assert lines.ends.get(timeout=10.0) == ("gone", "it is not reached: Connection refused")
    finally:
        lines.close()
