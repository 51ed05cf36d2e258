"""Pages that a gRPC message holds: they end by bytes, wherever the history's own page ends by items."""

from collections.abc import Awaitable, Callable
from typing import Any

from evenkeel.history.reads.paging import Page, limit_of
from evenkeel.layouts.codec import M

MOST_BYTES = 2 * 1024 * 1024
"""Of a page; gRPC takes 4 MiB, and no single item has half of that."""


async def page_of_messages(
    read: Callable[..., Awaitable[Page[Any]]],
    page_size: int,
    page_token: str,
    to_message: Callable[[Any], M],
    *,
    most_at_once: int = 100,
    most_bytes: int = MOST_BYTES,
) -> tuple[list[M], str]:
    """The next items of a list as messages: at least one if there is one, and no more than fit.

    Args:
        read: A page of the list, by ``page_size`` and ``page_token``.
        page_size: At most so many; 0 = as many as the history's lists have.
        page_token: From the previous page; empty = first page.
        to_message: Makes a message of an item.
        most_at_once: Read at most so many items at a time: what does not fit any more was read in vain.
        most_bytes: All messages together.

    Returns:
        The messages, and the token of the next page: empty on the last one.

    Raises:
        PageError: The size is negative, or the token not one of this list.
    """
    messages: list[M] = []
    size, token, num_bytes = limit_of(page_size), page_token, 0
    while True:
        page = await read(page_size=min(most_at_once, size - len(messages)), page_token=token)
        for item, after in zip(page.items, page.tokens, strict=True):
            message = to_message(item)
            num_bytes += message.ByteSize()
            if messages and num_bytes > most_bytes:
                return messages, token
            messages.append(message)
            token = after
        if not page.next_page_token or len(messages) >= size:
            return messages, page.next_page_token
