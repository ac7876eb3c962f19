"""Refused requests, and the limit of concurrent ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager


class Refused(Exception):
    """A refused request, with the status and text of its answer."""

    def __init__(self, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.headers = status, kind, headers


class ConcurrencyLimit:
    """A limit of concurrent requests. A further one waits with a time limit, and is then refused.

    Args:
        most: Requests at a time.
        wait_seconds: Seconds that a request waits.
        status: Status of the refusal.
        what: The work, for the message.
    """

    def __init__(self, most: int, wait_seconds: float, status: int, what: str) -> None:
        self._semaphore = asyncio.Semaphore(most)
        self._most, self._seconds, self._status, self._what = most, wait_seconds, status, what

    @asynccontextmanager
    async def acquired(self, *, is_refused: bool = True) -> AsyncIterator[None]:
        """Wait until the request may run, and count it while the context is open.

        Args:
            is_refused: The wait has the time limit. The work of a stream that is open waits without one.

        Raises:
            Refused: No other request ended in time.
        """
        try:
            async with asyncio.timeout(self._seconds if is_refused else None):
                await self._semaphore.acquire()
        except TimeoutError as error:
            raise Refused(
                self._status,
                "Busy",
                f"{self._most} {self._what} run already, and none ended in {self._seconds:g} s; try again later",
                {"retry-after": "1"},
            ) from error
        try:
            yield
        finally:
            self._semaphore.release()
