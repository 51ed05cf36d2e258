"""The id of a finding, so that whoever reaches the same one gives it the same name and readers drop the second."""

import uuid

_NAMESPACE = uuid.UUID("5d1f3f0c-6d0e-5a52-9d0a-0d2f6c1c7a11")

AGAIN = "again"
"""Names the death of a process that was told as dead before: it was presumed only, and has been heard or seen since."""


def verdict_id(job_id: str, kind: str, *what: object) -> str:
    """The same job, kind and particulars always give the same id.

    Args:
        job_id: Job.
        kind: A word of the detector's vocabulary, such as ``fail_stop``.
        what: Particulars; a death and a return are named by rank and incarnation, and by :data:`AGAIN` if need be.
    """
    return str(uuid.uuid5(_NAMESPACE, "/".join((job_id, kind, *(str(part) for part in what)))))
