"""Runs the HTTP interface."""

from __future__ import annotations

import uvicorn

from keyed.errors import DefinitionError
from keyed.views.server.access import Access, is_loopback
from keyed.views.server.app import Limits, make_app
from keyed.views.state_tables import StateTables

__all__ = ["serve"]


def serve(
    tables: StateTables,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    access: Access | None = None,
    limits: Limits | None = None,
) -> None:
    """Serve tables over HTTP until the process is told to stop.

    Args:
        tables: The tables. They are kept level elsewhere: call `StateTables.start` before.
        host: Address to listen at. Any other than loopback needs ``access`` with tokens and the names of the host.
        port: Port.
        access: Who may ask for what.
        limits: What a request may cost.

    Raises:
        DefinitionError: The address is not loopback, and everybody could ask for everything.
    """
    access = access or Access()
    if not is_loopback(host) and not access.tokens:
        raise DefinitionError(
            f"host={host!r} can be reached from other machines: give access=Access(tokens={{...}}), or serve on "
            "127.0.0.1"
        )
    uvicorn.run(make_app(tables, access=access, limits=limits), host=host, port=port, log_level="warning")
