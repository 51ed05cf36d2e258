"""Pages of messages end before gRPC refuses them, and together they are the whole list."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.history.reads.paging import Cursor, Listing, Page, PageError, decode_cursor, limit_of, page_of
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.services.scheduler.adapters.api.pages import page_of_messages

LISTING = Listing(item_id="job_id")
START = datetime(2026, 1, 1, tzinfo=UTC)


class Listed:
    """A list of texts by their lengths, paged as the history does."""

    def __init__(self, lengths: list[int]) -> None:
        self.items = [(f"{number:06}", "x" * length) for number, length in enumerate(lengths)]
        self.most_read = 0

    async def __call__(self, *, page_size: int, page_token: str) -> Page[tuple[str, str]]:
        limit, cursor = limit_of(page_size), decode_cursor(page_token, LISTING)
        left = [item for item in self.items if cursor is None or item[0] > cursor.item_id][: limit + 1]
        self.most_read = max(self.most_read, min(limit, len(left)))
        cursors = [Cursor(listing=LISTING, at=START + timedelta(days=1), item_id=number) for number, _ in left]
        return page_of(left, cursors, limit)


def message(item: tuple[str, str]) -> pb.Job:
    return pb.Job(job_id=item[0], name=item[1])


@given(st.lists(st.integers(0, 300), max_size=40), st.integers(0, 50), st.integers(1, 9))
def test_the_pages_are_the_list_whatever_fits_into_one(lengths: list[int], page_size: int, most_at_once: int) -> None:
    listed, seen, token = Listed(lengths), list[str](), ""
    while True:
        page, token = asyncio.run(
            page_of_messages(listed, page_size, token, message, most_at_once=most_at_once, most_bytes=500)
        )
        assert len(page) <= (page_size or 100)
        assert len(page) == 1 or sum(one.ByteSize() for one in page) <= 500
        seen += [one.job_id for one in page]
        if not token:
            break
        assert page, "a page that is not the last has something"
    assert seen == [number for number, _ in listed.items]
    assert listed.most_read <= most_at_once


def test_a_size_that_cannot_be_is_refused() -> None:
    with pytest.raises(PageError, match="page_size -1"):
        asyncio.run(page_of_messages(Listed([1]), -1, "", message))
