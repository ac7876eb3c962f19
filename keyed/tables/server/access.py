"""Access to the HTTP interface: tokens for tables, allowed hosts and origins, limits, and refused requests.

Each token has a share of the limits of concurrent requests.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from itertools import count

import attrs
from starlette.responses import JSONResponse, Response

from keyed.errors import DefinitionError


@attrs.frozen(kw_only=True)
class Limits:
    """Limits of requests.

    Attributes:
        page: Greatest value of ``limit``, and its default for the entries and the history of a key; for scans and
            timers the default is 100 at most.
        body: Bytes of a request's body.
        sql_seconds: Seconds that a query may run.
        sql_megabytes: Megabytes that the process of a query may have.
        sql_rows: Rows in the answer to a query.
        answer: Bytes of an answer.
        scan_seconds: Seconds that a scan of a table may take.
        wait_seconds: Seconds for which a request waits while the maximal number of others run, before it is refused:
            a query with 429, others with 503.
        streams: Number of concurrent streams of changes.
        send_seconds: Seconds that a client may take to read; then its connection is closed.
        request_seconds: Seconds in which a request, header and body, has to arrive.
        connections: Connections served at a time, fewer if the process may open fewer files; enforced by `serve` and
            `serving`.
        fresh_seconds: Seconds since the last successful poll of the changelogs up to which ``/ready`` is 200.
    """

    page: int = 1_000
    body: int = 64 << 10
    sql_seconds: float = 10.0
    sql_megabytes: int = 1_024
    sql_rows: int = 10_000
    answer: int = 16 << 20
    scan_seconds: float = 10.0
    wait_seconds: float = 1.0
    streams: int = 2_000
    send_seconds: float = 30.0
    request_seconds: float = 10.0
    connections: int = 2_100
    fresh_seconds: float = 30.0


ALL_TABLES = "*"
_TOKEN = re.compile(r"[\x21-\x7e]{16,512}")
#: A state, or operator.state.
_TABLE = re.compile(r"\*|[A-Za-z0-9_.-]{1,257}")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
#: Seconds that a browser stays logged in.
SESSION_SECONDS = 30 * 24 * 3_600


def checked_token(token: str) -> str:
    """Return a token.

    Raises:
        DefinitionError: It is too short or has invalid characters.
    """
    if not _TOKEN.fullmatch(token):
        raise DefinitionError(
            "a token must be 16 to 512 visible ASCII characters; create one with `openssl rand -hex 32`"
        )
    return token


def _tokens(tokens: Mapping[str, Iterable[str]]) -> dict[str, frozenset[str]]:
    for token in map(checked_token, tokens):
        for table in tokens[token]:
            if not _TABLE.fullmatch(table):
                raise DefinitionError(
                    f"a token is for tables by their names, or for all by '*'; {table!r} is not a name"
                )
    return {token: frozenset(tables) for token, tables in tokens.items()}


@attrs.frozen
class Access:
    """Access rights of clients.

    Args:
        tokens: Names of tables by token; ``"*"`` is all tables, SQL and timers. Without tokens, on loopback only,
            every client has all rights.
        hosts: Allowed names in ``Host`` of requests, without port, against DNS rebinding.

    Raises:
        DefinitionError: A token is too short or has invalid characters.
    """

    tokens: dict[str, frozenset[str]] = attrs.field(factory=dict, converter=_tokens, repr=False)
    hosts: tuple[str, ...] = _LOOPBACK

    def number_of(self, token: str | None) -> int | None:
        """Return the number of a token, which names it within the server; ``None`` if it is unknown."""
        if not self.tokens:
            return 0
        return None if token is None else _number_of(token, self.tokens)

    def tables_of(self, number: int) -> frozenset[str]:
        """Return the tables of a token by its number."""
        return list(self.tokens.values())[number] if self.tokens else frozenset((ALL_TABLES,))

    def session_of(self, token: str) -> str | None:
        """Return a browser's session for a token, valid for `SESSION_SECONDS`; ``None`` if the token is unknown.

        It is signed with the token and does not contain it; it stays valid when the server is restarted.
        """
        number = self.number_of(token)
        if number is None or not self.tables_of(number):
            return None
        end = str(int(time.time()) + SESSION_SECONDS)
        return f"{end}.{_signature(token, end)}"

    def number_of_session(self, session: str) -> int | None:
        """Return the number of the token of a browser's session; ``None`` if the session is invalid."""
        end, _, signature = session.partition(".")
        if not end.isascii() or not end.isdigit() or int(end[:12]) < time.time():
            return None
        return _number_of(signature, (_signature(token, end) for token in self.tokens))

    def is_host(self, header: str | None) -> bool:
        """Return true if this ``Host`` is allowed."""
        return header is not None and _name_of(header).lower() in self.hosts

    def is_origin(self, header: str | None, host: str) -> bool:
        """Return true if a request has no ``Origin``, or one that is the origin of its ``Host``.

        A page at another port of this machine is another origin, although browsers send it the same cookies.
        """
        if header is None:
            return True
        scheme, _, origin = header.partition("://")
        port = _DEFAULT_PORTS.get(scheme)
        return port is not None and origin.removesuffix(port).lower() == host.removesuffix(port).lower()


def is_loopback(host: str) -> bool:
    """Return true if an address is a loopback address."""
    return host in _LOOPBACK


def _number_of(secret: str, known: Iterable[str]) -> int | None:
    """Return the number of a secret among the known ones; ``None`` if it is unknown.

    All are compared, each in constant time, so the duration reveals nothing about them.
    """
    latest = None
    for number, each in enumerate(known):
        if hmac.compare_digest(each.encode(), secret.encode()):
            latest = number
    return latest


def _signature(token: str, end: str) -> str:
    return hmac.digest(token.encode(), f"keyed session until {end}".encode(), "sha256").hex()


def _name_of(host: str) -> str:
    """Return the name or address in a ``Host``, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


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
