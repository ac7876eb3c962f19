"""Runs the HTTP interface until the program is stopped, or in a thread beside a job."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict, Unpack

import uvicorn

from keyed.base.background import Background, close_in_children
from keyed.errors import DefinitionError
from keyed.tables.server.access import Access, is_loopback
from keyed.tables.server.app import make_app
from keyed.tables.server.connections import Connections, report_no_descriptors
from keyed.tables.server.event_stream import Watch
from keyed.tables.server.limits import Limits
from keyed.tables.server.peers import Peers
from keyed.tables.state_tables import StateTables

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
