"""Serves state tables over HTTP: look-ups, scans, SQL and changes. Needs ``keyed[server]``."""

from keyed.views.server.access import Access
from keyed.views.server.app import Limits, make_app
from keyed.views.server.serving import ServeOptions, serve, serving

__all__ = ["Access", "Limits", "ServeOptions", "make_app", "serve", "serving"]
