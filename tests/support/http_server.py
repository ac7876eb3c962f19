"""An HTTP server on loopback, in threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """A handler whose server answers requests of each method in one place."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def read_body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body if self.command != "HEAD" else b"")

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class _Threads(ThreadingHTTPServer):
    daemon_threads = True


@contextmanager
def http_server(answer: Callable[[Handler], None]) -> Iterator[str]:
    """Run a server that calls a function for each request; yield its address."""
    methods = {f"do_{method}": answer for method in ("GET", "HEAD", "PUT", "POST", "DELETE")}
    with _Threads(("127.0.0.1", 0), type("AnyMethod", (Handler,), methods)) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_address[1]}"
        finally:
            running.shutdown()
            thread.join()
