"""Pages of messages end before gRPC refuses them, and together they are the whole list."""

import asyncio
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.history.reads.paging import Listing, Page, PageError, Place, limit_of, page_of, place_of
from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.services.scheduler.adapters.api.pages import page_of_messages

LISTING = Listing("job_id")
START = datetime(2026, 1, 1, tzinfo=UTC)


class Listed:
    """A list of texts by their lengths, paged as the history does."""

    def __init__(self, lengths: list[int]) -> None:
        self.items = [(f"{number:06}", "x" * length) for number, length in enumerate(lengths)]
        self.most_read = 0

    async def __call__(self, *, page_size: int, page_token: str) -> Page[tuple[str, str]]:
        limit, after = limit_of(page_size), place_of(page_token, LISTING)
        left = [item for item in self.items if after is None or item[0] > after.item_id][: limit + 1]
        self.most_read = max(self.most_read, min(limit, len(left)))
        return page_of(LISTING, left, [Place(START, number) for number, _ in left], limit)


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
