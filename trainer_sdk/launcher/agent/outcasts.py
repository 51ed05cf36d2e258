"""Hears in the job's log who was counted out: a rank that hangs is not going to end by itself."""

import os
import threading

from evenkeel.trainer_sdk.groups.store.ledger import Ledger
from evenkeel.trainer_sdk.groups.store.rendezvous import Rendezvous
from evenkeel.trainer_sdk.replicas.membership.log_director import LOG
from evenkeel.trainer_sdk.replicas.membership.roster import Gone, entry_from_text


def tell_outcasts(stores: str, job_id: str, pipe: int) -> int:
    """Write the token of each replica that was counted out, a line each; for a process of its own, until it is killed.

    Args:
        stores: The job's.
        job_id: Job.
        pipe: Where to write.
    """

    def heard(text: str) -> bool:
        entry = entry_from_text(text)
        if isinstance(entry, Gone) and not entry.standing:  # who goes in order leaves one
            os.write(pipe, f"{entry.token}\n".encode())
        return True

    Ledger(Rendezvous(stores, job_id), LOG, heard)
    threading.Event().wait()
    return 0
