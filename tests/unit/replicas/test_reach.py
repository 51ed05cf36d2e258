"""Who waits before it joins, and until when."""

import logging
import threading
from collections.abc import Iterator

import pytest

from evenkeel.trainer_sdk.groups.lifelines import Lifelines
from evenkeel.trainer_sdk.replicas.membership import reach
from evenkeel.trainer_sdk.replicas.membership.roster import Epoch, Member
from evenkeel.trainer_sdk.replicas.place import Place


@pytest.fixture
def lines() -> Iterator[list[Lifelines]]:
    found = [Lifelines("127.0.0.1", lambda *_: None) for _ in range(2)]
    yield found
    for each in found:
        each.close()


def test_one_whose_double_trains_does_not_join_and_says_so(
    lines: list[Lifelines], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two equal launches, or two hosts of one number: they ended one another until no state was left."""
    monkeypatch.setattr(reach, "_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(reach, "_TELL_AFTER_SECONDS", 0.0)
    members = [Member(replica=replica, token="t", lines=(lines[replica].address,)) for replica in (0, 1)]
    epochs = {True: Epoch(number=1, members=tuple(members)), False: Epoch(number=2, members=(members[0],))}
    double_trains = True
    looked = threading.Semaphore(0)

    def newest() -> Epoch:
        looked.release()
        return epochs[double_trains]

    place = Place(replica=1, num_replicas=2, hang_seconds=0.1)
    with caplog.at_level(logging.WARNING, "evenkeel.replicas"):
        joins = threading.Thread(target=reach.await_reach, args=(place, newest))
        joins.start()
        for _ in range(30):
            assert looked.acquire(timeout=30)
        assert joins.is_alive(), "also when it has waited for longer than others would for one that hangs"
        double_trains = False
        joins.join(30)
    assert not joins.is_alive()
    (said,) = caplog.messages
    assert f"a process of the same number trains, at {lines[1].address}; end one of two equal launches" in said
