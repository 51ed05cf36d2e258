"""Ends the waits of a rank whose peer's host says nothing any more: it died without a word, or a cable is cut.

The transports notice neither for many minutes, and a bound on their own connections would be broken by whoever computes
for long before it receives. So each rank holds a line to the peers that it has groups with on other hosts.
"""

import threading
from collections.abc import Callable, Iterable

from evenkeel.trainer_sdk.groups.group import Group
from evenkeel.trainer_sdk.groups.lifelines import Lifelines
from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous


class PeerLines:
    """One rank's lines in one epoch after the other. Training thread.

    Args:
        rank: This rank.
        rendezvous: Connection to the store.
        node_of: Node of a rank; all count as on one where nobody knows.
    """

    def __init__(self, rank: int, rendezvous: Rendezvous, node_of: Callable[[int], str]) -> None:
        self._rank = rank
        self._rendezvous = rendezvous
        self._node_of = node_of
        self._lines: Lifelines | None = None
        self._lock = threading.Lock()
        self._epoch = -1
        self._lost = ""

    def lost(self) -> str:
        """Why nobody should wait for this epoch's peers any more; empty while they are there."""
        return self._lost

    def enter(self, epoch: int, groups: Iterable[Group]) -> None:
        """An epoch begins, and these are its groups; its lines are opened in the background."""
        peers = {peer for group in groups for peer in group.others if self._node_of(peer) != self._node_of(self._rank)}
        if not peers or self._rendezvous.loopback:
            return
        if self._lines is None:
            self._lines = Lifelines(self._rendezvous.host, self._ended)
        with self._lock:
            self._epoch = epoch
        self._rendezvous.announce(f"{_place(epoch)}/{self._rank}", self._lines.address)
        threading.Thread(target=self._open, args=(epoch, peers), name="evenkeel-peer-lines", daemon=True).start()

    def leave(self) -> None:
        """The epoch is over here: its peers may end. Returns at once."""
        with self._lock:
            self._epoch, self._lost = -1, ""
            if self._lines is not None:
                self._lines.hold({})

    def _open(self, epoch: int, peers: Iterable[int]) -> None:
        rendezvous = self._rendezvous.another()
        while self._epoch == epoch:
            try:
                addresses = rendezvous.read(_place(epoch), peers)
            except RuntimeError:  # somebody comes late, or the store is away
                continue
            with self._lock:
                if self._epoch == epoch and self._lines is not None:
                    self._lines.hold({f"{epoch}/{peer}": address for peer, address in addresses.items()})
            return

    def _ended(self, name: str, why: str) -> None:
        epoch, _, peer = name.partition("/")
        with self._lock:
            if int(epoch) == self._epoch:
                self._lost = f"rank {peer} is gone: {why}"


def _place(epoch: int) -> str:
    return f"epoch/{epoch}/line"
