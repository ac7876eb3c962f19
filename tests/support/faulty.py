"""A proxy before a real object store, which delays requests, throttles them, or loses their answers.

It counts the requests. The ``Host`` of a request is passed on, because signatures contain it.
"""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

import attrs

from tests.support.http_server import Handler, http_server

#: Headers of one connection, which are not passed on.
_OF_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length", "proxy-connection"}


@attrs.define
class FaultyStore:
    """The proxy.

    Attributes:
        backend: ``host:port`` of the server.
        latency: Seconds by which each request is delayed.
        throttled: Called with the kind of a request: true if it is answered with 503 and not passed on.
        lost: Called with the kind of a request: true if it is passed on, and its answer is not.
        requests: Number of requests that arrived, by kind: PUT, GET, HEAD, LIST, DELETE.
        url: Its address.
    """

    backend: str
    latency: float = 0.0
    throttled: Callable[[str], bool] = lambda _kind: False
    lost: Callable[[str], bool] = lambda _kind: False
    requests: Counter[str] = attrs.field(factory=Counter)
    url: str = ""
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def answer(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Return the answer to a request; status 0 closes the connection without one."""
        kind = _kind(method, target)
        with self._lock:
            self.requests[kind] += 1
            throttled, lost = self.throttled(kind), self.lost(kind)
        if self.latency:
            threading.Event().wait(self.latency)
        if throttled:
            return 503, {"Content-Type": "application/xml"}, b"<Error><Code>SlowDown</Code></Error>"
        answer = self.passed(method, target, headers, body)
        return (0, {}, b"") if lost else answer

    def passed(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Return the answer of the server to a request."""
        connection = http.client.HTTPConnection(self.backend, timeout=300)
        try:
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                if name.lower() not in _OF_CONNECTION:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            got = connection.getresponse()
            data = got.read()
            kept = {name: value for name, value in got.getheaders() if name.lower() not in _OF_CONNECTION}
            if method == "HEAD":
                kept["Content-Length"] = got.getheader("Content-Length") or "0"
            return got.status, kept, data
        finally:
            connection.close()


def _kind(method: str, target: str) -> str:
    """Return the kind of a request of any of the protocols."""
    query = parse_qs(urlsplit(target).query, keep_blank_values=True)
    if "list-type" in query or query.get("comp") == ["list"]:
        return "LIST"
    return "DELETE" if method == "POST" else method


@contextmanager
def faulty(backend: str, kind: type[FaultyStore] = FaultyStore) -> Iterator[FaultyStore]:
    """Run a proxy on loopback.

    Args:
        backend: ``host:port`` of the server.
        kind: Its class.
    """
    store = kind(backend)

    def answer(handler: Handler) -> None:
        headers = {name.lower(): value for name, value in handler.headers.items()}
        status, answered, data = store.answer(handler.command, handler.path, headers, handler.read_body())
        if status:
            handler.send(status, answered, data)
        else:
            handler.close_connection = True

    with http_server(answer) as store.url:
        yield store
