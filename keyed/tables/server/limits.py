"""Limits of the HTTP interface."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Limits:
    """Limits of requests.

    Attributes:
        page: Greatest value of ``limit``, and its default for the entries and the history of a key; for scans and
            timers the default is 100 at most.
        body: Bytes of a request's body.
        sql_seconds: Seconds that a query may run.
        sql_megabytes: Megabytes that the process of a query may have.
        sql_rows: Rows in the answer to a query.
        answer: Bytes of an answer.
        scan_seconds: Seconds that a scan of a table may take.
        wait_seconds: Seconds for which a request waits while the maximal number of others run, before it is refused:
            a query with 429, others with 503.
        streams: Number of concurrent streams of changes.
        send_seconds: Seconds that a client may take to read; then its connection is closed.
        request_seconds: Seconds in which a request, header and body, has to arrive.
        connections: Connections served at a time, fewer if the process may open fewer files; enforced by `serve` and
            `serving`.
        fresh_seconds: Seconds since the last successful poll of the changelogs up to which ``/ready`` is 200.
    """

    page: int = 1_000
    body: int = 64 << 10
    sql_seconds: float = 10.0
    sql_megabytes: int = 1_024
    sql_rows: int = 10_000
    answer: int = 16 << 20
    scan_seconds: float = 10.0
    wait_seconds: float = 1.0
    streams: int = 2_000
    send_seconds: float = 30.0
    request_seconds: float = 10.0
    connections: int = 2_100
    fresh_seconds: float = 30.0
