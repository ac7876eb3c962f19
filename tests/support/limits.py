"""Limits of servers in tests, and ports for them."""

from __future__ import annotations

import random
import socket
from typing import Any

from keyed.tables.server import Limits

#: Ports from here to below 32,768 are not given to clients' connections by Linux, nor those below 49,152 by macOS.
_FIRST, _LAST = 20_000, 32_767


def patient(**limits: Any) -> Limits:
    """Return limits with times that a loaded machine does not exceed, except for the given ones."""
    names = ("sql_seconds", "scan_seconds", "wait_seconds", "send_seconds", "request_seconds", "fresh_seconds")
    return Limits(**{**dict.fromkeys(names, 300.0), **limits})


def free_ports(count: int) -> list[int]:
    """Return different ports that are free, and that no connection of another process gets until they are used.

    The system gives port 0 one of those that it also gives to clients.
    """
    found: list[int] = []
    while len(found) < count:
        port = random.randint(_FIRST, _LAST)
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def free_port() -> int:
    """Return a port that is free; see `free_ports`."""
    return free_ports(1)[0]
