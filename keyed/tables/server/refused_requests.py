"""Refused requests, and limits of concurrent ones, of which each token has a share."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from itertools import count

from starlette.responses import JSONResponse, Response

#: The number of the token of the request, in its task and those that it starts.
ASKING: ContextVar[int] = ContextVar("ASKING", default=0)
#: Seconds since its last request for which a token counts: it may have been refused, and try again.
_ACTIVE_SECONDS = 10.0


class Refused(Exception):
    """A refused request, with the status and text of its answer."""

    def __init__(self, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.headers = status, kind, headers


def error_response(
    status: int, kind: str, message: str, headers: Mapping[str, str] | None = None, **place: int
) -> Response:
    """Return the answer with an error, and with its line and column, if it has them."""
    return JSONResponse({"error": {"type": kind, "message": message, **place}}, status_code=status, headers=headers)


class BadRequest(Refused):
    """A refused request with a wrong parameter or body."""

    def __init__(self, message: str) -> None:
        super().__init__(400, "DefinitionError", message)


class Slots:
    """Slots for work, of which each token may use a share.

    While several tokens ask for slots, each may use as many as the others. A token that is alone may use seven eighths,
    and all of them if there is no other token: so the first request of another one finds a slot.

    Args:
        most: Number of slots.
        tokens: Number of tokens that may ask for them.

    Attributes:
        used: Used slots by token.
    """

    def __init__(self, most: int, tokens: int) -> None:
        self._most = most
        self._alone = most if tokens <= 1 else max(1, most - max(1, most // 8))
        self._asked: dict[int, float] = {}
        self.used: Counter[int] = Counter()

    def ask(self, token: int) -> None:
        """Count a token as one of those that share the slots."""
        self._asked[token] = time.monotonic()

    def share(self) -> int:
        """Return the number of slots that a token may use now."""
        since = time.monotonic() - _ACTIVE_SECONDS
        self._asked = {token: at for token, at in self._asked.items() if at > since}
        sharing = len(self._asked.keys() | self.used.keys()) or 1
        return max(1, min(self._alone, -(-self._most // sharing)))

    def is_free(self, token: int) -> bool:
        """Return true if a token may use a further slot."""
        return self.used.total() < self._most and self.used[token] < self.share()

    def release(self, token: int) -> None:
        """Stop using a slot."""
        self.used[token] -= 1
        if not self.used[token]:
            del self.used[token]


class ConcurrencyLimit:
    """A limit of concurrent requests, shared by tokens. A further one waits with a time limit, and is then refused.

    Of the tokens that wait, the one with the fewest running requests is next.

    Args:
        most: Requests at a time.
        wait_seconds: Seconds that a request waits.
        status: Status of the refusal.
        what: The work, for the message.
        tokens: Number of tokens that may make requests.
    """

    def __init__(self, most: int, wait_seconds: float, status: int, what: str, tokens: int = 1) -> None:
        self._slots = Slots(most, tokens)
        self._seconds, self._status, self._what = wait_seconds, status, what
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}
        self._numbers = count(1)
        #: The number of the last request of a token that ran.
        self._last: Counter[int] = Counter()

    @asynccontextmanager
    async def acquired(self, seconds: float | None = None) -> AsyncIterator[None]:
        """Wait until the request may run, and count it while the context is open.

        Args:
            seconds: Seconds that it waits, by default those of all requests.

        Raises:
            Refused: No other request ended in time.
        """
        token, seconds = ASKING.get(), self._seconds if seconds is None else seconds
        try:
            async with asyncio.timeout(seconds):
                await self._wait(token)
        except TimeoutError as error:
            raise Refused(
                self._status,
                "Busy",
                f"{self._what}: none ended in {seconds:g} s, and a token may have {self._slots.share()} at a time now; "
                "try again later",
                {"retry-after": "1"},
            ) from error
        try:
            yield
        finally:
            self._release(token)

    async def _wait(self, token: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(token, deque()).append(turn)
        self._grant()
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._release(token)
            raise

    def _release(self, token: int) -> None:
        self._slots.release(token)
        self._grant()

    def _grant(self) -> None:
        """Let those that wait run, as far as there are slots."""
        while self._waiting:
            for token, turns in list(self._waiting.items()):
                while turns and turns[0].done():
                    turns.popleft()
                if turns:
                    self._slots.ask(token)
                else:
                    del self._waiting[token]
            may = [token for token in self._waiting if self._slots.is_free(token)]
            if not may:
                return
            token = min(may, key=lambda each: (self._slots.used[each], self._last[each]))
            self._slots.used[token] += 1
            self._last[token] = next(self._numbers)
            self._waiting[token].popleft().set_result(None)
