"""A PostgreSQL connection whose every wait has an end, also when the server is frozen or the network swallows packets.

The server enforces its own time limits only while it runs, and the driver answers a cancelled wait with up to ten
seconds of waiting for the server to agree. Cutting the socket from our side ends both at once.
"""

import asyncio
import os
import socket
from contextlib import suppress
from typing import Any

from psycopg import AsyncConnection
from psycopg.abc import RV, PQGen
from psycopg.pq import TransactionStatus

# A healthy server takes a cancellation in milliseconds.
_CANCEL_SECONDS = 0.5


class BoundedConnection(AsyncConnection[Any]):
    """Cuts its own socket when a wait takes too long: the waiter gets an OperationalError."""

    wait_limit_seconds = 15.0

    async def wait(self, gen: PQGen[RV], *arguments: Any, **options: Any) -> RV:
        """See :class:`psycopg.AsyncConnection`; one wait is one round trip to the server."""
        cut = asyncio.get_running_loop().call_later(self.wait_limit_seconds, self._cut)
        try:
            return await super().wait(gen, *arguments, **options)
        finally:
            cut.cancel()

    async def _try_cancel(self, *, timeout: float = _CANCEL_SECONDS) -> None:  # noqa: ASYNC109 - the driver's name
        """The driver's hook for a cancelled wait; afterwards it waits for the statement to end."""
        await super()._try_cancel(timeout=min(timeout, _CANCEL_SECONDS))
        if not self.closed:
            asyncio.get_running_loop().call_later(_CANCEL_SECONDS, self._cut_if_busy)

    def _cut_if_busy(self) -> None:
        if not self.closed and self.pgconn.transaction_status == TransactionStatus.ACTIVE:
            self._cut()

    def _cut(self) -> None:
        with suppress(OSError), socket.socket(fileno=os.dup(self.pgconn.socket)) as ours:
            ours.shutdown(socket.SHUT_RDWR)


async def connect_bounded(*arguments: Any, wait_limit_seconds: float, **options: Any) -> BoundedConnection:
    """A connection whose waits end after ``wait_limit_seconds``; the other arguments are those of psycopg."""
    connection = await BoundedConnection.connect(*arguments, **options)
    connection.wait_limit_seconds = wait_limit_seconds
    return connection
