"""How long a rank waits for its groups, and that it can always build further ones."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from evenkeel.trainer_sdk.emit.progress import ProgressMark
from evenkeel.trainer_sdk.groups.building.builder import CONNECT_TIMEOUT_SECONDS, GroupBuilder, GroupSpec
from evenkeel.trainer_sdk.groups.errors import Interrupted, PeerLost
from evenkeel.trainer_sdk.groups.group import Group
from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.groups.waiting import Waiter

SPECS = [GroupSpec(name=name, ranks=(0, 1)) for name in ("world", "ranks/0,1", "activation/0-1")]


class ScriptedStore(Rendezvous):
    """Opens connections that lead nowhere."""

    def __init__(self, said: set[str] | None = None) -> None:
        self.closed = False
        self.loopback = True
        self.said = set[str]() if said is None else said

    def another(self) -> "ScriptedStore":
        return ScriptedStore(self.said)

    def close(self) -> None:
        self.closed = True

    def bare(self, name: str) -> None:
        pass

    def announce(self, name: str, value: Any) -> None:
        self.said.add(name)

    def heard(self, name: str) -> bool:
        return name in self.said

    def has_said(self, prefix: str) -> bool:
        return any(name.startswith(prefix) for name in self.said)


class TimedWaiter(Waiter):
    """Notes what was waited for and how long it might have taken, and lets a group be built for each wait."""

    def __init__(self, go: threading.Semaphore, interrupted: Callable[[], bool] = lambda: False) -> None:
        super().__init__(interrupted)
        self.waits: list[tuple[str, float]] = []
        self._go = go

    def until(self, condition: Callable[[], bool], timeout_seconds: float, what: str) -> None:
        self.check()
        self.waits.append((what, timeout_seconds))
        self._go.release()
        super().until(condition, 60.0, what)


class ScriptedBuilder(GroupBuilder):
    """Builds a group once it may."""

    def __init__(
        self, store: ScriptedStore, waiter: Waiter, go: threading.Semaphore, progress: ProgressMark | None = None
    ) -> None:
        super().__init__(0, store, device=torch.device("cpu"), waiter=waiter, progress=progress)
        self._go = go
        self.used: dict[int, ScriptedStore] = {}

    def connect(self, rendezvous: Rendezvous, epoch: int, spec: GroupSpec) -> Group:
        self._go.acquire()
        assert isinstance(rendezvous, ScriptedStore)
        self.used[epoch] = rendezvous
        if spec.name == "dead":
            raise RuntimeError("connection refused")
        return Group(spec.name, spec.ranks, 0, None, self._waiter)


def test_each_group_has_all_the_time_that_one_may_take() -> None:
    go = threading.Semaphore(0)
    waiter = TimedWaiter(go)
    groups = ScriptedBuilder(ScriptedStore(), waiter, go).add(3, SPECS)
    assert list(groups) == [spec.name for spec in SPECS]
    names = [spec.name for spec in SPECS for _ in ("its own part", "the others'")]
    assert waiter.waits == [(f"group {name} of epoch 3", CONNECT_TIMEOUT_SECONDS) for name in names]


class WatchedWaiter(Waiter):
    """Notes where the rank says that it is in each wait; each part of it comes meanwhile."""

    def __init__(self, progress: ProgressMark, parts: list[Callable[[], object]]) -> None:
        super().__init__(lambda: False)
        self.seen: list[str] = []
        self._progress = progress
        self._parts = parts

    def until(self, condition: Callable[[], bool], timeout_seconds: float, what: str) -> None:
        assert not condition()
        self.seen.append(self._progress.newest[0])
        self._parts.pop(0)()
        super().until(condition, 60.0, what)


def test_a_rank_is_waited_for_until_it_has_told_its_part_in_a_group_and_only_then_waits_for_the_others() -> None:
    store = ScriptedStore({"epoch/4/world/0/0", "epoch/3/worlds/0/0", "epoch/3/ready/0/0"})
    go, progress = threading.Semaphore(0), ProgressMark()
    waiter = WatchedWaiter(progress, [lambda: store.said.add("epoch/3/world/0/0"), go.release])
    builder = ScriptedBuilder(store, waiter, go, progress)
    builder.moved()
    assert list(builder.add(3, SPECS[:1])) == ["world"]
    assert waiter.seen == ["reshaping", "wait:others"]
    assert progress.newest[0] == "reshaping", "it is its turn again"


def test_what_nccl_says_is_not_seen_so_who_calls_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def connects(*_: Any, **__: Any) -> None:
        assert store.said == {"epoch/3/world/builds/0"}, "not where NCCL's own keys are"
        raise RuntimeError("no peer")

    monkeypatch.setattr("evenkeel.trainer_sdk.groups.building.builder.make_backend", connects)
    store = ScriptedStore()
    builder = GroupBuilder(0, store, device=torch.device("cuda", 0), waiter=Waiter(lambda: False))
    with pytest.raises(RuntimeError, match="no peer"):
        builder.connect(store, 3, SPECS[0])


def test_a_build_that_failed_keeps_no_rank_from_building_later() -> None:
    go = threading.Semaphore(0)
    builder = ScriptedBuilder(ScriptedStore(), TimedWaiter(go), go)
    with pytest.raises(PeerLost, match="connection refused"):
        builder.add(1, [GroupSpec(name="dead", ranks=(0, 1))])
    assert list(builder.add(2, SPECS)) == [spec.name for spec in SPECS]


def test_a_build_that_was_interrupted_keeps_its_connection_to_itself() -> None:
    go, interrupted = threading.Semaphore(0), threading.Event()
    builder = ScriptedBuilder(ScriptedStore(), TimedWaiter(go, interrupted.is_set), go)
    builder.add(1, SPECS[:1])
    interrupted.set()
    with pytest.raises(Interrupted):
        builder.add(2, SPECS)
    interrupted.clear()
    go.release()  # for the build that nobody waits for any more
    builder.add(3, SPECS)
    assert builder.used[1].closed
    assert builder.used[3] is not builder.used[1]
    assert not builder.used[3].closed


def test_who_waits_for_one_that_could_not_connect_leaves_off_at_once() -> None:
    store, go, never = ScriptedStore({"epoch/4/world/0/0"}), threading.Semaphore(0), threading.Semaphore(0)
    waits = ScriptedBuilder(store, Waiter(lambda: False), never)
    fails = ScriptedBuilder(store, TimedWaiter(go), go)
    with pytest.raises(PeerLost, match="connection refused"):
        fails.add(4, [GroupSpec(name="dead", ranks=(0, 1))])
    begun = time.monotonic()
    with pytest.raises(PeerLost, match="another rank"):
        waits.add(4, SPECS)
    assert time.monotonic() - begun < CONNECT_TIMEOUT_SECONDS / 4


def test_a_rank_that_is_interrupted_while_it_builds_says_nothing_of_its_peers() -> None:
    store, go = ScriptedStore(), threading.Semaphore(0)
    with pytest.raises(Interrupted):
        ScriptedBuilder(store, TimedWaiter(go, lambda: True), go).add(5, SPECS)
    assert not store.said
