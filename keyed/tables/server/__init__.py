"""Serves state tables over HTTP: look-ups, scans, SQL and changes. Needs ``keyed-streams[server]``."""

from keyed.base.extras import extra as _extra

with _extra("server", "serving state tables"):
    from keyed.tables.server.access import Access
    from keyed.tables.server.limits import Limits
    from keyed.tables.server.peers import Peers
    from keyed.tables.server.serving import serve, serving

__all__ = [
    "Access",
    "Limits",
    "Peers",
    "serve",
    "serving",
]
