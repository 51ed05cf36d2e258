"""Keyset pages, newest first: a token names the last item shown, so pages neither skip nor repeat while rows arrive."""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from sqlalchemy import Row, TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000


class PageError(ValueError):
    """The page size or the page token cannot be."""


Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[Item]):
    """Some items, and the token of the next page: empty on the last one.

    ``tokens`` has for each item that of the page that begins after it, for whoever shows only a part of the page.
    """

    items: tuple[Item, ...]
    next_page_token: str
    tokens: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What is paged through: a token of one listing would skip or repeat items of another without anybody noticing.

    Attributes:
        item_id: Column that names the items, and so what they are.
        job_id: Whose they are; empty = all jobs'.
    """

    item_id: str
    job_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The last item of a page: when it was, its id, and of what listing."""

    listing: Listing
    at: datetime
    item_id: str


def limit_of(page_size: int) -> int:
    """The number of items for a requested page size; 0 means the default, more than the maximum means the maximum.

    Raises:
        PageError: The size is negative.
    """
    if page_size < 0:
        raise PageError(f"page_size {page_size}: must be 0 (for {DEFAULT_PAGE_SIZE}) or more")
    return min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)


def encode_cursor(cursor: Cursor) -> str:
    """The page token of a cursor."""
    document = [cursor.listing.item_id, cursor.listing.job_id, cursor.at.isoformat(), cursor.item_id]
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode()


def decode_cursor(token: str, listing: Listing) -> Cursor | None:
    """The cursor of a page token; None for the empty one, which asks for the first page.

    Args:
        token: From the previous page.
        listing: What is asked for now.

    Raises:
        PageError: The token is not one of ours, or of another listing.
    """
    if not token:
        return None
    try:
        kind, job_id, at, item_id = json.loads(base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True))
        moment = datetime.fromisoformat(at)
        if moment.tzinfo is None or not isinstance(item_id, str) or "\x00" in item_id:
            raise ValueError
        item_id.encode()  # half of a surrogate pair is no text
    except (binascii.Error, ValueError, TypeError, RecursionError):
        raise PageError("unknown page_token: pass next_page_token of the previous response, or nothing") from None
    if (kind, job_id) != (listing.item_id, listing.job_id):
        raise PageError(
            "page_token is of another list: pass next_page_token only to the call that gave it, with the same job_id, "
            "or nothing for the first page"
        )
    return Cursor(listing=listing, at=moment, item_id=item_id)


def page_query(
    query: str, listing: Listing, *, at: str, limit: int, cursor: Cursor | None
) -> tuple[TextClause, dict[str, object]]:
    """The statement and its parameters for one page, and one item more to see whether there is a next.

    Only conditions that apply are written, so that the planner can walk the index of (time, id) and stop early.

    Args:
        query: A SELECT without conditions whose main relation is called ``x``.
        listing: Its column ``item_id`` breaks ties.
        at: Column of ``x`` that says when.
        limit: Items on the page.
        cursor: The last item of the previous page.
    """
    conditions = []
    parameters: dict[str, object] = {"limit": limit + 1}
    if listing.job_id:
        conditions.append("x.job_id = :job_id")
        parameters["job_id"] = listing.job_id
    if cursor is not None:
        conditions.append(f"(x.{at}, x.{listing.item_id}) < (:at, :item_id)")
        parameters |= {"at": cursor.at, "item_id": cursor.item_id}
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    return text(f"{query} {where} ORDER BY x.{at} DESC, x.{listing.item_id} DESC LIMIT :limit"), parameters


def page_of(items: Sequence[Item], cursors: Sequence[Cursor], limit: int) -> Page[Item]:
    """The page of at most ``limit`` items when one more than that was asked for."""
    tokens = tuple(encode_cursor(cursor) for cursor in cursors[:limit])
    last = tokens[-1] if len(items) > limit else ""
    return Page(items=tuple(items[:limit]), next_page_token=last, tokens=tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedQuery(Generic[Item]):
    """A query whose items are read page by page.

    Attributes:
        query: As in :func:`page_query`; its rows have the columns ``at`` and ``item_id``.
        item_of: What a row stands for.
        at: As in :func:`page_query`.
        item_id: Column of ``x`` that names the items and breaks ties.
    """

    query: str
    item_of: Callable[[Row[Any]], Item]
    at: str
    item_id: str

    async def page(
        self, connection: AsyncConnection, *, job_id: str = "", page_size: int = 0, page_token: str = ""
    ) -> Page[Item]:
        """One page, newest items first.

        Args:
            connection: Open connection.
            job_id: Only this job's; empty = all.
            page_size: At most so many; 0 = 100.
            page_token: From the previous page; empty = first page.

        Raises:
            PageError: The size is negative, or the token not one of this list.
        """
        listing = Listing(item_id=self.item_id, job_id=job_id)
        limit, cursor = limit_of(page_size), decode_cursor(page_token, listing)
        statement, parameters = page_query(self.query, listing, at=self.at, limit=limit, cursor=cursor)
        rows = (await connection.execute(statement, parameters)).all()
        cursors = [
            Cursor(listing=listing, at=getattr(row, self.at), item_id=getattr(row, self.item_id)) for row in rows
        ]
        return page_of([self.item_of(row) for row in rows], cursors, limit)
