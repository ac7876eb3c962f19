"""Refused requests, and the limit of concurrent ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager


class Refused(Exception):
    """A request that is answered with an error of its own."""

    def __init__(self, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.headers = status, kind, headers


class Places:
    """Limit of concurrent requests. A further one waits for a while and is then refused.

    Args:
        most: Requests at a time.
        wait_seconds: Seconds that one waits for a place.
        status: Status of the refusal.
        what: The work, for the message.
    """

    def __init__(self, most: int, wait_seconds: float, status: int, what: str) -> None:
        self._places = asyncio.Semaphore(most)
        self._most, self._seconds, self._status, self._what = most, wait_seconds, status, what

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Take a place.

        Raises:
            Refused: None became free in time.
        """
        try:
            async with asyncio.timeout(self._seconds):
                await self._places.acquire()
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
            self._places.release()
