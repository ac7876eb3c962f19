"""The HTTP interface of state tables, as an ASGI application.

    GET  /health                                   whether the tables have a batch, and which
    GET  /metrics                                  counters, in Prometheus' text format
    GET  /openapi.json                             this interface
    GET  /status                                   the newest batch, and what the job says of itself
    GET  /batches                                  the same as server-sent events, one a batch
    GET  /tables                                   names, kinds and types
    GET  /tables/{table}                           entries: key, prefix, from, to, windows, order, limit, after, as_of
    GET  /tables/{table}/changes                   server-sent events: key, prefix, after, or the header Last-Event-ID
    GET  /tables/{table}/keys/{key}                what the table holds for a key: entry, namespace, as_of
    GET  /tables/{table}/history/{key}             versions of an entry: entry, namespace
    GET  /timers                                   pending timers: key, limit, as_of
    POST /sql                                      {"query": ..., "parameters": [...], "as_of": ...}
    POST /session                                  {"token": ...}: a cookie that stands for the token, for browsers
    DELETE /session                                takes it back
    GET  /, /page/                                 the page, if there is one

Keys are text, or JSON where the keys of the table are not text. An answer is a JSON object; ``position`` says of which
batch it is. An error is ``{"error": {"type": ..., "message": ...}}`` with a status of 4xx or 5xx.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import attrs
import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from keyed.errors import (
    ChangelogError,
    DefinitionError,
    EncodingError,
    HistoryCompacted,
    KeyedError,
    KeyTypeError,
    QueryFailed,
    TableNotFound,
)
from keyed.views.json_values import as_json, batch_or_time, bounds_of, key_of
from keyed.views.server.access import ALL_TABLES, SESSION_SECONDS, Access
from keyed.views.server.event_stream import BatchEvents, ChangeEvents, EventStream, Watch
from keyed.views.server.openapi import OPENAPI
from keyed.views.server.page import page_routes
from keyed.views.server.sql_process import SqlProcesses
from keyed.views.state_table import NOT_GIVEN, StateTable
from keyed.views.state_tables import StateTables

_log = logging.getLogger(__name__)
#: The cookie of a browser.
_COOKIE = "keyed_session"


@attrs.frozen(kw_only=True)
class Limits:
    """What one request may cost.

    Attributes:
        page: Entries in one answer.
        body: Bytes of a request's body.
        sql_seconds: Seconds that a query may run.
        sql_megabytes: Megabytes that the process of a query may have.
        sql_rows: Rows in the answer to a query.
        streams: Streams of changes at a time.
        send_seconds: Seconds that a reader of changes may take to take one; then it is dropped.
    """

    page: int = 1_000
    body: int = 64 << 10
    sql_seconds: float = 10.0
    sql_megabytes: int = 1_024
    sql_rows: int = 10_000
    streams: int = 2_000
    send_seconds: float = 30.0


#: Statuses of our errors; of a subclass that of the first base class that is named.
_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (TableNotFound, 404),
    (HistoryCompacted, 410),
    (DefinitionError, 400),
    (EncodingError, 400),
    (KeyTypeError, 400),
    (QueryFailed, 400),
    (ChangelogError, 400),
    (KeyedError, 500),
)


class _Refused(Exception):
    """A request that is answered with an error of its own."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


@attrs.define(eq=False, repr=False)
class _Server:
    """Answers requests."""

    tables: StateTables
    access: Access
    limits: Limits
    sql: SqlProcesses
    job_status: Callable[[], Mapping[str, Any]]
    watch: Watch
    requests: Counter[tuple[str, int]] = attrs.field(factory=Counter, init=False)

    # Answers ----------------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        batch = self.tables.batch
        said: dict[str, Any] = {"status": "ok" if batch else "waiting", "batch": batch}
        try:
            lag = await run_in_threadpool(self.tables.lag)
            said["lag"] = {"records": lag.records, "seconds": lag.seconds}
        except DefinitionError:
            # They are only read here: the program that keeps them level knows.
            pass
        except KeyedError as error:
            said |= {"status": "the changelog cannot be read", "error": str(error)}
        return JSONResponse(said, status_code=200 if said["status"] == "ok" else 503)

    async def metrics(self, request: Request) -> Response:
        self._tables_open_to(request)
        lines = [
            "# TYPE keyed_tables_batch gauge",
            f"keyed_tables_batch {self.tables.batch}",
            "# TYPE keyed_tables_rebuilds_total counter",
            f"keyed_tables_rebuilds_total {self.tables.rebuilds}",
            "# TYPE keyed_streams gauge",
            f"keyed_streams {self.watch.streams}",
            "# TYPE keyed_streams_dropped_total counter",
            f"keyed_streams_dropped_total {self.watch.dropped}",
            "# TYPE keyed_streams_reset_total counter",
            f"keyed_streams_reset_total {self.watch.resets}",
            "# TYPE keyed_requests_total counter",
        ]
        lines += [
            f'keyed_requests_total{{route="{route}",status="{status}"}} {count}'
            for (route, status), count in sorted(self.requests.items())
        ]
        if self.tables.batch:
            for name, position in self.tables.positions.items():
                lines += [
                    f'keyed_tables_watermark_milliseconds{{operator="{name}"}} {position.watermark}',
                    f'keyed_tables_processing_time_milliseconds{{operator="{name}"}} {position.processing_time}',
                ]
        return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(OPENAPI)

    def _described(self) -> dict[str, Any]:
        positions = self.tables.positions if self.tables.batch else {}
        return {"batch": self.tables.batch, "positions": positions, "job": dict(self.job_status())}

    async def status(self, request: Request) -> Response:
        self._tables_open_to(request)
        return await _answer(self._described)

    async def batches(self, request: Request) -> ASGIApp:
        self._tables_open_to(request)
        self._check_streams()
        return self._stream(BatchEvents(lambda: self.tables.batch, self._described))

    async def open_session(self, request: Request) -> Response:
        try:
            token = msgspec.json.decode(await self._body(request), type=_SessionRequest).token
        except msgspec.DecodeError as error:
            raise _Refused(400, "DefinitionError", f"the body holds no token: {error}") from error
        session = self.access.session_of(token)
        if session is None:
            raise _Refused(401, "Unauthorized", "the token is unknown")
        response = Response(status_code=204)
        secure = request.url.scheme == "https"
        response.set_cookie(
            _COOKIE, session, SESSION_SECONDS, path="/", secure=secure, httponly=True, samesite="strict"
        )
        return response

    async def close_session(self, request: Request) -> Response:
        response = Response(status_code=204)
        response.delete_cookie(_COOKIE, path="/", httponly=True, samesite="strict")
        return response

    async def list_tables(self, request: Request) -> Response:
        open_to = self._tables_open_to(request)

        def work() -> Any:
            found = []
            for name, table in self.tables.items():
                if ALL_TABLES in open_to or name in open_to:
                    schema, first = table.schema, table.first()
                    found.append(
                        {
                            "name": name,
                            "operator": table.operator,
                            "kind": schema.kind,
                            "key": first and type(first.key).__name__,
                            "types": table.types,
                            "clock": schema.ttl and schema.ttl["time_domain"],
                        }
                    )
            return {"tables": found, "positions": self.tables.positions if found else {}}

        return await _answer(work)

    async def scan(self, request: Request) -> Response:
        table = self._table(request)
        query = self._query(request, "key", "prefix", "from", "to", "windows", "order", "limit", "after", "as_of")
        limit = self._limit(query)
        order = query.get("order", "asc")
        if order not in ("asc", "desc"):
            raise _Refused(400, "DefinitionError", f"order={order!r:.140} must be asc or desc")

        def work() -> Any:
            first = table.first()
            scan = table.scan(
                **bounds_of(query, first and first.key),
                limit=limit,
                after=query.get("after"),
                as_of=batch_or_time(query.get("as_of"), "as_of"),
                reverse=order == "desc",
            )
            return {"entries": list(scan), "next": scan.token, "position": scan.position}

        return await _answer(work)

    async def get(self, request: Request) -> Response:
        table = self._table(request)
        query = self._query(request, "entry", "namespace", "as_of")

        def work() -> Any:
            key, entry, namespace = _place(table, request, query)
            answer = table.query(key, entry, namespace=namespace, as_of=batch_or_time(query.get("as_of"), "as_of"))
            return {"key": key, "value": answer.value, "position": answer.position}

        return await _answer(work)

    async def history(self, request: Request) -> Response:
        table = self._table(request)
        query = self._query(request, "entry", "namespace")

        def work() -> Any:
            key, entry, namespace = _place(table, request, query)
            versions = islice(table.history(key, entry, namespace=namespace), self.limits.page)
            return {"key": key, "versions": list(versions)}

        return await _answer(work)

    async def timers(self, request: Request) -> Response:
        if ALL_TABLES not in self._tables_open_to(request):
            raise _Refused(403, "Forbidden", "timers are for tokens of all tables")
        query = self._query(request, "key", "limit", "as_of", "operator")
        limit = self._limit(query)

        def work() -> Any:
            table = self.tables.timers_of(query["operator"]) if "operator" in query else self.tables.timers
            timers: Iterator[Any] = table.scan(as_of=batch_or_time(query.get("as_of"), "as_of"))
            if "key" in query:
                example = next(timers, None)
                key = key_of(query["key"], example and example.key, "key")
                timers = iter(table.get(key, as_of=batch_or_time(query.get("as_of"), "as_of")))
            return {"timers": [timer._asdict() for timer in islice(timers, limit)]}

        return await _answer(work)

    async def run_sql(self, request: Request) -> Response:
        open_to = self._tables_open_to(request)
        body = await self._body(request)
        try:
            asked = msgspec.json.decode(body, type=_SqlRequest)
        except msgspec.DecodeError as error:
            raise _Refused(400, "DefinitionError", f"the body is no query: {error}") from error
        names = None if ALL_TABLES in open_to else sorted(open_to)
        answer = await self.sql.run(asked.query, asked.parameters, names, asked.as_of, self.limits.sql_rows)
        return Response(answer, media_type="application/json")

    async def changes(self, request: Request) -> ASGIApp:
        table = self._table(request)
        query = self._query(request, "key", "prefix", "after")
        self._check_streams()

        def work() -> Any:
            first = table.first()
            example = first and first.key
            key = key_of(query["key"], example, "key") if "key" in query else NOT_GIVEN
            prefix = key_of(query["prefix"], example, "prefix") if "prefix" in query else None
            after = request.headers.get("last-event-id") or query.get("after")
            return table.subscribe(key, prefix=prefix, after=after)

        return self._stream(ChangeEvents(await run_in_threadpool(work)))

    def _check_streams(self) -> None:
        if self.watch.streams >= self.limits.streams:
            raise _Refused(503, "Busy", f"there are {self.watch.streams} streams already; try again later")

    def _stream(self, events: BatchEvents | ChangeEvents) -> EventStream:
        return EventStream(events, self.watch, self.limits.send_seconds)

    # What requests have in common ---------------------------------------------------------------------------------

    def route(self, path: str, answer: Callable[[Request], Awaitable[ASGIApp]], method: str = "GET") -> Route:
        """Return a route whose errors are answered."""

        async def endpoint(request: Request) -> ASGIApp:
            response: ASGIApp
            status = 200
            try:
                response = await answer(request)
                status = getattr(response, "status_code", 200)
            except _Refused as error:
                status, response = error.status, _error(error.status, error.kind, str(error))
            except KeyedError as error:
                status = next(status for kind, status in _STATUSES if isinstance(error, kind))
                response = _error(status, type(error).__name__, str(error))
                if status == 500:
                    _log.error("%s %s", path, error)
            except TimeoutError as error:
                status, response = 503, _error(503, "TimeoutError", str(error))
            self.requests[path, status] += 1
            return response

        return Route(path, endpoint, methods=[method])

    def _tables_open_to(self, request: Request) -> frozenset[str]:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        open_to = self.access.tables_of(token.strip() if kind.casefold() == "bearer" else None)
        if open_to is None and _COOKIE in request.cookies:
            open_to = self.access.tables_of_session(request.cookies[_COOKIE])
        if open_to is None:
            raise _Refused(401, "Unauthorized", "give the header Authorization: Bearer TOKEN, or log in on the page")
        return open_to

    def _table(self, request: Request) -> StateTable:
        name = request.path_params["table"]
        open_to = self._tables_open_to(request)
        if ALL_TABLES not in open_to and name not in open_to:
            raise _Refused(403, "Forbidden", f"the token is not for table {name!r:.140}")
        return self.tables[name]

    @staticmethod
    def _query(request: Request, *known: str) -> dict[str, str]:
        query = dict(request.query_params)
        unknown = sorted(query.keys() - set(known))
        if unknown:
            raise _Refused(
                400, "DefinitionError", f"{unknown[0]!r:.140} is no parameter; there are: {', '.join(known)}"
            )
        return query

    def _limit(self, query: dict[str, str]) -> int:
        text = query.get("limit", str(min(100, self.limits.page)))
        if not text.isascii() or not text.isdigit() or not 1 <= int(text[:10]) <= self.limits.page:
            raise _Refused(400, "DefinitionError", f"limit={text!r:.140} must be 1 to {self.limits.page}")
        return int(text)

    async def _body(self, request: Request) -> bytes:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > self.limits.body:
                raise _Refused(413, "DefinitionError", f"the body has more than {self.limits.body} bytes")
        return body


class _SqlRequest(msgspec.Struct, forbid_unknown_fields=True):
    query: str
    parameters: list[Any] | dict[str, Any] | None = None
    as_of: int | datetime | None = None


class _SessionRequest(msgspec.Struct, forbid_unknown_fields=True):
    token: str


class _Guard:
    """Refuses requests that a page of another origin made a browser send."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
            if not self._access.is_host(headers.get(b"host")):
                response = _error(421, "WrongHost", "the request is for another host; name it with --host-name")
                return await response(scope, receive, send)
            if not self._access.is_origin(headers.get(b"origin")):
                return await _error(403, "Forbidden", "pages of other origins are refused")(scope, receive, send)
        return await self._app(scope, receive, send)


def make_app(
    tables: StateTables,
    *,
    access: Access | None = None,
    limits: Limits | None = None,
    sql: SqlProcesses | None = None,
    page: bool | Path = False,
    status: Callable[[], Mapping[str, Any]] = dict,
) -> Starlette:
    """Return the ASGI application that serves tables. `serve` runs it with uvicorn.

    Args:
        tables: The tables. They are kept level elsewhere: call `StateTables.start` before.
        access: Who may ask for what; everybody by default.
        limits: What a request may cost.
        sql: The processes that queries run in; by default new ones over the tables' folder.
        page: Whether the page that shows all tables is served at ``/``; or the folder of another page, with
            ``index.html``, which finds the parts of that under ``/page/``.
        status: What the job says of itself, such as rows so far, for ``/status`` and the page: names and plain values.
    """
    access, limits = access or Access(), limits or Limits()
    sql = sql or SqlProcesses(tables.path, limits.sql_seconds, limits.sql_megabytes)
    server = _Server(tables, access, limits, sql, status, Watch(tables))
    routes = [
        server.route("/health", server.health),
        server.route("/metrics", server.metrics),
        server.route("/openapi.json", server.openapi),
        server.route("/status", server.status),
        server.route("/batches", server.batches),
        server.route("/tables", server.list_tables),
        server.route("/tables/{table}", server.scan),
        server.route("/tables/{table}/changes", server.changes),
        server.route("/tables/{table}/keys/{key:path}", server.get),
        server.route("/tables/{table}/history/{key:path}", server.history),
        server.route("/timers", server.timers),
        server.route("/sql", server.run_sql, "POST"),
        server.route("/session", server.open_session, "POST"),
        server.route("/session", server.close_session, "DELETE"),
        *page_routes(page),
    ]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await sql.close()

    app = Starlette(
        routes=routes,
        middleware=[Middleware(_Guard, access=access)],
        exception_handlers={HTTPException: _no_route},
        lifespan=lifespan,
    )
    app.state.watch = server.watch
    return app


async def _answer(work: Callable[[], Any]) -> Response:
    """Return the answer that a function gives in a thread, so that others are answered meanwhile."""
    body = await run_in_threadpool(lambda: as_json(work()))
    return Response(body, media_type="application/json", headers={"cache-control": "no-store"})


def _error(status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": {"type": kind, "message": message}}, status_code=status, headers=headers)


def _no_route(request: Request, error: Exception) -> Response:
    """Answer a request for what is not there, or by another method than it has."""
    assert isinstance(error, HTTPException)
    kind = error.detail.replace(" ", "")
    return _error(error.status_code, kind, f"{request.method} {request.url.path}: see /openapi.json", error.headers)


def _place(table: StateTable, request: Request, query: dict[str, str]) -> tuple[Any, Any, Any]:
    """Return the key, entry and namespace that a request names."""
    first = table.first()
    key = key_of(request.path_params["key"], first and first.key, "key")
    entry = key_of(query["entry"], first and first.entry, "entry") if "entry" in query else NOT_GIVEN
    return key, entry, _namespace(query.get("namespace"))


def _namespace(text: str | None) -> Any:
    if text is None:
        return None
    try:
        given = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return _tuples(given)


def _tuples(given: Any) -> Any:
    return tuple(map(_tuples, given)) if isinstance(given, list) else given
