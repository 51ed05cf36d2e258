"""A ledger over three stores: one order for all, whichever store is away, and nothing without a majority."""

import threading
from collections.abc import Iterator

import pytest

from evenkeel.trainer_sdk.groups.store.ledger import Ledger
from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.groups.waiting import Waiter
from tests.integration.elastic.kept_store import KeptStore
from tests.integration.elastic.rank_process import ended, fork

pytestmark = pytest.mark.integration

EACH = 20
LAST = "last"


@pytest.fixture
def stores() -> Iterator[list[KeptStore]]:
    kept = [KeptStore() for _ in range(3)]
    yield kept
    for each in kept:
        each.close()


class Reader:
    """Somebody who reads a ledger, and appends to it."""

    def __init__(self, stores: list[KeptStore], name: str) -> None:
        self.name = name
        self.texts: list[str] = []
        rendezvous = Rendezvous(",".join(each.address for each in stores), "job")
        self.ledger = Ledger(rendezvous, "ledger", self._heard)

    def append(self, *texts: str) -> threading.Thread:
        def run() -> None:
            for each in texts:
                self.ledger.append(each, is_due=lambda: True)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def _heard(self, text: str) -> bool:
        self.texts.append(text)
        return text != LAST


def wait(condition, what: str) -> None:
    Waiter(lambda: False).until(condition, 100.0, what)


def test_all_read_what_all_append_in_one_order_though_stores_die(stores: list[KeptStore]) -> None:
    assert ended(fork(lambda: _append_and_read(stores))) == 0


def test_without_a_majority_nothing_is_appended(stores: list[KeptStore]) -> None:
    assert ended(fork(lambda: _append_without_a_majority(stores))) == 0


def test_what_was_said_stays_when_all_stores_were_started_again(stores: list[KeptStore]) -> None:
    assert ended(fork(lambda: _append_after_stores_have_forgotten(stores))) == 0


def _append_and_read(stores: list[KeptStore]) -> None:
    readers = [Reader(stores, f"reader {each}") for each in range(3)]
    threads = [each.append(*[f"{each.name}: {number}" for number in range(EACH)]) for each in readers]
    wait(lambda: len(readers[0].texts) >= 5, "some texts")
    stores[0].pause()
    wait(lambda: len(readers[0].texts) >= 15, "more texts")
    stores[0].resume()
    _await_told(stores[0], "ledger/14")  # of three stores, one may have forgotten
    stores[1].kill()
    for each in threads:
        each.join()
    readers[0].append(LAST).join()
    wait(lambda: all(each.texts[-1:] == [LAST] for each in readers), "the last text")
    assert readers[0].texts == readers[1].texts == readers[2].texts
    assert len(readers[0].texts) == len(set(readers[0].texts)) == 3 * EACH + 1
    for each in readers:
        own = [text for text in each.texts if text.startswith(each.name)]
        assert own == [f"{each.name}: {number}" for number in range(EACH)]
    late = Reader(stores, "late")
    wait(lambda: late.texts == readers[0].texts, "what was said before it came")
    for reader in (*readers, late):
        reader.ledger.join(10.0)


def _append_without_a_majority(stores: list[KeptStore]) -> None:
    reader = Reader(stores, "reader")
    reader.append("first").join()
    stores[0].pause()
    stores[2].pause()
    thread = reader.append("second")
    thread.join(1.0)
    assert reader.texts == ["first"]
    late = Reader(stores, "late")
    late.ledger.catch_up(1.0)
    wait(lambda: late.texts == ["first"], "what one store can tell")
    stores[2].resume()
    thread.join(100.0)
    assert reader.texts == ["first", "second"]
    reader.append(LAST).join(100.0)


def _append_after_stores_have_forgotten(stores: list[KeptStore]) -> None:
    reader = Reader(stores, "reader")
    reader.append("first", "second").join()
    for each in stores:
        each.kill()
        _await_told(each, "ledger/1")
    Ledger._read = lambda *_: None  # type: ignore[method-assign] # whoever has not read on yet
    late = Reader(stores, "late")
    late.append("third").join()
    assert late.texts == ["first", "second", "third"]
    reader.append(LAST).join()
    assert reader.texts == ["first", "second", "third", LAST]


def _await_told(store: KeptStore, key: str) -> None:
    """The store was started again and has been told what it forgot."""
    store.await_start(2)
    plain = Rendezvous(store.address, "job")
    wait(lambda: plain.heard(key), "it is told again")
