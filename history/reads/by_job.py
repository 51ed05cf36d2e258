"""Rows of several jobs, read by one query and told apart."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from sqlalchemy import Row

Item = TypeVar("Item")
ByJob = defaultdict[str, tuple[Item, ...]]
"""What each job has, by its id; nothing for all others."""


def by_job(rows: Iterable[Row[Any]], item_of: Callable[[Row[Any]], Item]) -> ByJob[Item]:
    """What rows stand for, in their order, by their column ``job_id``."""
    found = defaultdict[str, list[Item]](list)
    for row in rows:
        found[row.job_id].append(item_of(row))
    return defaultdict(tuple, {job_id: tuple(items) for job_id, items in found.items()})
