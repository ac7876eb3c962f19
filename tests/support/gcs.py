"""A server of Google's protocol for tests: fake-gcs-server, built from its source by Go, on loopback.

Its objects, listings and conditions are those of Google's JSON API, and clients of `object_store` speak the XML API, of
which it has no conditional puts and no starts of listings. A proxy before it translates these two; it decides nothing.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit
from urllib.request import Request, urlopen
from xml.sax.saxutils import escape

from tests.support.faulty import FaultyStore, faulty
from tests.support.limits import free_port
from tests.support.programs import NoServer, build_by_go
from tests.support.waiting import until

MODULE, VERSION = "github.com/fsouza/fake-gcs-server", "v1.56.1"

Answer = tuple[int, dict[str, str], bytes]


class XmlProxy(FaultyStore):
    """Translates puts and listings of the XML API to the JSON API; the others pass."""

    def passed(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        """Return the answer of the server to a request of the XML API."""
        headers = headers | {"host": self.backend}
        url = urlsplit(target)
        bucket, _, key = url.path.lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        if method == "PUT":
            given = {"uploadType": "media", "name": unquote(key)}
            if "x-goog-if-generation-match" in headers:
                given["ifGenerationMatch"] = headers["x-goog-if-generation-match"]
            path = f"/upload/storage/v1/b/{bucket}/o?{urlencode(given, quote_via=quote)}"
            return _put(super().passed("POST", path, headers, body))
        if not key and "list-type" in query:
            names = {"prefix": "prefix", "delimiter": "delimiter", "start-after": "startOffset"}
            names |= {"max-keys": "maxResults", "continuation-token": "pageToken"}
            given = {new: query[name] for name, new in names.items() if query.get(name)}
            path = f"/storage/v1/b/{bucket}/o?{urlencode(given, quote_via=quote)}"
            return _listed(super().passed("GET", path, headers, b""), query.get("start-after"))
        return super().passed(method, target, headers, body)


def _put(answer: Answer) -> Answer:
    status, _, body = answer
    if status != 200:
        return status, {"Content-Type": "application/xml"}, b"<Error><Code>%d</Code></Error>" % status
    found = json.loads(body)
    return 200, {"ETag": found["etag"], "x-goog-generation": found["generation"]}, b""


def _listed(answer: Answer, after: str | None) -> Answer:
    """Return a page of the JSON API as one of the XML API, where it starts behind a name and not with it."""
    status, _, body = answer
    if status != 200:
        return status, {"Content-Type": "application/xml"}, b"<Error><Code>%d</Code></Error>" % status
    page = json.loads(body)
    parts = []
    for each in page.get("items") or ():
        if each["name"] != after:
            cells = {"Key": each["name"], "Size": each["size"], "LastModified": each["updated"], "ETag": each["etag"]}
            parts.append("".join(f"<{name}>{escape(cell)}</{name}>" for name, cell in cells.items()))
    found = "".join(f"<Contents>{part}</Contents>" for part in parts)
    found += "".join(
        f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in page.get("prefixes") or ()
    )
    if page.get("nextPageToken"):
        found += f"<NextContinuationToken>{escape(page['nextPageToken'])}</NextContinuationToken>"
    return 200, {"Content-Type": "application/xml"}, f"<ListBucketResult>{found}</ListBucketResult>".encode()


@contextmanager
def gcs(log: Path) -> Iterator[tuple[FaultyStore, dict[str, Any]]]:
    """Run a server with a bucket ``bucket``, and yield the proxy before it and the options of its clients.

    Args:
        log: File for what it prints.
    """
    port = free_port()
    command = [str(build_by_go(MODULE, VERSION)), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command += ["-backend", "memory", "-public-host", f"127.0.0.1:{port}", "-log-level", "error"]
    with log.open("wb") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file)
        try:
            until(lambda: _has_bucket(f"http://127.0.0.1:{port}/storage/v1/b", server))
            with faulty(f"127.0.0.1:{port}", XmlProxy) as store:
                yield store, {"base_url": store.url, "bearer_token": "test", "allow_http": True}
        finally:
            server.kill()
            server.wait()


def _has_bucket(url: str, server: subprocess.Popen[bytes]) -> bool:
    """Create the bucket. Returns False while the server does not answer."""
    if server.poll() is not None:
        raise NoServer(f"fake-gcs-server has ended with status {server.returncode}")
    body, headers = json.dumps({"name": "bucket"}).encode(), {"Content-Type": "application/json"}
    try:
        urlopen(Request(url, body, headers), timeout=5).close()
    except (URLError, OSError):
        return False
    return True
