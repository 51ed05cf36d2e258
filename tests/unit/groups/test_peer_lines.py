"""A rank leaves its waits when a peer on another host is silent: in this epoch, and in no later one."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from evenkeel.trainer_sdk.groups.group import Group
from evenkeel.trainer_sdk.groups.peer_lines import PeerLines
from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.groups.waiting import Waiter

_LONG_SECONDS = 60.0


class SharedStore(Rendezvous):
    """What ranks said, at once; its ranks are on several hosts that have one address."""

    host = "127.0.0.1"

    def __init__(self, said: dict[str, Any], *, loopback: bool = False) -> None:
        self.said = said
        self.loopback = loopback

    def another(self) -> "SharedStore":
        return self

    def announce(self, name: str, value: Any) -> None:
        self.said[name] = value

    def read(self, name: str, ranks: Iterable[int]) -> dict[int, Any]:
        if not all(f"{name}/{rank}" in self.said for rank in ranks):
            time.sleep(0.005)
            raise RuntimeError("wait timeout")
        return {rank: self.said[f"{name}/{rank}"] for rank in ranks}


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + _LONG_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.005)


def lines_of(said: dict[str, Any], *, loopback: bool = False) -> list[PeerLines]:
    """Of ranks 0 and 1 on one host, and of rank 2 on another."""
    found = []
    for rank in range(3):
        lines = PeerLines(rank, SharedStore(said, loopback=loopback), lambda each: f"node-{each // 2}")
        lines.enter(4, [Group("world", (0, 1, 2), rank, None, Waiter(lambda: False))])
        found.append(lines)
    return found


def test_the_peers_of_a_host_that_goes_silent_leave_off_and_those_beside_a_rank_do_not_watch_it() -> None:
    said: dict[str, Any] = {}
    first, second, other = lines_of(said)
    assert sorted(said) == ["epoch/4/line/0", "epoch/4/line/1", "epoch/4/line/2"]
    held = [first, second]
    until(lambda: all(each._lines is not None and each._lines._lines for each in held))
    assert [first.lost(), second.lost()] == ["", ""]
    assert other._lines is not None
    other._lines.close()
    until(lambda: all(each.lost() for each in held))
    assert first.lost().startswith("rank 2 is gone")
    first.leave()
    assert first.lost() == ""


def test_who_has_left_an_epoch_does_not_hear_of_its_ends() -> None:
    first, second, other = lines_of({})
    until(lambda: first._lines is not None and first._lines._lines)
    first.leave()
    assert other._lines is not None
    other._lines.close()
    until(second.lost)
    assert first.lost() == ""


def test_on_one_machine_there_are_no_lines() -> None:
    said: dict[str, Any] = {}
    assert all(each._lines is None for each in lines_of(said, loopback=True))
    assert not said
