"""Runs the HTTP interface."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import uvicorn

from keyed.errors import DefinitionError
from keyed.views.server.access import Access, is_loopback
from keyed.views.server.app import Limits, make_app
from keyed.views.state_tables import StateTables


def serve(
    tables: StateTables,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    access: Access | None = None,
    limits: Limits | None = None,
    page: bool | Path = False,
    status: Callable[[], Mapping[str, Any]] = dict,
    ready: Callable[[str], object] = lambda _: None,
) -> None:
    """Serve tables over HTTP until the process is told to stop.

    Args:
        tables: The tables. They are kept level elsewhere: call `StateTables.start` before.
        host: Address to listen at. Any other than loopback needs ``access`` with tokens and the names of the host.
        port: Port; 0 is any that is free.
        access: Who may ask for what.
        limits: What a request may cost.
        page: Whether to serve a page at ``/``, or which, as in `make_app`.
        status: What the job says of itself, as in `make_app`.
        ready: Called with the address, such as ``http://127.0.0.1:8765``, when it listens.

    Raises:
        DefinitionError: The address is not loopback, and everybody could ask for everything; or it is in use.
    """
    access = access or Access()
    if not is_loopback(host) and not access.tokens:
        raise DefinitionError(
            f"host={host!r} can be reached from other machines: give access=Access(tokens={{...}}), or serve on "
            "127.0.0.1"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise DefinitionError(f"host={host!r}, port={port}: {error.strerror}; give another port") from error
    with listening:
        name = f"[{host}]" if ":" in host else host
        ready(f"http://{name}:{listening.getsockname()[1]}")
        app = make_app(tables, access=access, limits=limits, page=page, status=status)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
