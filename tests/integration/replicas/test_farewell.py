"""Replicas that finish together: the stores are those of their launchers, so whoever is first stays for the others."""

import threading
from collections.abc import Iterator

import pytest

from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.groups.waiting import Waiter
from evenkeel.trainer_sdk.replicas.membership.director import Director
from evenkeel.trainer_sdk.replicas.membership.roster import Ready
from evenkeel.trainer_sdk.replicas.place import Place
from tests.integration.elastic.kept_store import KeptStore
from tests.integration.elastic.rank_process import ended, fork

pytestmark = pytest.mark.integration


@pytest.fixture
def stores() -> Iterator[list[KeptStore]]:
    kept = [KeptStore() for _ in range(2)]
    yield kept
    for each in kept:
        each.close()


def test_whoever_is_first_stays_until_the_last_has_finished(stores: list[KeptStore]) -> None:
    assert ended(fork(lambda: _finish_together(stores))) == 0


def _finish_together(stores: list[KeptStore]) -> None:
    addresses = ",".join(each.address for each in stores)
    directors = [
        Director(Rendezvous(addresses, "job"), Place(replica=each, num_replicas=2), f"token-{each}")
        for each in range(2)
    ]
    for replica, each in enumerate(directors):
        each.say(Ready(replica=replica, token=f"token-{replica}", lines=("127.0.0.1:1",)))
    Waiter(lambda: False).until(lambda: all(each.newest for each in directors), 100.0, "an epoch of both")
    last, first = directors
    first.ends()
    leaving = threading.Thread(target=lambda: first.leave("", finished=True), daemon=True)
    leaving.start()
    Waiter(lambda: False).until(lambda: last.newest and len(last.newest.members) == 1, 100.0, "word of its end")
    leaving.join(1.0)
    assert leaving.is_alive(), "its store would have ended with it"
    last.ends()
    last.leave("", finished=True)
    leaving.join(20.0)
    assert not leaving.is_alive()
