"""A small S3 server for tests, in a thread of the process: conditional puts, ranges, pages of listings, faults.

Objects are in memory, and one lock makes each request atomic. It does not check signatures. A fault is a function that
is called before and after each request.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import attrs

from tests.support.http_server import Handler, http_server

#: A secret that keyed must not print.
SECRET = "sesame-0123456789"
KEY_ID = "AKIAEXAMPLE"
_DATE = "2026-01-01T00:00:00.000Z"


@attrs.frozen
class Answer:
    """An answer of the server.

    Attributes:
        status: The status; 0 closes the connection without an answer, and -1 keeps it open without one.
        body: The body.
        headers: Headers.
        cut: Close the connection after so many bytes of the answer; negative, before so many at its end.
    """

    status: int
    body: bytes = b""
    headers: dict[str, str] = attrs.field(factory=dict)
    cut: int | None = None


def failure(status: int, code: str) -> Answer:
    """Return the answer to a request that failed. It has the fields of a real server's, with the key id."""
    text = f"<Error><Code>{code}</Code><Message>no</Message><AWSAccessKeyId>{KEY_ID}</AWSAccessKeyId></Error>"
    return Answer(status, text.encode(), {"Content-Type": "application/xml"})


@attrs.define
class S3Server:
    """The server.

    Attributes:
        objects: The objects of its one bucket, ``bucket``, by key.
        requests: Number of requests, by kind: PUT, GET, HEAD, LIST, DELETE.
        before: Called with kind and key before a request is carried out; if it returns an answer, that is sent instead.
        after: Called with kind, key and answer after it; its result is sent.
        before_headers: Called with the request's headers before all else; if it returns an answer, that is sent.
        page: Maximal number of names in a page of a listing.
        conditional: Whether conditional puts are refused; some servers ignore the condition.
        url: The endpoint.
    """

    objects: dict[str, bytes] = attrs.field(factory=dict)
    requests: Counter[str] = attrs.field(factory=Counter)
    before: Callable[[str, str], Answer | None] = lambda _kind, _key: None
    after: Callable[[str, str, Answer], Answer] = lambda _kind, _key, answer: answer
    before_headers: Callable[[str], Answer | None] = lambda _headers: None
    page: int = 1000
    conditional: bool = True
    url: str = ""
    _lock: threading.Lock = attrs.field(factory=threading.Lock)
    _ended: threading.Event = attrs.field(factory=threading.Event)

    @property
    def options(self) -> dict[str, Any]:
        """Options of a client of this server."""
        return {
            "endpoint": self.url,
            "allow_http": True,
            "region": "us-east-1",
            "access_key_id": KEY_ID,
            "secret_access_key": SECRET,
        }

    def answer(self, method: str, target: str, headers: Any, body: bytes) -> Answer:
        """Carry out a request."""
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        _, bucket, *rest = unquote(parts.path).split("/", 2)
        key = rest[0] if rest else ""
        kind = {"POST": "DELETE"}.get(method, "LIST" if "list-type" in query else method)
        key = query.get("prefix", "") if kind == "LIST" else key
        with self._lock:
            self.requests[kind] += 1
            given = self.before(kind, key)
            if given is not None:
                return given
            if bucket != "bucket":
                return self.after(kind, key, failure(404, "NoSuchBucket"))
            return self.after(kind, key, self._done(method, kind, key, query, headers, body))

    def _done(self, method: str, kind: str, key: str, query: dict[str, str], headers: Any, body: bytes) -> Answer:
        if kind == "LIST":
            return self._listed(query)
        if method == "POST":
            keys = [name.decode() for name in re.findall(rb"<Key>([^<]*)</Key>", body)]
            for each in keys:
                self.objects.pop(each, None)
            done = "".join(f"<Deleted><Key>{escape(each)}</Key></Deleted>" for each in keys)
            return Answer(200, f"<DeleteResult>{done}</DeleteResult>".encode())
        if kind == "PUT":
            if self.conditional and headers.get("If-None-Match") == "*" and key in self.objects:
                return failure(412, "PreconditionFailed")
            self.objects[key] = body
            return Answer(200, headers={"ETag": f'"{hash(body):x}"'})
        if kind == "DELETE":
            self.objects.pop(key, None)
            return Answer(204)
        found = self.objects.get(key)
        if found is None:
            return failure(404, "NoSuchKey")
        known = {"ETag": f'"{hash(found):x}"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        if method == "HEAD":
            return Answer(200, headers={**known, "Content-Length": str(len(found))})
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("Range") or ""):
            start = int(match[1])
            end = min(int(match[2] or len(found) - 1), len(found) - 1)
            if start >= len(found):
                return failure(416, "InvalidRange")
            known["Content-Range"] = f"bytes {start}-{end}/{len(found)}"
            return Answer(206, found[start : end + 1], known)
        return Answer(200, found, known)

    def _listed(self, query: dict[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token", query.get("start-after", ""))
        contents: list[str] = []
        prefixes: set[str] = set()
        last, more = "", False
        for key in sorted(key for key in self.objects if key.startswith(prefix) and key > after):
            if len(contents) + len(prefixes) == self.page:
                more = True
                break
            head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if found:
                prefixes.add(prefix + head + delimiter)
            else:
                contents.append(
                    f"<Contents><Key>{escape(key)}</Key><LastModified>{_DATE}</LastModified>"
                    f"<ETag>1</ETag><Size>{len(self.objects[key])}</Size></Contents>"
                )
            last = key
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if more else ""
        common = "".join(f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in prefixes)
        return Answer(
            200,
            f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{''.join(contents)}{common}"
            "</ListBucketResult>".encode(),
            {"Content-Type": "application/xml"},
        )


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run a server on loopback."""
    server = S3Server()

    def respond(handler: Handler) -> None:
        body = handler.read_body()
        answer = server.before_headers(str(handler.headers))
        answer = answer or server.answer(handler.command, handler.path, handler.headers, body)
        if answer.status > 0 and answer.cut is None:
            handler.send(answer.status, answer.headers, answer.body)
            return
        handler.close_connection = True
        if answer.cut is not None:
            headers = {"Content-Length": str(len(answer.body)), **answer.headers}
            head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            handler.wfile.write((f"HTTP/1.1 {answer.status} OK\r\n{head}\r\n".encode() + answer.body)[: answer.cut])
        elif answer.status < 0:
            server._ended.wait()

    with http_server(respond) as server.url:
        try:
            yield server
        finally:
            server._ended.set()
