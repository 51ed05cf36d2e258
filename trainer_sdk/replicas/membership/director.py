"""Who decides which epoch a rank is in, with no service: a log in the job's stores.

Whoever sees a replica come or go writes an entry, and everybody reads all entries in the same order. Where there are
several stores, whoever is cut off from most of them decides nothing.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from evenkeel.trainer_sdk.emit.farewell import EXIT_EVICTED
from evenkeel.trainer_sdk.groups.lifelines import Lifelines
from evenkeel.trainer_sdk.groups.store.ledger import Ledger
from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.replicas.membership.passage import Passage
from evenkeel.trainer_sdk.replicas.membership.roster import (
    Again,
    Entry,
    Epoch,
    Gone,
    Quotas,
    Roster,
    entry_from_text,
    entry_to_text,
)

if TYPE_CHECKING:
    from evenkeel.trainer_sdk.replicas.place import Place

LOG = "replicas/log"
"""The ledger's name."""

_BROKEN_SECONDS = 1.0
"""How long after a broken connection to wait for word of a death, before the same ranks build new groups."""
_TELL_EVERY_SECONDS = 30.0
_LEAVE_SECONDS = 5.0
_CATCH_UP_SECONDS = 10.0
_FAREWELL_SECONDS = 30.0
"""For the others to finish too; whose loops are longer go on without it."""
BEGIN_ANEW_SECONDS = 30.0
"""Who starts the job again on the same stores starts all of its replicas."""
_FENCE_GRACE_SECONDS = 2.0
_log = logging.getLogger("evenkeel.replicas")


class Evicted(SystemExit):
    """The others go on without this replica: what it would do now counts nowhere."""


class JobFinished(SystemExit):
    """The others came to the end of their loops without this replica: nothing is left to do."""


class Director:
    """Tells a rank which epoch to be in. Training thread, except :meth:`interrupted`; its own threads are daemons.

    Args:
        rendezvous: Connection to the stores; its others are taken from it.
        place: This rank.
        token: Of its replica's processes; the same on all of them.

    Attributes:
        passage: This rank's way from epoch to epoch.
    """

    def __init__(self, rendezvous: Rendezvous, place: "Place", token: str) -> None:
        self._token = token
        self._replica = place.replica
        self._index = place.index
        self._stores, self._num_replicas = rendezvous.address, place.num_replicas
        self._roster = Roster(place.num_replicas)
        self.passage = Passage()
        self._changed = threading.Condition()
        self._evicted = ""
        self._closed = self._finished = False
        self._write_lock = threading.Lock()
        self._lines = Lifelines(rendezvous.host, self._line_ended)
        self._ledger = Ledger(rendezvous, LOG, self._heard)

    @property
    def newest(self) -> Epoch | None:
        """The newest epoch that was decided, whether or not this replica is in it."""
        return self._roster.epoch

    def catch_up(self) -> Epoch | None:
        """As :attr:`newest`, of all that was said so far, as far as it can be heard. Blocks for seconds at most."""
        self._ledger.catch_up(_CATCH_UP_SECONDS)
        return self.newest

    @property
    def line(self) -> str:
        """``host:port`` where others notice this process's end."""
        return self._lines.address

    def interrupted(self) -> bool:
        """Whether to leave the epoch that was entered at once. Any thread; well under a microsecond.

        Raises:
            Evicted: The others go on without this replica.
        """
        if self._evicted:
            self._leave_now()
        return self._roster.newest_abrupt > self.passage.entered

    def say(self, entry: Entry) -> None:
        """Write an entry into the log, unless somebody else has said the same; returns at once."""
        threading.Thread(target=self._write, args=(entry,), name="evenkeel-log-entry", daemon=True).start()

    def next_epoch(self) -> Epoch:
        """The epoch to go on in, see :meth:`Passage.next_epoch`, once there is one.

        Raises:
            Evicted: The others go on without this replica.
            JobFinished: They have finished, and not enough are there to begin anew.
        """

        def found() -> Epoch | None:
            return self.passage.next_epoch(self._roster, self._token)

        epoch = self._await(found, _BROKEN_SECONDS) if self.passage.is_broken else None
        if self.passage.is_broken and epoch is None:
            self.say(self.passage.complaint())
        epoch = epoch or self._await(found)
        assert epoch is not None, "without a timeout it waits until there is one"
        return epoch

    def enter(self, number: int) -> Epoch:
        """Try to train in an epoch from now on, which a mate may have heard of earlier.

        Raises:
            Evicted: The others go on without this replica.
        """
        epoch = self._await(lambda: self._roster.epochs.get(number))
        assert epoch is not None, "without a timeout it waits until there is one"
        self.passage.enter(number)
        lines = {}
        for member in epoch.members:
            for index, address in enumerate(member.lines):
                is_peer, is_mate = index == self._index, member.replica == self._replica
                if is_peer is not is_mate:  # ends of others show in those of their replica
                    lines[f"{member.replica}/{member.token}/{index}"] = address
        self._lines.hold(lines)
        return epoch

    def _await(self, found: Callable[[], Epoch | None], timeout_seconds: float = float("inf")) -> Epoch | None:
        since = told = time.monotonic()
        with self._changed:
            while True:
                if self._evicted:
                    self._leave_now()
                epoch, now = found(), time.monotonic()
                if epoch is None and self._roster.finished and now - since > BEGIN_ANEW_SECONDS:
                    _log.warning("replica %d ends: the job has finished without it", self._replica)
                    raise JobFinished(0)
                if epoch is not None or now - since > timeout_seconds:
                    return epoch
                self._changed.wait(min(1.0, timeout_seconds))
                if now - told > _TELL_EVERY_SECONDS:
                    told = now
                    come = "" if self._roster.epoch else self._who_came()
                    _log.warning("replica %d has waited %.0f s for other replicas%s", self._replica, now - since, come)

    def _who_came(self) -> str:
        roster, mine = self._roster, self._num_replicas
        alike = (
            "" if roster.num_replicas == mine else f"; set EVENKEEL_NUM_REPLICAS alike everywhere: here it is {mine}"
        )
        come = f"{roster.num_members} have come to the store at {self._stores}, of {roster.num_replicas}"
        return f": {come} that begin together{alike}"

    def ends(self) -> None:
        """From now on the end of a mate is in order."""
        self._closed = True

    def leave(self, standing: str, *, finished: bool) -> None:
        """This replica goes away in order; blocks for some seconds at most.

        Args:
            standing: How far this replica is.
            finished: Its loop has come to its end.
        """
        self._finished = finished
        why = "it has finished" if finished else "its program ended"
        entry = Gone(replica=self._replica, token=self._token, why=why, standing=standing, finished=finished)
        writer = threading.Thread(target=self._write, args=(entry,), daemon=True)
        writer.start()
        writer.join(_LEAVE_SECONDS)
        with self._changed:
            # A writer that still tries is heard by nobody.
            is_over = not writer.is_alive() and self._changed.wait_for(lambda: not self._is_needed(), _FAREWELL_SECONDS)
        if is_over:
            self._ledger.join(_LEAVE_SECONDS)  # that entry is the last that it reads
        self._lines.close()

    def _is_needed(self) -> bool:
        """Somebody may need this process or its store, even as it leaves.

        Of those that finish together one may hear of the last step later than the others, from them or from the log.
        """
        return self._token not in self._roster.gone or (self._finished and self._roster.epoch is not None)

    def _leave_now(self) -> None:
        _log.error("replica %d ends: the others go on without it: %s", self._replica, self._evicted)
        raise Evicted(EXIT_EVICTED)

    def _line_ended(self, name: str, why: str) -> None:
        if self._closed:
            return
        replica, token, _ = name.split("/")
        if int(replica) == self._replica:
            # A replica lives or dies as one; the training thread may sit in a wait of the replica's own for good.
            _log.error("replica %d ends: a rank of it is gone: %s", self._replica, why)
            os._exit(EXIT_EVICTED)
        self.say(Gone(replica=int(replica), token=token, why=why))

    def _write(self, entry: Entry) -> None:
        """Ends early when somebody else has said the same."""
        with self._write_lock:
            self._ledger.append(entry_to_text(entry), is_due=lambda: self._is_due(entry))

    def _is_due(self, entry: Entry) -> bool:
        with self._changed:
            return self._roster.is_due(entry)

    def _heard(self, text: str) -> bool:
        """The log's next entry; the end of this process and of those that finish with it is the last that it needs."""
        entry = entry_from_text(text)
        with self._changed:
            self._roster.apply(entry)
            is_gone = self._token in self._roster.gone
            if is_gone and not self._closed and not self._evicted:
                self._evicted = self._roster.gone[self._token]
                threading.Thread(target=_end_soon, name="evenkeel-eviction", daemon=True).start()
            self._changed.notify_all()
        if isinstance(entry, Gone | Again | Quotas):
            is_of_a_peer = isinstance(entry, Gone) and not entry.finished and entry.token != self._token
            _log.log(logging.WARNING if is_of_a_peer and self.passage.entered else logging.INFO, "%s", _words(entry))
        return self._is_needed()


def _words(entry: Gone | Again | Quotas) -> str:
    if isinstance(entry, Quotas):
        return f"plan {entry.plan} gives replicas these micro-batches: {dict(entry.weights)}"
    if isinstance(entry, Gone):
        return f"replica {entry.replica} is gone: {entry.why}"
    return f"epoch {entry.epoch} is built again: {entry.why}"


def _end_soon() -> None:
    """An evicted rank may be stuck for good: it ends whatever it is doing."""
    time.sleep(_FENCE_GRACE_SECONDS)
    os._exit(EXIT_EVICTED)
