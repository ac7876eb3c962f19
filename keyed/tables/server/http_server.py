"""Runs the HTTP interface until the program is stopped, or in a thread beside a job.

Connections have limits on their number and on the time to send and to read. uvicorn waits for ever for the rest of a
header and for a client that does not read, and accepts connections until the process has no descriptors left. This
module adds limits:

- a request, header and body, has `Limits.request_seconds` to arrive, and then its connection is closed;
- a client has `Limits.send_seconds` to read each part of an answer, and then its connection is aborted: a close would
  wait for the client without a limit;
- if unread answers take too much memory, the client that has been reading the longest is dropped;
- a new connection replaces the oldest one without a complete request, so that unfinished requests do not block other
  clients; if all are being answered, a further request gets a 503;
- a request with both Content-Length and Transfer-Encoding is refused, and its connection is closed.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from struct import pack
from typing import Any, ClassVar, TypedDict, Unpack, cast

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from keyed.base.background import Background, close_in_children
from keyed.errors import DefinitionError
from keyed.tables.server.access import Access, Limits, error_response, is_loopback
from keyed.tables.server.app import make_app
from keyed.tables.server.event_stream import Watch
from keyed.tables.server.peers import Peers
from keyed.tables.state_tables import StateTables

_log = logging.getLogger(__name__)
#: Bytes that are passed to the socket at a time, and the high-water mark of its buffer.
_PART = 64 << 10
#: Number of further connections, which are open only until they are refused.
_SPARE = 16
#: Total bytes of answers that are buffered for clients.
_UNREAD = 64 << 20
#: ``struct linger``: on, for 0 seconds.
_RESET = pack("ii", 1, 0)
_REPEAT_SECONDS = 60.0
#: asyncio's message for a process without free descriptors.
_NO_DESCRIPTORS = "socket.accept() out of system resource"


class LogRateLimit(logging.Filter):
    """Logs a message once a minute, with the number of suppressed repeats, so that clients cannot fill a disk."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return true if a record is logged."""
        now = time.monotonic()
        since, left_out = self._seen.get(str(record.msg), (-_REPEAT_SECONDS, 0))
        if now - since < _REPEAT_SECONDS:
            self._seen[str(record.msg)] = since, left_out + 1
            return False
        self._seen[str(record.msg)] = now, 0
        if left_out:
            record.msg = f"{record.msg} ({left_out} more since the last such line)"
        return True


_log.setLevel(logging.WARNING)
_log.addFilter(LogRateLimit())


class Connections:
    """The connections of a server.

    Args:
        limits: Connections that may be answered at a time, and the time to send and to read.
        on_unread: Called for each connection that is dropped because unread answers take too much memory.

    Attributes:
        limits: The limits.
        most: Connections that may be answered at a time, fewer if the process may open fewer files.
        answering: Connections that are being answered.
        waiting: Connections that wait for a request, the oldest first.
    """

    def __init__(self, limits: Limits, on_unread: Callable[[], None]) -> None:
        self.limits = limits
        self.most = max(1, min(limits.connections, _free_descriptors() * 3 // 4 - _SPARE))
        self.answering = 0
        self.waiting: dict[_Connection, None] = {}
        self._unread: dict[_Connection, int] = {}
        self._on_unread = on_unread

    def protocol(self) -> type[asyncio.Protocol]:
        """Return the protocol of these connections, for ``uvicorn.Config(http=...)``."""

        class Connection(_Connection):
            shared = self

        return Connection

    def close_oldest(self) -> None:
        """Close the connection that has waited longest for its request, if there are too many."""
        if self.waiting and self.answering + len(self.waiting) >= self.most + _SPARE:
            oldest = next(iter(self.waiting))
            del self.waiting[oldest]
            oldest.drop()

    @contextmanager
    def keeping(self, connection: _Connection, size: int) -> Iterator[None]:
        """Buffer bytes for a client. Clients that have read for longer are dropped if the total is too large."""
        while self._unread and sum(self._unread.values()) + size > _UNREAD:
            oldest = next(iter(self._unread))
            del self._unread[oldest]
            oldest.drop()
            self._on_unread()
        self._unread[connection] = size
        try:
            yield
        finally:
            self._unread.pop(connection, None)


def report_no_descriptors(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log errors of an event loop. A lack of descriptors is logged once, and not for each connection."""
    message = context.get("message", "")
    if message == _NO_DESCRIPTORS:
        _log.error("a connection cannot be accepted: %s; raise ulimit -n", context.get("exception"))
    elif "_start_serving" not in message:
        # asyncio retries after a second, for each connection that it could not accept, even on a closed socket.
        loop.default_exception_handler(context)


class _Connection(H11Protocol):
    """One connection."""

    shared: ClassVar[Connections]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._answered_by: ASGIApp = cast("ASGIApp", self.app)
        self.app = cast("Any", self._answer)
        self.logger = _log
        self._is_lost = False
        self._deadline: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.shared.close_oldest()
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._is_lost = True
        self.shared.waiting.pop(self, None)
        for timer in (self._deadline, self._stuck, self.timeout_keep_alive_task):
            if timer is not None:
                timer.cancel()
        # Both refer to this connection, which would wait for the garbage collector, with hundreds of others.
        self.app = self.cycle = cast("Any", None)

    def pause_writing(self) -> None:
        super().pause_writing()
        # The sender has the same time limit and starts later, so it may time out first and be counted.
        self._stuck = self.loop.call_later(self.shared.limits.send_seconds + 1, self.drop)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()

    def drop(self) -> None:
        """Close the connection at once and discard unread data, which the kernel would keep for minutes."""
        connection = self.transport.get_extra_info("socket")
        if connection is not None and connection.fileno() >= 0:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def _wait_for_request(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self.shared.waiting[self] = None
        self._deadline = self.loop.call_later(self.shared.limits.request_seconds, self.drop)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, in parts that the client has to read in time."""
        is_started = is_complete = False

        async def send_in_parts(message: Message) -> None:
            nonlocal is_started, is_complete
            is_started = True
            body = message.get("body", b"")
            if len(body) <= _PART:
                await send(message)
            else:
                with shared.keeping(self, len(body)):
                    last = (len(body) - 1) // _PART * _PART
                    for at in range(0, last, _PART):
                        await send({"type": message["type"], "body": body[at : at + _PART], "more_body": True})
                    await send({**message, "body": body[last:]})
            is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)

        shared = self.shared
        if self._deadline is not None:
            self._deadline.cancel()
        shared.waiting.pop(self, None)
        shared.answering += 1
        try:
            answer = self._answered_by if shared.answering <= shared.most else _busy
            if {name for name, _ in scope["headers"]} >= _LENGTHS:
                answer = _two_lengths
            await answer(scope, receive, send_in_parts)
        except BaseException:
            if is_started:
                self.drop()
            raise
        finally:
            shared.answering -= 1
            # Also a connection that is closing, and waits for the client to read the rest.
            if not self._is_lost:
                self._wait_for_request()
        if not is_complete:
            # A stream whose reader was too slow. At uvicorn's next check the connection is lost.
            self.drop()
            await asyncio.sleep(0)


_busy = error_response(
    503, "Busy", "there are too many connections; try again later", {"connection": "close", "retry-after": "1"}
)
#: A proxy may take another one of them for the end of the body than h11 does (RFC 9112, section 6.1).
_LENGTHS = {b"content-length", b"transfer-encoding"}
_two_lengths = error_response(
    400, "BadRequest", "give Content-Length or Transfer-Encoding, not both", {"connection": "close"}
)


def _free_descriptors() -> int:
    """Return the number of further files that the process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 20
    return soft - sum(1 for _ in Path("/dev/fd").iterdir())


#: Number of connections that wait in the kernel to be accepted; and number that asyncio accepts at a time, before any
#: surplus is closed.
_BACKLOG, _ACCEPTED = 512, 8


class _Server(uvicorn.Server):
    """Ends event streams and queries at shutdown, which may never end otherwise. Logs a lack of descriptors once.

    Attributes:
        is_up: Set when it answers, or when it has ended.
        is_stopping: True if it has to end.
    """

    def __init__(self, config: uvicorn.Config, end: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._end = end
        self.is_up = threading.Event()
        self.is_stopping: Callable[[], bool] = lambda: False

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            super().run(sockets)
        finally:
            self.is_up.set()

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self.is_stopping()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(report_no_descriptors)
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(_BACKLOG)
        self.is_up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._end()
        await super().shutdown(sockets)


class ServeOptions(TypedDict, total=False):
    """The keywords of `serve` and `serving`.

    Attributes:
        host: Address to listen at: loopback, unless ``access`` has tokens and the names of the host.
        port: Port, 8765 by default; 0 chooses a free one.
        access: Access rights.
        limits: Limits of requests.
        page: As in `make_app`.
        status: As in `make_app`.
        peers: As in `make_app`.
    """

    host: str
    port: int
    access: Access | None
    limits: Limits | None
    page: bool | Path
    status: Callable[[], Mapping[str, Any]]
    peers: Peers | None


def serve(
    tables: StateTables, *, ready: Callable[[str], object] = lambda _: None, **options: Unpack[ServeOptions]
) -> None:
    """Serve tables over HTTP until the process is stopped, by Ctrl-C or SIGTERM.

    Args:
        tables: The tables; call `StateTables.start` before.
        ready: Called with the address, such as ``http://127.0.0.1:8765``, when it listens.
        **options: Those of `ServeOptions`.

    Raises:
        DefinitionError: The address is not loopback and there are no tokens; or it is in use.
    """
    server, listening, address = _prepare(tables, **options)
    with listening:
        ready(address)
        server.run(sockets=[listening])


@contextmanager
def serving(tables: StateTables, **options: Unpack[ServeOptions]) -> Iterator[str]:
    """Serve tables over HTTP in a thread while the context is open, and return the address once it answers.

    Arguments are those of `serve`. An error that ends the server is logged, and raised at the end of the context.

    Raises:
        DefinitionError: As in `serve`.
        Exception: The server did not start, or ended with it.
    """
    server, listening, address = _prepare(tables, **options)
    work = Background(f"server at {address}", lambda: server.run([listening]))
    server.is_stopping = lambda: work.is_stopping
    with listening:
        work.start()
        try:
            server.is_up.wait()
            if not server.started:
                work.wait()
            work.check()
            yield address
        finally:
            work.close()
        work.check()


def _prepare(
    tables: StateTables,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    access: Access | None = None,
    limits: Limits | None = None,
    **options: Any,
) -> tuple[_Server, socket.socket, str]:
    """Return a server, its listening socket, and the address of the socket."""
    access, limits = access or Access(), limits or Limits()
    if not is_loopback(host) and not access.tokens:
        raise DefinitionError(
            f"host={host!r} can be reached from other machines: give tokens (access=Access(tokens={{...}}), on the "
            "command line --token-file FILE), or serve on 127.0.0.1"
        )
    app = make_app(tables, access=access, limits=limits, **options)
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 1 << 16:
        raise DefinitionError(f"port={port!r}: give a number from 0 (any free port) to 65535")
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise DefinitionError(f"host={host!r}, port={port}: {error.strerror}; give another port") from error
    close_in_children(listening)
    name = f"[{host}]" if ":" in host else host
    watch: Watch = app.state.watch
    connections = Connections(limits, watch.count_dropped_for_memory)
    # Requests in progress have one second to finish.
    config = uvicorn.Config(
        app,
        http=connections.protocol(),
        ws="none",
        backlog=_ACCEPTED,
        log_level="warning",
        timeout_graceful_shutdown=1,
    )
    return _Server(config, app.state.end), listening, f"http://{name}:{listening.getsockname()[1]}"
