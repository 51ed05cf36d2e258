"""How long a rank waits for its groups, and that it can always build further ones."""

import threading
from collections.abc import Callable

import pytest
import torch

from trainer_sdk.groups.builder import CONNECT_TIMEOUT_SECONDS, GroupSpec, StoreGroupBuilder
from trainer_sdk.groups.errors import PeerLost
from trainer_sdk.groups.group import Group
from trainer_sdk.groups.rendezvous import Rendezvous
from trainer_sdk.groups.waiting import Waiter

SPECS = [GroupSpec(name=name, ranks=(0, 1)) for name in ("world", "ranks/0,1", "activation/0-1")]


class ScriptedStore(Rendezvous):
    """Opens connections that lead nowhere, and fails where it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.address = "127.0.0.1:1"
        self.failures = failures

    def another(self) -> "ScriptedStore":
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the store does not answer")
        return self


class TimedWaiter(Waiter):
    """Notes what was waited for and how long it might have taken, and lets one group be built for each wait."""

    def __init__(self, go: threading.Semaphore) -> None:
        super().__init__(lambda: False)
        self.waits: list[tuple[str, float]] = []
        self._go = go

    def until(self, condition: Callable[[], bool], timeout_seconds: float, what: str) -> None:
        self.waits.append((what, timeout_seconds))
        self._go.release()
        super().until(condition, 60.0, what)


class ScriptedBuilder(StoreGroupBuilder):
    """Builds a group once it may."""

    def __init__(self, store: ScriptedStore, waiter: Waiter, go: threading.Semaphore) -> None:
        super().__init__(0, store, device=torch.device("cpu"), waiter=waiter)
        self._go = go

    def connect(self, rendezvous: Rendezvous, epoch: int, spec: GroupSpec) -> Group:
        self._go.acquire()
        if spec.name == "dead":
            raise RuntimeError("connection refused")
        return Group(spec.name, spec.ranks, 0, None, self._waiter)


def test_each_group_has_all_the_time_that_one_may_take() -> None:
    go = threading.Semaphore(0)
    waiter = TimedWaiter(go)
    groups = ScriptedBuilder(ScriptedStore(), waiter, go).add(3, SPECS)
    assert list(groups) == [spec.name for spec in SPECS]
    assert waiter.waits[:3] == [(f"group {spec.name} of epoch 3", CONNECT_TIMEOUT_SECONDS) for spec in SPECS]


def test_a_store_that_does_not_answer_for_a_while_keeps_no_rank_from_building_later() -> None:
    go, store = threading.Semaphore(0), ScriptedStore()
    builder = ScriptedBuilder(store, TimedWaiter(go), go)
    store.failures = 1
    with pytest.raises(PeerLost, match="connection refused"):
        builder.add(1, [GroupSpec(name="dead", ranks=(0, 1))])
    assert list(builder.add(2, SPECS)) == [spec.name for spec in SPECS]
    assert store.failures == 0
