"""Rows become records: columns and fields have the same names. And rows of several jobs, read by one query."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, TypeVar

from sqlalchemy import Row

Item = TypeVar("Item")
ByJob = defaultdict[str, tuple[Item, ...]]
"""What each job has, by its id; nothing for all others."""


def record_of(kind: type[Item], row: Row[Any], **said: Any) -> Item:
    """A record: each field is what ``said`` has for it, or the row's column of the same name."""
    made_of: Any = kind
    names = [each.name for each in fields(made_of) if each.name not in said]
    return kind(**{name: getattr(row, name) for name in names}, **said)


def by_job(rows: Iterable[Row[Any]], item_of: Callable[[Row[Any]], Item]) -> ByJob[Item]:
    """What rows stand for, in their order, by their column ``job_id``."""
    found = defaultdict[str, list[Item]](list)
    for row in rows:
        found[row.job_id].append(item_of(row))
    return defaultdict(tuple, {job_id: tuple(items) for job_id, items in found.items()})
