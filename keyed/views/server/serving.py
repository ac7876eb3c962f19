"""Runs the HTTP interface: until the program is told to stop, or in a thread beside a job."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict, Unpack

import uvicorn

from keyed.errors import DefinitionError
from keyed.views.server.access import Access, is_loopback
from keyed.views.server.app import Limits, make_app
from keyed.views.server.event_stream import Watch
from keyed.views.state_tables import StateTables


class _Server(uvicorn.Server):
    """Ends the streams of events when it shuts down: they would go on for ever."""

    def __init__(self, config: uvicorn.Config, watch: Watch) -> None:
        super().__init__(config)
        self._watch = watch

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._watch.end()
        await super().shutdown(sockets)


class ServeOptions(TypedDict, total=False):
    """The keywords of `serve` and `serving`.

    Attributes:
        host: Address to listen at: loopback, unless ``access`` has tokens and the names of the host.
        port: Port, 8765 by default; 0 is any that is free.
        access: Who may ask for what.
        limits: What a request may cost.
        page: Whether to serve a page at ``/``, or which, as in `make_app`.
        status: What the job says of itself, as in `make_app`.
    """

    host: str
    port: int
    access: Access | None
    limits: Limits | None
    page: bool | Path
    status: Callable[[], Mapping[str, Any]]


def serve(
    tables: StateTables, *, ready: Callable[[str], object] = lambda _: None, **options: Unpack[ServeOptions]
) -> None:
    """Serve tables over HTTP until the process is told to stop, by Ctrl-C or SIGTERM.

    Args:
        tables: The tables. They are kept level elsewhere: call `StateTables.start` before.
        ready: Called with the address, such as ``http://127.0.0.1:8765``, when it listens.
        **options: Those of `ServeOptions`.

    Raises:
        DefinitionError: The address is not loopback, and everybody could ask for everything; or it is in use.
    """
    server, listening, address = _prepared(tables, **options)
    with listening:
        ready(address)
        server.run(sockets=[listening])


@contextmanager
def serving(tables: StateTables, **options: Unpack[ServeOptions]) -> Iterator[str]:
    """Serve tables over HTTP in a thread for as long as the context is open, and give the address.

    The arguments and errors are those of `serve`.
    """
    server, listening, address = _prepared(tables, **options)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="keyed-server", daemon=True)
    with listening:
        thread.start()
        try:
            yield address
        finally:
            server.should_exit = True
            thread.join()


def _prepared(
    tables: StateTables,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    access: Access | None = None,
    limits: Limits | None = None,
    page: bool | Path = False,
    status: Callable[[], Mapping[str, Any]] = dict,
) -> tuple[_Server, socket.socket, str]:
    """Return a server, the socket that it is to listen at, and the address of that."""
    access = access or Access()
    if not is_loopback(host) and not access.tokens:
        raise DefinitionError(
            f"host={host!r} can be reached from other machines: give access=Access(tokens={{...}}), or serve on "
            "127.0.0.1"
        )
    app = make_app(tables, access=access, limits=limits, page=page, status=status)
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 1 << 16:
        raise DefinitionError(f"port={port!r}: give a number from 0, which is any that is free, to 65535")
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise DefinitionError(f"host={host!r}, port={port}: {error.strerror}; give another port") from error
    name = f"[{host}]" if ":" in host else host
    # What is being answered gets a second.
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    return _Server(config, app.state.watch), listening, f"http://{name}:{listening.getsockname()[1]}"
