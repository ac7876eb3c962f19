"""Serves state tables over HTTP: look-ups, scans, SQL and changes. Needs ``keyed-streams[server]``."""

from keyed.base.extras import extra as _extra

with _extra("server", "serving state tables"):
    from keyed.tables.server.access import Access, Limits
    from keyed.tables.server.http_server import serve, serving
    from keyed.tables.server.peers import Peers

__all__ = [
    "Access",
    "Limits",
    "Peers",
    "serve",
    "serving",
]
