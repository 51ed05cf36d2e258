"""A list of texts to which any process appends, and which all read in the same order, whatever becomes of the stores.

Each place is chosen by a majority of the job's stores (:mod:`evenkeel.trainer_sdk.groups.store.quorum`), so with three
of them any one may die or be cut off, host and all, and whoever is cut off from two of three appends nothing. Whoever
has read a text tells it to every store: one that is started again, empty, knows it at once.
"""

import queue
import random
import secrets
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from evenkeel.trainer_sdk.groups.c10d import Store, c10d
from evenkeel.trainer_sdk.groups.store.quorum import Proposal, Register
from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.groups.store.store_links import StoreLinks
from evenkeel.trainer_sdk.groups.store.store_watch import CONNECT_TIMEOUT_SECONDS

_READ_SLICE = timedelta(seconds=1e6)  # torch writes a warning whenever such a wait ends without its key
_POLL_SECONDS = 0.01
_ANSWER_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 0.5


class Ledger:
    """One process's view. A daemon thread for each store reads; any thread may append.

    Args:
        rendezvous: Connection to the stores; the ledger's own are taken from it.
        name: Of the ledger, unique in the job.
        on_text: Told each text, in order, under the ledger's lock; returns whether it wants to hear more.
    """

    def __init__(self, rendezvous: Rendezvous, name: str, on_text: Callable[[str], bool]) -> None:
        self._name = name
        self._on_text = on_text
        self._lock = threading.Lock()
        self._texts: list[str] = []
        self._is_over = False
        self._everywhere = StoreLinks(rendezvous.watches)
        self._votes = [StoreLinks([each]) for each in rendezvous.watches]
        self._readers = [
            threading.Thread(target=self._read, args=(StoreLinks([each]),), name="evenkeel-ledger", daemon=True)
            for each in rendezvous.watches
        ]
        for reader in self._readers:
            reader.start()

    def append(self, text: str, *, is_due: Callable[[], bool]) -> None:
        """Put a text at the end, or nowhere if it comes to nothing any more. Blocks until then, on a helper thread.

        Args:
            text: Different from all others.
            is_due: Asked before each place; False = it is not needed any more.
        """
        with self._lock:
            place = len(self._texts)
        while not self._is_over and is_due():
            if self._choose(place, text) == text:
                return
            place += 1

    def catch_up(self, timeout_seconds: float) -> None:
        """Hear all that has been said so far, or what there is to hear while most stores are away. Blocks for it."""
        deadline = time.monotonic() + timeout_seconds
        while not self._is_over and time.monotonic() < deadline:
            with self._lock:
                place = len(self._texts)
            answer = self._at_majority(self._key(place), lambda register: register)
            if isinstance(answer, str):
                self._heard(place, answer)
            elif answer:
                return
            else:
                time.sleep(_POLL_SECONDS)

    def join(self, timeout_seconds: float) -> None:
        """After the last text: wait until nothing of this reads, which would not survive the interpreter."""
        deadline = time.monotonic() + timeout_seconds
        for reader in self._readers:
            reader.join(max(0.0, deadline - time.monotonic()))

    def _key(self, place: int) -> str:
        return f"{self._name}/{place}"

    # ---- reading

    def _read(self, links: StoreLinks) -> None:
        while not self._is_over:
            with self._lock:
                place = len(self._texts)
            key = self._key(place)

            def question(store: Store, key: str = key) -> str:
                store.wait([key], _READ_SLICE)
                return bytes(store.get(key)).decode()

            try:
                text = links.demand(question, CONNECT_TIMEOUT_SECONDS)
            except (c10d.DistStoreError, c10d.DistNetworkError):  # nothing new, or the store is away
                time.sleep(_POLL_SECONDS)
                continue
            self._heard(place, text)

    def _heard(self, place: int, text: str) -> None:
        with self._lock:
            if place != len(self._texts) or self._is_over:
                return
            self._everywhere.put({self._key(place): text.encode()})
            self._texts.append(text)
            self._is_over = not self._on_text(text)

    # ---- choosing

    def _choose(self, place: int, text: str) -> str:
        """What a place holds in the end."""
        proposal = Proposal(secrets.token_hex(8), text)
        pause_seconds = _POLL_SECONDS
        while not self._is_over:
            with self._lock:
                if place < len(self._texts):
                    return self._texts[place]
            answer = self._at_majority(self._key(place), proposal.change)
            chosen = answer if isinstance(answer, str) else proposal.heard(answer) if answer else None
            if chosen is not None:
                self._heard(place, chosen)
                return chosen
            if not answer or not proposal.is_accepting:  # too few stores, or somebody else is at it
                time.sleep(random.uniform(0.0, pause_seconds))  # noqa: S311 - so that two do not meet again
                pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
        return ""

    def _at_majority(self, key: str, change: Callable[[Register], Register]) -> list[Register] | str:
        """Change the registers of all stores; those of a majority after it, or nothing where too few answer.

        Or the text, where it was chosen before: a store that was started again has been told it, and has no register.
        """
        answers: queue.SimpleQueue[Register | str | None] = queue.SimpleQueue()

        def ask(links: StoreLinks) -> None:
            try:
                answers.put(links.demand(lambda store: _changed(store, key, change), _ANSWER_SECONDS))
            except (c10d.DistStoreError, c10d.DistNetworkError):
                answers.put(None)

        for links in self._votes:
            threading.Thread(target=ask, args=(links,), name="evenkeel-ledger-vote", daemon=True).start()
        found: list[Register] = []
        needed = len(self._votes) // 2 + 1
        for _ in self._votes:
            answer = answers.get()
            if isinstance(answer, str):
                return answer
            if answer is not None:
                found.append(answer)
            if len(found) == needed:
                return found
        return []


def _changed(store: Store, key: str, change: Callable[[Register], Register]) -> Register | str:
    """A place's register after a change, which happened at once or not at all; its text where it was chosen before."""
    if store.check([key]):
        return bytes(store.get(key)).decode()
    known, key = "", f"{key}/vote"
    while True:
        wanted = change(Register.from_text(known))
        text = wanted.to_text()
        if text == known:
            return wanted
        found = bytes(store.compare_set(key, known, text)).decode()
        if found == text:
            return wanted
        # Torch gives back what was expected where there is nothing: a store that was started again meanwhile.
        known = "" if found == known else found
