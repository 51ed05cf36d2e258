"""The way to decide epochs that needs no service: a log in the job's stores.

Whoever sees a replica come or go writes an entry, and everybody reads all entries in the same order. Where there are
several stores, whoever is cut off from most of them decides nothing.
"""

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable

from evenkeel.trainer_sdk.groups.lifelines import Lifelines
from evenkeel.trainer_sdk.groups.store.ledger import Ledger
from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.replicas.membership.director import EXIT_EVICTED, Director, Evicted, JobFinished
from evenkeel.trainer_sdk.replicas.membership.passage import Passage
from evenkeel.trainer_sdk.replicas.membership.roster import (
    Again,
    Entry,
    Epoch,
    Gone,
    Member,
    Quotas,
    Ready,
    Roster,
    entry_from_text,
    entry_to_text,
)

LOG = "replicas/log"
"""The ledger's name."""

_TELL_EVERY_SECONDS = 30.0
_LEAVE_SECONDS = 5.0
_FAREWELL_SECONDS = 30.0
"""For the others to finish too; whose loops are longer go on without it."""
# Who starts the job again on the same stores starts all of its replicas.
_BEGIN_ANEW_SECONDS = 30.0
_FENCE_GRACE_SECONDS = 2.0
_log = logging.getLogger("evenkeel.replicas")


class LogDirector(Director):
    """Decides by the log in the job's store. Its threads are daemons.

    Args:
        rendezvous: Connection to the stores; its others are taken from it.
        replica: This replica.
        index: This rank within it.
        token: Of this replica's processes; the same on all its ranks.
        num_replicas: How many replicas begin the job.
    """

    def __init__(self, rendezvous: Rendezvous, *, replica: int, index: int, token: str, num_replicas: int) -> None:
        self.token = token
        self._replica = replica
        self._index = index
        self._roster = Roster(num_replicas)
        self._changed = threading.Condition()
        self._entered = 0
        self._newest_abrupt = 0  # read without the lock
        self._evicted = ""
        self._closed = self._finished = False
        self._write_lock = threading.Lock()
        self.lines = Lifelines(rendezvous.host, self._line_ended)
        self._ledger = Ledger(rendezvous, LOG, self._heard)

    @property
    def newest(self) -> Epoch | None:
        """See :class:`Director`."""
        return self._roster.epoch

    def interrupted(self) -> bool:
        """See :class:`Director`."""
        if self._evicted:
            self._leave_now()
        return self._newest_abrupt > self._entered

    def join(self, lines: tuple[str, ...]) -> None:
        """See :class:`Director`."""
        self._later(Ready(replica=self._replica, token=self.token, lines=lines))

    def wait(self, passage: Passage, timeout_seconds: float | None = None) -> Epoch | None:
        """See :class:`Director`."""
        return self._await(lambda: passage.next_epoch(self._roster, self.token), timeout_seconds)

    def epoch(self, number: int) -> Epoch:
        """See :class:`Director`."""
        epoch = self._await(lambda: self._roster.epochs.get(number), None)
        assert epoch is not None, "without a timeout it waits until there is one"
        return epoch

    def _await(self, found: Callable[[], Epoch | None], timeout_seconds: float | None) -> Epoch | None:
        since = told = time.monotonic()
        with self._changed:
            while True:
                if self._evicted:
                    self._leave_now()
                epoch, now = found(), time.monotonic()
                if epoch is None and self._roster.finished and now - since > _BEGIN_ANEW_SECONDS:
                    _log.warning("replica %d ends: the job has finished without it", self._replica)
                    raise JobFinished(0)
                if epoch is not None or (timeout_seconds is not None and now - since > timeout_seconds):
                    return epoch
                self._changed.wait(1.0 if timeout_seconds is None else min(1.0, timeout_seconds))
                if now - told > _TELL_EVERY_SECONDS:
                    told = now
                    _log.warning("replica %d has waited %.0f s for other replicas", self._replica, now - since)

    def entered(self, epoch: Epoch) -> None:
        """See :class:`Director`."""
        self._entered = epoch.number
        lines = {}
        for member in epoch.members:
            for index, address in enumerate(member.lines):
                is_peer, is_mate = index == self._index, member.replica == self._replica
                if is_peer is not is_mate:  # ends of others show in those of their replica
                    lines[f"{member.replica}/{member.token}/{index}"] = address
        self.lines.hold(lines)

    def failed(self, complaint: Again) -> None:
        """See :class:`Director`."""
        self._later(complaint)

    def silent(self, members: tuple[Member, ...], why: str) -> None:
        """See :class:`Director`."""
        for each in members:
            self._later(Gone(replica=each.replica, token=each.token, why=why))

    def share_out(self, quotas: Quotas) -> None:
        """See :class:`Director`."""
        self._later(quotas)

    def ends(self) -> None:
        """See :class:`Director`."""
        self._closed = True

    def leave(self, standing: str, *, finished: bool) -> None:
        """See :class:`Director`."""
        self._finished = finished
        why = "it has finished" if finished else "its program ended"
        entry = Gone(replica=self._replica, token=self.token, why=why, standing=standing, finished=finished)
        writer = threading.Thread(target=self._write, args=(entry,), daemon=True)
        writer.start()
        writer.join(_LEAVE_SECONDS)
        if not writer.is_alive() and self._all_have_left(_FAREWELL_SECONDS):  # else nobody hears of it, or trains on
            self._ledger.join(_LEAVE_SECONDS)  # that entry is the last that it reads
        self.lines.close()

    def _all_have_left(self, timeout_seconds: float) -> bool:
        """Whether nobody needs this process or its store any more.

        Of those that finish together one may hear of the last step later than the others, from them or from the log.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_needed(), timeout_seconds)

    def _is_needed(self) -> bool:
        return self.token not in self._roster.gone or (self._finished and self._roster.is_at_work)

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
        self._later(Gone(replica=int(replica), token=token, why=why))

    def _later(self, entry: Entry) -> None:
        threading.Thread(target=self._write, args=(entry,), name="evenkeel-log-entry", daemon=True).start()

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
            self._newest_abrupt = self._roster.newest_abrupt
            is_gone = self.token in self._roster.gone
            if is_gone and not self._closed and not self._evicted:
                self._evicted = self._roster.gone[self.token]
                threading.Thread(target=_end_soon, name="evenkeel-eviction", daemon=True).start()
            self._changed.notify_all()
        if isinstance(entry, Gone | Again | Quotas):
            _log.info("%s", _words(entry))
        return self._is_needed()


def new_token() -> str:
    """Tells the processes of a replica from those that it had before."""
    return secrets.token_hex(8)


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
