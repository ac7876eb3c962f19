"""A schema registry for tests: the part of Confluent's HTTP protocol that its serializers and deserializers use."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class SchemaRegistry(ThreadingHTTPServer):
    """Keeps schemas in memory.

    Attributes:
        schemas: Schemas by number.
        subjects: Numbers of the versions of each subject.
        password: If given, requests have to log in as ``user``.
        refuse: If given, called with the headers of a request; it returns status and body of the answer.
    """

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.password: str | None = None
        self.refuse: Callable[[str], tuple[int, Any]] | None = None
        super().__init__(("127.0.0.1", 0), _Request)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def registered(self, subject: str, schema: dict[str, Any]) -> int:
        """Return the number of a schema of a subject, which is registered if it is new."""
        found = [number for number, each in self.schemas.items() if each == schema]
        number = found[0] if found else len(self.schemas) + 1
        self.schemas[number] = schema
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def described(self, subject: str, number: int) -> dict[str, Any]:
        """Return a version of a subject."""
        version = self.subjects[subject].index(number) + 1
        return {"subject": subject, "version": version, "id": number, **self.schemas[number]}


class _Request(BaseHTTPRequestHandler):
    server: SchemaRegistry

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _missing(self, code: int, what: str) -> None:
        self._answer(404, {"error_code": code, "message": f"{what} not found"})

    def _may(self) -> bool:
        import base64

        if self.server.refuse is not None:
            self._answer(*self.server.refuse(str(self.headers)))
            return False
        wanted = self.server.password
        if wanted is None:
            return True
        header = "Basic " + base64.b64encode(f"user:{wanted}".encode()).decode()
        if self.headers.get("Authorization") == header:
            return True
        self._answer(401, {"error_code": 401, "message": "Unauthorized"})
        return False

    def do_GET(self) -> None:
        if not self._may():
            return
        registry = self.server
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if parts[:2] == ["schemas", "ids"]:
            schema = registry.schemas.get(int(parts[2]))
            if schema is None:
                self._missing(40403, "Schema")
            else:
                self._answer(200, schema)
        elif parts[0] == "subjects" and parts[2:3] == ["versions"] and parts[1] in registry.subjects:
            versions = registry.subjects[parts[1]]
            number = versions[-1] if parts[3] == "latest" else versions[int(parts[3]) - 1]
            self._answer(200, registry.described(parts[1], number))
        else:
            self._missing(40401, "Subject")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._may():
            return
        registry = self.server
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        schema = {name: body[name] for name in ("schema", "schemaType", "references") if body.get(name)}
        if parts[0] == "subjects" and parts[2:] == ["versions"]:
            number = registry.registered(parts[1], schema)
            self._answer(200, registry.described(parts[1], number))
        elif parts[0] == "subjects" and len(parts) == 2:
            found = [n for n in registry.subjects.get(parts[1], ()) if registry.schemas[n] == schema]
            if found:
                self._answer(200, registry.described(parts[1], found[0]))
            else:
                self._missing(40403, "Schema")
        else:
            self._missing(404, "Path")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def schema_registry():
    """Run a registry while the context is open."""
    with SchemaRegistry() as registry:
        thread = threading.Thread(target=registry.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield registry
        finally:
            registry.shutdown()
            thread.join()
