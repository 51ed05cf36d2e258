"""Keyset pages, newest first: a token names the last item shown, so pages neither skip nor repeat while rows arrive."""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import Row, text
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


class Listing(NamedTuple):
    """What is paged through: a token of one listing would skip or repeat items of another without anybody noticing.

    Attributes:
        item_id: Column that names the items, and so what they are.
        job_id: Whose they are; empty = all jobs'.
    """

    item_id: str
    job_id: str = ""


class Place(NamedTuple):
    """Where in a listing: when the last item shown was, and its id."""

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


def token_of(listing: Listing, place: Place) -> str:
    """The token of the page that begins after a place."""
    document = [*listing, place.at.isoformat(), place.item_id]
    return base64.urlsafe_b64encode(json.dumps(document).encode()).decode()


def place_of(token: str, listing: Listing) -> Place | None:
    """After which place a page begins; None for the empty token, which asks for the first page.

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
        place = Place(datetime.fromisoformat(at), item_id)
        if place.at.tzinfo is None or not isinstance(item_id, str) or "\x00" in item_id:
            raise ValueError
        item_id.encode()  # half of a surrogate pair is no text
    except (binascii.Error, ValueError, TypeError, RecursionError):
        raise PageError("unknown page_token: pass next_page_token of the previous response, or nothing") from None
    if (kind, job_id) != listing:
        raise PageError(
            "page_token is of another list: pass next_page_token only to the call that gave it, with the same job_id, "
            "or nothing for the first page"
        )
    return place


def page_of(listing: Listing, items: Sequence[Item], places: Sequence[Place], limit: int) -> Page[Item]:
    """The page of at most ``limit`` items when one more than that was asked for."""
    tokens = tuple(token_of(listing, place) for place in places[:limit])
    return Page(items=tuple(items[:limit]), next_page_token=tokens[-1] if len(items) > limit else "", tokens=tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedQuery(Generic[Item]):
    """A query whose items are read page by page.

    Attributes:
        query: A SELECT without conditions whose main relation is called ``x``.
        item_of: What a row stands for.
        at: Column of ``x`` that says when.
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
        listing, limit = Listing(self.item_id, job_id), limit_of(page_size)
        after = place_of(page_token, listing)
        # Only conditions that apply, so that PostgreSQL's planner can walk the index of (time, id) and stop early.
        conditions = ["x.job_id = :job_id"] if job_id else []
        if after is not None:
            conditions.append(f"(x.{self.at}, x.{self.item_id}) < (:at, :item_id)")
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        order = f"ORDER BY x.{self.at} DESC, x.{self.item_id} DESC LIMIT :limit"
        asked = {"job_id": job_id} | (after._asdict() if after else {}) | {"limit": limit + 1}
        rows = (await connection.execute(text(f"{self.query} {where} {order}"), asked)).all()
        places = [Place(getattr(row, self.at), getattr(row, self.item_id)) for row in rows]
        return page_of(listing, [self.item_of(row) for row in rows], places, limit)
