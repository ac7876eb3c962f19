"""The HTTP interface of state tables, as an ASGI application.

    GET  /health                                   status of following, and the error that ended it
    GET  /ready                                    freshness of answers: within
    GET  /metrics                                  counters, in Prometheus' text format
    GET  /openapi.json                             this interface
    GET  /status                                   the newest batch, and the job's own status
    GET  /batches                                  the same as server-sent events, one a batch
    GET  /tables                                   names, kinds and types
    GET  /tables/{table}                           entries: key, prefix, from, to, windows, order, limit, after, as_of
    GET  /tables/{table}/changes                   server-sent events: key, prefix, after, or the header Last-Event-ID
    GET  /tables/{table}/last-changes              the last changes, the newest first: limit, as_of
    GET  /tables/{table}/keys/{key}                the entries of a key: entry, namespace, limit, after, as_of
    GET  /tables/{table}/history/{key}             versions of an entry: entry, namespace, limit, after
    GET  /tables/{table}/arrow                     rows of key groups, for SQL of a peer: groups, has_key, as_of
    GET  /timers                                   pending timers: key, limit, as_of
    POST /sql                                      {"query": ..., "parameters": [...], "as_of": ...}
    GET  /sql/changes                              server-sent events of a push query: query, parameters, after, check
    POST /session {"token": ...}: sets a cookie in place of the token, for browsers
    DELETE /session                                takes it back
    GET  /, /page/                                 the page, if there is one

Of tables with a share of the key groups, ``share=true`` asks for the answer of the share alone; see
`keyed.tables.server.peers`.

Keys are text, or JSON if the keys of the table are not text. An answer is a JSON object; ``position`` names its batch.
An error is ``{"error": {"type": ..., "message": ...}}`` with a status of 4xx or 5xx.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import datetime
from functools import partial
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from urllib.parse import quote, urlencode

import attrs
import msgspec
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from keyed import errors
from keyed.base.background import Status
from keyed.base.closing import closing_on_error
from keyed.base.scratch import ScratchFolder
from keyed.changelog.model import sequence_of
from keyed.codec.keys import decode_key, encode_key
from keyed.codec.state_schema import MAPS, StateSchema
from keyed.formats.json_writer import as_json
from keyed.job.context import Timer
from keyed.tables.follower import shown_groups
from keyed.tables.json_values import (
    batch_or_time,
    bounds_of,
    decoded,
    entry_of,
    key_of,
    namespace_of,
    shown_position,
    window_row,
)
from keyed.tables.operator_view import Position
from keyed.tables.push_worker import PushRequest, described, packed
from keyed.tables.server.access import (
    ALL_TABLES,
    ASKING,
    SESSION_SECONDS,
    Access,
    BadRequest,
    ConcurrencyLimit,
    Limits,
    Refused,
    error_response,
)
from keyed.tables.server.event_stream import (
    BatchEvents,
    ChangeEvents,
    Events,
    EventStream,
    PushedRows,
    PushEvents,
    Watch,
    while_connected,
)
from keyed.tables.server.page import page_routes
from keyed.tables.server.peers import Peers, PeerShares, PeerUnavailable
from keyed.tables.server.sql_process import WorkerProcesses
from keyed.tables.sql import has_key, may_name
from keyed.tables.sql_worker import SqlQuery
from keyed.tables.state_table import NOT_GIVEN, StateTable, scan_token
from keyed.tables.state_tables import StateTables
from keyed.tables.subscription import Change

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
#: Number of concurrent requests, each in a thread.
_ANSWERS = 8
#: The cookie of a browser.
_COOKIE = "keyed_session"
_OPENAPI = Path(__file__).with_name("openapi.json")
_ENDED = (Status.FAILED, Status.CLOSED)
#: The end of a push query.
_PUSH = re.compile(r"\bemit\s+changes\b(\s+limit\s+\d+)?[\s;]*\Z", re.IGNORECASE)
#: A header of requests between servers: the key and entry that show the types of a table's keys, which a share without
#: entries does not have.
_EXAMPLE = "x-keyed-example"


#: HTTP statuses of our errors; a subclass has the status of its first base class that is listed.
_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (errors.TableNotFound, 404),
    (errors.GroupUnavailable, 503),
    (errors.HistoryCompacted, 410),
    (errors.DefinitionError, 400),
    (errors.EncodingError, 400),
    (errors.KeyTypeError, 400),
    (errors.QueryFailed, 400),
    (errors.ChangelogError, 400),
    (errors.KeyedError, 500),
)


class _Server:
    """Answers requests."""

    def __init__(
        self,
        tables: StateTables,
        access: Access,
        limits: Limits,
        job_status: Callable[[], Mapping[str, Any]],
        peers: Peers,
    ) -> None:
        self.tables, self.access, self.limits, self.job_status = tables, access, limits, job_status
        tokens = len(access.tokens)
        self.sql = WorkerProcesses("keyed.tables.sql_worker", str(tables.path), limits=limits, tokens=tokens)
        self.push = WorkerProcesses("keyed.tables.push_worker", limits=limits, tokens=tokens)
        self.peers = PeerShares(peers, limits, tokens)
        self.watch = Watch(tables, limits.streams, tokens)
        self.requests: Counter[tuple[str, int]] = Counter()
        self.concurrency = ConcurrencyLimit(_ANSWERS, limits.wait_seconds, 503, "requests", tokens)

    async def end(self) -> None:
        """End event streams and the processes of queries."""
        await self.watch.end()
        await self.sql.close()
        await self.push.close()

    # Answers ----------------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        # Neither reads state: clients without a token may request these often.
        described = self._following(request)
        return JSONResponse(described, status_code=503 if self.tables.status in _ENDED else 200)

    async def ready(self, request: Request) -> Response:
        within = self._seconds(self._query(request, "within"))
        described = self._following(request)
        is_fresh = False
        if self.tables.status is Status.FOLLOWING:
            age = self.tables.age
            batch = self.tables.batch
            is_fresh = batch >= 0 and age is not None and age <= within and not self.tables.is_gone
            described |= {"batch": batch, "age": age}
        described |= {"ready": is_fresh, "within": within}
        return JSONResponse(described, status_code=200 if is_fresh else 503)

    def _following(self, request: Request) -> dict[str, Any]:
        """Describe following; the error only for tokens of all tables."""
        described: dict[str, Any] = {"status": self.tables.status.value}
        trouble = self.tables.trouble
        if trouble:
            try:
                is_open = ALL_TABLES in self._tables_open_to(request)
            except Refused:
                is_open = False
            described["error"] = trouble if is_open else trouble.partition(":")[0]
        return described

    def _seconds(self, query: dict[str, str]) -> float:
        text = query.get("within", str(self.limits.fresh_seconds))
        try:
            within = float(text)
        except ValueError:
            within = 0.0
        if not 0.0 < within < math.inf:
            raise BadRequest(f"within={text!r:.140}: give seconds, a number above 0")
        return within

    async def metrics(self, request: Request) -> Response:
        self._check_all(request, "metrics")
        status, age = self.tables.status, self.tables.age
        batch, positions = -1, dict[str, Position]()
        # Following may have ended meanwhile, or a store may be damaged: the status is exported all the same.
        with suppress(Exception):
            batch = self.tables.batch
            positions = await self._in_thread(lambda: self.tables.positions) if batch >= 0 else {}
        statuses = GaugeMetricFamily("keyed_tables_status", "Status of following.", labels=["status"])
        for each in Status:
            statuses.add_metric([each.value], each is status)
        requests = CounterMetricFamily("keyed_requests", "Requests that were answered.", labels=["route", "status"])
        for labels, number in sorted(self.requests.items()):
            requests.add_metric(list(map(str, labels)), number)
        families = [
            statuses,
            GaugeMetricFamily("keyed_tables_age_seconds", "Age of the tables.", math.inf if age is None else age),
            CounterMetricFamily("keyed_tables_failures", "Failures of following.", self.tables.failures),
            GaugeMetricFamily("keyed_tables_batch", "Id of the last batch.", batch),
            CounterMetricFamily("keyed_tables_rebuilds", "Rebuilds of the tables.", self.tables.rebuilds),
            GaugeMetricFamily("keyed_streams", "Open streams of changes.", self.watch.streams),
            CounterMetricFamily("keyed_streams_dropped", "Streams that were too slow.", self.watch.dropped),
            CounterMetricFamily("keyed_unread_dropped", "Streams dropped for memory.", self.watch.dropped_for_memory),
            CounterMetricFamily("keyed_streams_reset", "Streams that start again.", self.watch.resets),
            requests,
        ]
        for name in ("watermark", "processing_time"):
            family = GaugeMetricFamily(f"keyed_tables_{name}_milliseconds", "Of the last batch.", labels=["operator"])
            for operator, position in positions.items():
                family.add_metric([operator], getattr(position, name))
            families.append(family)
        text = generate_latest(cast("Any", SimpleNamespace(collect=lambda: families)))
        return Response(text, media_type="text/plain; version=0.0.4")

    async def openapi(self, request: Request) -> Response:
        return FileResponse(_OPENAPI, media_type="application/json")

    def _job(self, open_to: frozenset[str]) -> dict[str, Any]:
        """Return the job's own status; nothing for tokens of some tables."""
        return dict(self.job_status()) if ALL_TABLES in open_to else {}

    def _describe(self, open_to: frozenset[str], job: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the description of the newest batch; for tokens of some tables only the parts about these."""
        job = self._job(open_to) if job is None else job
        return {"batch": self.tables.batch, "positions": self._positions(open_to), "job": job}

    def _positions(self, open_to: frozenset[str]) -> dict[str, Any]:
        positions = self.tables.positions if self.tables.batch >= 0 else {}
        if ALL_TABLES in open_to:
            return positions
        mine = {table.operator for name, table in self.tables.items() if name in open_to}
        return {name: shown_position(at, whole=False) for name, at in positions.items() if name in mine}

    async def status(self, request: Request) -> Response:
        open_to = self._tables_open_to(request)
        self._query(request, "share")
        has_peers = self._may_forward(request)
        if has_peers:
            await self.peers.refresh()

        def work() -> Any:
            described = self._describe(open_to)
            if has_peers:
                return described | {"peers": self.peers.described(described["positions"])}
            return described | ({"server": self.peers.id} if _is_share(request) else {})

        return await self._answer(work)

    async def batches(self, request: Request) -> ASGIApp:
        open_to = self._tables_open_to(request)
        self._check_streams()
        events = BatchEvents(lambda: self.tables.batch, partial(self._job, open_to), partial(self._describe, open_to))
        return self._stream(request, events)

    async def open_session(self, request: Request) -> Response:
        token = (await self._parse(request, _SessionRequest, "the body has no token")).token
        session = self.access.session_of(token)
        if session is None:
            raise Refused(401, "Unauthorized", "the token is unknown")
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
        self._query(request, "share")

        def work() -> Any:
            listed = []
            for name, table in self.tables.share.items():
                if ALL_TABLES in open_to or name in open_to:
                    schema, first = table.schema, table.first()
                    example = {"example": first and _example_text(first.key, first.entry)}
                    listed.append(
                        {
                            "name": name,
                            "operator": table.operator,
                            "kind": schema.kind,
                            "key": first and type(first.key).__name__,
                            "key_columns": table.key_columns,
                            "types": table.types,
                            "entry": _entry_names(schema),
                            "clock": schema.ttl and schema.ttl["time_domain"],
                        }
                        | (example if _is_share(request) else {})
                    )
            return {"tables": listed, "positions": self._positions(open_to) if listed else {}}

        return await self._answer(work)

    async def scan(self, request: Request) -> Response:
        table = self._table(request)
        query = self._query(
            request, "key", "prefix", "from", "to", "windows", "order", "limit", "after", "as_of", "share"
        )
        limit = self._limit(query)
        order = query.get("order", "asc")
        if order not in ("asc", "desc"):
            raise BadRequest(f"order={order!r:.140} must be asc or desc")
        await self._find_example(request, table)

        def work(*, is_share: bool = _is_share(request), as_of: Any = None) -> Any:
            scan = self._table(request, is_share=is_share).scan(
                **bounds_of(query, request.state.example[0]),
                limit=limit,
                after=query.get("after"),
                as_of=batch_or_time(query.get("as_of"), "as_of") if as_of is None else as_of,
                reverse=order == "desc",
                timeout=self.limits.scan_seconds,
            )
            addresses: list[bytes | None] = []

            def entries() -> Iterator[Any]:
                for entry in scan:
                    addresses.append(scan.last)
                    yield entry

            page = {"entries": self._encode(entries()), "next": scan.token}
            page["position"] = self._position(request, scan.position)
            return page | {"addresses": addresses} if is_share else page

        if "key" in query:
            return await self._answer_for_key(request, work)
        return await self._answer_for_all(request, "entries", work, query, limit)

    async def get(self, request: Request) -> Response:
        table = self._table(request)
        query = self._query(request, "entry", "namespace", "as_of", "limit", "after", "share")
        limit = self._limit(query, self.limits.page)
        await self._find_example(request, table)

        def work() -> Any:
            key, entry, namespace = _place(table, request, query)
            as_of = batch_or_time(query.get("as_of"), "as_of")
            kind = _many(table.schema) if entry is NOT_GIVEN else None
            if kind is None:
                if {"limit", "after"} & query.keys():
                    raise BadRequest("limit and after are for keys with several entries")
                answer = table.query(key, entry, namespace=namespace, as_of=as_of)
                position = self._position(request, answer.position)
                return {"key": key, "found": answer.found, "value": answer.value, "position": position}
            scan = table.scan(
                key=key,
                namespace=namespace,
                limit=limit,
                after=query.get("after"),
                as_of=as_of,
                timeout=self.limits.scan_seconds,
            )
            keys: list[Any] = []

            def values() -> Iterator[Any]:
                for each in scan:
                    keys.append(each.entry)
                    yield window_row(table.schema, each) if kind == "window" else each.value

            entries: Any = self._encode(values())
            if kind == "map":
                entries = dict(zip(keys, entries, strict=True))
            return {
                "key": key,
                "found": bool(entries),
                "value": entries or None,
                "next": scan.token,
                "position": self._position(request, scan.position),
            }

        return await self._answer_for_key(request, work)

    async def history(self, request: Request) -> Response:
        table = self._table(request)
        query = self._query(request, "entry", "namespace", "limit", "after", "share")
        limit = self._limit(query, self.limits.page)
        await self._find_example(request, table)

        def work() -> Any:
            key, entry, namespace = _place(table, request, query)
            versions = table.history(key, entry, namespace=namespace, limit=limit, after=query.get("after"))
            return {"key": key, "versions": self._encode(versions), "next": versions.token}

        return await self._answer_for_key(request, work)

    async def last_changes(self, request: Request) -> Response:
        table = self._table(request)
        query = self._query(request, "limit", "as_of", "share")
        limit = self._limit(query)

        def work() -> Any:
            state_table = self._table(request, is_share=_is_share(request))
            as_of = batch_or_time(query.get("as_of"), "as_of")
            changes = state_table.last_changes(limit, as_of=as_of, timeout=self.limits.scan_seconds)
            return {
                "changes": self._encode(attrs.asdict(change, recurse=False) for change in changes),
                "oldest": table.oldest_batch,
                "position": self._position(request, table.position),
            }

        return await self._answer(work)

    async def timers(self, request: Request) -> Response:
        self._check_all(request, "timers")
        query = self._query(request, "key", "limit", "as_of", "operator", "share")
        limit = self._limit(query)

        def work(*, is_share: bool = _is_share(request), as_of: Any = None) -> Any:
            as_of = batch_or_time(query.get("as_of"), "as_of") if as_of is None else as_of
            with (self.tables.share if is_share else self.tables).snapshot(as_of) as snapshot:
                table = snapshot.timers_of(query["operator"]) if "operator" in query else snapshot.timers
                stored: Iterable[tuple[bytes, Timer]] = table.stored()
                if "key" in query:
                    example = next(iter(stored), None)
                    key = key_of(query["key"], example and example[1].key, "key")
                    stored = ()
                    # A share without timers does not have the type of the keys, nor any timer of this key.
                    if example or not is_share:
                        with suppress(errors.GroupUnavailable) if is_share else nullcontext():
                            stored = sorted(
                                table.stored(key), key=lambda each: (each[1].domain.value, each[1].timestamp)
                            )
                page = list(islice(stored, limit))
                timers = {"timers": self._encode(timer._asdict() for _, timer in page)}
                if not is_share:
                    return timers
                position = self._position(request, snapshot.positions[table.operator])
                return timers | {"addresses": [address for address, _ in page], "position": position}

        return await self._answer_for_all(request, "timers", work, query, limit)

    async def run_sql(self, request: Request) -> Response:
        open_to = self._tables_open_to(request)
        query = await self._parse(request, _SqlRequest, "the body is not a query")
        names = None if ALL_TABLES in open_to else sorted(open_to)
        if _PUSH.search(query.query):
            raise BadRequest("a query that ends with EMIT CHANGES is followed: GET /sql/changes?query=...")
        # Queries run in processes over the folder, which do not know that following has ended.
        self.tables.check()

        rows, most = self.limits.sql_rows, self.limits.answer
        sql_query = SqlQuery(query.query, query.parameters, names, query.as_of, rows, most, _is_share(request))

        async def run() -> bytes:
            if sql_query.share or not self.peers.are_configured:
                return await self.sql.answer(sql_query)
            with ScratchFolder("tables") as folder:
                sql_query.files, sql_query.as_of = await self._rows_of_peers(sql_query, folder.path)
                return await self.sql.answer(sql_query)

        return Response(await _while_connected(request, run()), media_type="application/json")

    async def arrow(self, request: Request) -> ASGIApp:
        """Return the rows of key groups of a table as an Arrow stream, for SQL on a peer."""
        self._table(request)
        query = self._query(request, "groups", "has_key", "as_of", "share")
        name = request.path_params["table"]
        try:
            groups = frozenset(map(int, query["groups"].split(",")))
        except (KeyError, ValueError) as error:
            raise BadRequest("groups= must be numbers of key groups, such as 0,1,2") from error

        def work() -> Iterator[bytes]:
            snapshot = self.tables.snapshot(batch_or_time(query.get("as_of"), "as_of"))
            with closing_on_error(snapshot):
                table = snapshot.share[name]
                if lacks := groups.intersection(table.missing):
                    raise errors.GroupUnavailable(
                        f"{name!r}: these tables do not have key groups {shown_groups(lacks)}"
                    )
                parts = table.dataset(has_key="has_key" in query, groups=groups).ipc_parts()

            def opened() -> Iterator[bytes]:
                with snapshot:
                    yield from parts

            return opened()

        return StreamingResponse(await self._in_thread(work), media_type="application/vnd.apache.arrow.stream")

    async def _rows_of_peers(self, query: SqlQuery, folder: Path) -> tuple[dict[str, list[str]], Any]:
        """Copy the rows of key groups that only peers have into files, for the tables that a query names.

        Returns:
            The files by table, and the batch of all of them.
        """

        def lacking() -> dict[str, tuple[str, str, list[int]]]:
            lacking_groups = {}
            for name, table in self.tables.share.items():
                is_named = may_name(query.query, name) and (query.names is None or name in query.names)
                if is_named and table.schema.kind != "broadcast" and (missing := table.missing):
                    lacking_groups[name] = table.operator, table.position.log_id, missing
            return lacking_groups

        tables = await self._in_thread(lacking)
        if not tables:
            return {}, query.as_of
        await self.peers.refresh()
        while True:
            plan = {name: self.peers.cover(*of) for name, of in tables.items()}
            as_of = await self._batch_at(query.as_of)
            if as_of is None:
                as_of = min(self.tables.batch, *map(self.peers.batch_of, plan.values()))
            copies: dict[str, list[str]] = {}
            number = count()
            try:
                for name, servers in plan.items():
                    for address, groups in servers.items():
                        path = folder / f"{next(number)}.arrow"
                        about = {"groups": ",".join(map(str, groups)), "as_of": as_of, "share": "true"}
                        about |= {"has_key": "true"} if has_key(query.query) else {}
                        with path.open("wb") as sink:
                            target = f"/tables/{quote(name)}/arrow?{urlencode(about)}"
                            seconds = self.limits.sql_seconds
                            answer = await self.peers.ask(address, target, sink=sink, seconds=seconds)
                            self._check_answer(None, *answer)
                        copies.setdefault(name, []).append(str(path))
            except PeerUnavailable:
                continue
            return copies, as_of

    async def changes(self, request: Request) -> ASGIApp:
        table = self._table(request)
        query = self._query(request, "key", "prefix", "after", "share")
        self._check_streams()
        await self._find_example(request, table)

        def work() -> Any:
            example = request.state.example[0]
            key = key_of(query["key"], example, "key") if "key" in query else NOT_GIVEN
            prefix = key_of(query["prefix"], example, "prefix") if "prefix" in query else None
            after = request.headers.get("last-event-id") or query.get("after")
            return self._table(request, is_share=_is_share(request)).subscribe(key, prefix=prefix, after=after)

        async def stream() -> ASGIApp:
            return self._stream(request, ChangeEvents(await self._in_thread(work)))

        async def redirect(servers: dict[str, list[int]]) -> ASGIApp:
            return RedirectResponse(next(iter(servers)) + _target(request), 307)

        return await (self._own_or_from_peers(request, stream, redirect) if "key" in query else stream())

    async def push_changes(self, request: Request) -> ASGIApp:
        """Return the rows of a push query, or with ``check=true`` its table and columns."""
        open_to = self._tables_open_to(request)
        names = self._query(request, "query", "parameters", "after", "check")
        is_check = _is_true(names, "check")
        if "query" not in names:
            raise BadRequest("query= is missing: give SELECT ... FROM table EMIT CHANGES")
        query, text = names["query"], names.get("parameters", "null")
        if len(query) + len(text) > self.limits.body:
            raise Refused(413, "DefinitionError", f"the query has more than {self.limits.body} bytes")
        parameters = decoded(text, "parameters")
        self._check_streams()
        self.tables.check()

        def columns() -> dict[str, Any]:
            return {
                name: described(table) if may_name(query, name) else None
                for name, table in self.tables.items()
                if ALL_TABLES in open_to or name in open_to
            }

        push_request = PushRequest(query, parameters, await self._in_thread(columns), self.limits.answer)
        checked = await _while_connected(request, self.push.answer(push_request))
        if is_check:
            return _json_response(checked)
        push_query = msgspec.json.decode(checked, type=_PushQuery)
        tables = {push_query.table: push_request.tables[push_query.table]}
        after = request.headers.get("last-event-id") or names.get("after")

        async def rows(changes: list[Change]) -> PushedRows:
            part = msgspec.structs.replace(
                push_request, tables=tables, changes=await asyncio.to_thread(packed, changes)
            )
            return msgspec.json.decode(await self.push.answer(part, is_part=True), type=PushedRows)

        subscription = await self._in_thread(lambda: self.tables[push_query.table].subscribe(after=after))
        return self._stream(request, PushEvents(subscription, rows, push_query.limit))

    def _check_streams(self) -> None:
        slots = self.watch.slots
        slots.ask(ASKING.get())
        if not slots.is_free(ASKING.get()):
            message = f"{self.watch.streams} streams are open, and a token may have {slots.share()}; try again later"
            raise Refused(503, "Busy", message)

    def _stream(self, request: Request, events: Events) -> EventStream:
        # Others may have been opened while this one was prepared.
        self._check_streams()
        return EventStream(events, self.watch, self.limits.send_seconds, lambda error: self._message(request, error))

    # Key groups that only peers have ------------------------------------------------------------------------------

    def _may_forward(self, request: Request) -> bool:
        return self.peers.are_configured and not _is_share(request)

    async def _find_example(self, request: Request, table: StateTable) -> None:
        """Find a key and entry of a table, which show their types; a share without entries gets them from a peer.

        Raises:
            GroupUnavailable: No server that can be reached has an entry, and not all key groups can be reached.
        """

        def work() -> tuple[Any, Any] | None:
            first = table.first()
            return None if first is None else (first.key, first.entry)

        example, groups = await self._in_thread(lambda: (work(), table.groups))
        if example is None and groups is not None:
            if _EXAMPLE in request.headers:
                example = _example_of(request.headers[_EXAMPLE])
            elif self._may_forward(request):
                example = await self._example_of_peers(request.path_params["table"], table)
            elif "key" in request.path_params or request.query_params.keys() & {"key", "prefix", "from", "to"}:
                raise errors.GroupUnavailable(
                    "the share of these tables has no entry that shows the type of the keys; ask a server that has the "
                    "key group",
                    operator=table.operator,
                )
        request.state.example = example or (None, None)

    async def _example_of_peers(self, name: str, table: StateTable) -> tuple[Any, Any]:
        async def ask(servers: Mapping[str, Any]) -> tuple[Any, Any]:
            for address in servers:
                body = self._check_answer(None, *await self.peers.ask(address, "/tables?share=true"))
                for one in msgspec.json.decode(body)["tables"]:
                    if one["name"] == name and one.get("example"):
                        return _example_of(one["example"])
            return None, None

        return await self._from_peers(table.operator, await self._in_thread(lambda: table.missing), ask)

    async def _from_peers(
        self, operator: str, groups: Iterable[int], ask: Callable[[dict[str, list[int]]], Awaitable[_T]]
    ) -> _T:
        """Return the answer of the servers of key groups; without those that cannot be reached, others are asked."""
        await self.peers.refresh()
        log_id = (await self._in_thread(lambda: self.tables.positions[operator])).log_id
        while True:
            with suppress(PeerUnavailable):
                return await ask(self.peers.cover(operator, log_id, groups))

    async def _own_or_from_peers(
        self, request: Request, own: Callable[[], Awaitable[_T]], ask: Callable[[dict[str, list[int]]], Awaitable[_T]]
    ) -> _T:
        """Return the answer of these tables; if they lack key groups, that of the servers of these."""
        try:
            return await own()
        except errors.GroupUnavailable as error:
            if not self._may_forward(request):
                raise
            operator, groups = error.operator, error.groups
        return await self._from_peers(operator, groups, ask)

    async def _answer_for_key(self, request: Request, work: Callable[[], Any]) -> Response:
        """Return the answer about a key; if the tables lack its key group, that of a peer."""

        async def ask(servers: dict[str, list[int]]) -> Response:
            headers = {_EXAMPLE: _example_text(*request.state.example)}
            body = self._check_answer(request, *await self.peers.ask(next(iter(servers)), _target(request), headers))
            answer = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            if "position" in answer and ALL_TABLES not in request.state.open_to:
                position = msgspec.json.decode(answer["position"])
                shown = {name: value for name, value in position.items() if name not in ("entries", "hash")}
                answer["position"] = msgspec.Raw(as_json(shown))
            answer.pop("addresses", None)
            return _json_response(as_json(answer))

        return await self._own_or_from_peers(request, partial(self._answer, work), ask)

    async def _answer_for_all(
        self, request: Request, name: str, work: Callable[..., Any], query: dict[str, str], limit: int
    ) -> Response:
        """Return the answer about all keys; if the tables lack key groups, merged from the shares of several servers.

        Args:
            request: The request.
            name: Name of the list in the answer.
            work: Returns the answer of these tables; with ``is_share=True`` that of the share, with addresses.
            query: The parameters of the request.
            limit: Maximal number of items.
        """

        async def ask(servers: dict[str, list[int]]) -> Response:
            headers = {_EXAMPLE: _example_text(*getattr(request.state, "example", (None, None)))}
            as_of = await self._batch_at(batch_or_time(query.get("as_of"), "as_of"))
            if as_of is None:
                as_of = min(self.tables.batch, self.peers.batch_of(servers))
            own = await self._answer(partial(work, is_share=True, as_of=as_of))
            target = _target(request, as_of=as_of)
            answers = await asyncio.gather(*(self.peers.ask(each, target, headers) for each in servers))
            parts = [bytes(own.body), *(self._check_answer(request, *answer) for answer in answers)]
            return await self._answer(lambda: self._merge(name, parts, query, limit))

        return await self._own_or_from_peers(request, partial(self._answer, work), ask)

    def _merge(self, name: str, parts: list[bytes], query: dict[str, str], limit: int) -> Any:
        """Return the answer for all keys from those of several servers; an item of two servers is the same in both."""
        by_key: dict[bytes, msgspec.Raw] = {}
        positions, is_more = [], False
        for part in parts:
            answer = msgspec.json.decode(part, type=dict[str, msgspec.Raw])
            addresses = msgspec.json.decode(answer["addresses"], type=list[bytes])
            by_key |= zip(addresses, msgspec.json.decode(answer[name], type=list[msgspec.Raw]), strict=True)
            positions.append(msgspec.json.decode(answer["position"]))
            is_more |= bytes(answer.get("next", b"null")) != b"null"
        first = positions[0]
        for other in positions:
            if (other["log_id"], other["batch"]) != (first["log_id"], first["batch"]):
                raise errors.GroupUnavailable(
                    f"operator {first['operator']!r}: the servers answered from different batches, {first['batch']} "
                    f"and {other['batch']}; try again"
                )
        order = sorted(by_key, reverse=query.get("order") == "desc")
        if name == "timers" and "key" in query:
            # One server has them, in their order.
            order = list(by_key)
        merged: dict[str, Any] = {name: [by_key[address] for address in order[:limit]]}
        if name == "timers":
            return merged
        is_more |= len(order) > limit
        merged["next"] = scan_token(first["log_id"], sequence_of(first["batch"]), order[limit - 1]) if is_more else None
        hidden = ("entries", "groups", "hash")
        position = {field: value for field, value in first.items() if field not in hidden}
        return merged | {"position": position | {"watermark": min(each["watermark"] for each in positions)}}

    def _check_answer(self, request: Request | None, status: int, body: bytes) -> bytes:
        """Return the body of a peer's answer, unless it is an error, which the client gets."""
        if status == 200:
            return body
        try:
            error = msgspec.json.decode(body, type=_PeerError).error
        except msgspec.DecodeError as wrong:
            raise Refused(503, errors.GroupUnavailable.__name__, f"a peer answered with status {status}") from wrong
        message = error.message if request is None else self._message(request, errors.KeyedError(error.message))
        raise Refused(status, error.type, message)

    # Common parts of requests ---------------------------------------------------------------------------------

    def route(self, path: str, answer: Callable[[Request], Awaitable[ASGIApp]], method: str = "GET") -> Route:
        """Return a route that answers errors with their status."""

        async def endpoint(request: Request) -> ASGIApp:
            response: ASGIApp
            try:
                response = await answer(request)
            except Refused as error:
                response = error_response(error.status, error.kind, str(error), error.headers)
            except asyncio.CancelledError:
                # The server stops, and gives up waiting for what still runs.
                response = error_response(503, "Stopping", "the server is stopping")
            except Exception as error:  # noqa: BLE001 - following may have ended with any, and all are answered
                response = self._answer_error(request, path, error)
            self.requests[path, getattr(response, "status_code", 200)] += 1
            return response

        return Route(path, endpoint, methods=[method])

    def _answer_error(self, request: Request, path: str, error: Exception) -> Response:
        """Return the response of a request that failed."""
        if self.tables.status in _ENDED:
            return error_response(503, type(error).__name__, self._message(request, error))
        if isinstance(error, errors.KeyedError):
            status = next(status for kind, status in _STATUSES if isinstance(error, kind))
            if status == 500:
                _log.error("%s %s", path, error)
            place: dict[str, Any] = {}
            if isinstance(error, errors.SqlError):
                place = {"line": error.line, "column": error.column}
            return error_response(status, type(error).__name__, self._message(request, error), **place)
        if isinstance(error, TimeoutError):
            return error_response(503, "TimeoutError", str(error))
        # An unexpected error is logged, and answered like all errors.
        _log.error("%s failed", path, exc_info=error)
        return error_response(500, "InternalError", "the server's log has the reason")

    def _tables_open_to(self, request: Request) -> frozenset[str]:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        number = self.access.number_of(token.strip() if kind.casefold() == "bearer" else None)
        if number is None and _COOKIE in request.cookies:
            number = self.access.number_of_session(request.cookies[_COOKIE])
        if number is None:
            if token and kind.casefold() == "bearer":
                raise Refused(401, "Unauthorized", "the token is unknown")
            raise Refused(401, "Unauthorized", "give the header Authorization: Bearer TOKEN, or log in on the page")
        ASKING.set(number)
        request.state.open_to = open_to = self.access.tables_of(number)
        return open_to

    def _check_all(self, request: Request, what: str) -> None:
        if ALL_TABLES not in self._tables_open_to(request):
            raise Refused(403, "Forbidden", f"{what} are for tokens of all tables")

    def _position(self, request: Request, position: Position) -> Any:
        return shown_position(position, whole=ALL_TABLES in request.state.open_to)

    def _message(self, request: Request, error: Exception) -> str:
        """Return the text of an error; for tokens of some tables without the names of other tables."""
        open_to = getattr(request.state, "open_to", frozenset((ALL_TABLES,)))
        is_over = self.tables.status in _ENDED
        if ALL_TABLES in open_to or isinstance(error, Refused):
            return f"following ended: {error}" if is_over else str(error)
        if is_over:
            # The names of the tables cannot be read any more.
            return "following ended; the server's log has the reason"
        if not isinstance(error, errors.KeyedError):
            return "the server's log has the reason"
        if isinstance(error, errors.TableNotFound):
            return f"there is no such table for this token; its tables are: {', '.join(sorted(open_to))}"
        tables = dict(self.tables)
        mine = {name for table in tables if table in open_to for name in (table, tables[table].operator)}
        names = {name for table in tables for name in (table, tables[table].operator)} - mine
        return re.sub(r"'([A-Za-z0-9_.-]+)'", lambda match: "'…'" if match[1] in names else match[0], str(error))

    async def _answer(self, work: Callable[[], Any]) -> Response:
        """Return the answer of a function that runs in a thread, so that other requests are not blocked."""

        def encoded() -> bytes:
            body = as_json(work())
            self._check_size(len(body))
            return body

        return _json_response(await self._in_thread(encoded))

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        """Return the result of a function that reads state, which would block the other requests."""
        async with self.concurrency.acquired():
            return await run_in_threadpool(work)

    async def _batch_at(self, as_of: int | datetime | None) -> int | None:
        """Return the batch at a time; a batch or ``None`` as it is."""

        def work() -> int:
            with self.tables.snapshot(as_of) as snapshot:
                return snapshot.batch

        return await self._in_thread(work) if isinstance(as_of, datetime) else as_of

    def _encode(self, items: Iterable[Any]) -> list[msgspec.Raw]:
        """Return items as JSON; reading stops when the answer is too large."""
        listed, size = [], 0
        for item in items:
            encoded = as_json(item)
            listed.append(msgspec.Raw(encoded))
            size += len(encoded)
            self._check_size(size)
        return listed

    def _check_size(self, size: int) -> None:
        if size > self.limits.answer:
            raise Refused(
                413, "TooLarge", f"the answer has more than {self.limits.answer} bytes; ask for less, with limit="
            )

    def _table(self, request: Request, *, is_share: bool = True) -> StateTable:
        """Return the table that a request names; its answers about all keys are of the share alone if ``is_share``."""
        name = request.path_params["table"]
        open_to = self._tables_open_to(request)
        if ALL_TABLES not in open_to and name not in open_to:
            raise Refused(403, "Forbidden", f"the token is not for table {name!r:.140}")
        return (self.tables.share if is_share else self.tables)[name]

    @staticmethod
    def _query(request: Request, *known: str) -> dict[str, str]:
        query = dict(request.query_params)
        unknown = sorted(query.keys() - set(known))
        if unknown:
            raise BadRequest(f"{unknown[0]!r:.140} is not a parameter; the parameters are: {', '.join(known)}")
        return query

    def _limit(self, query: dict[str, str], default: int = 100) -> int:
        text = query.get("limit", str(min(default, self.limits.page)))
        if not text.isascii() or not text.isdigit() or not 1 <= int(text[:10]) <= self.limits.page:
            raise BadRequest(f"limit={text!r:.140} must be 1 to {self.limits.page}")
        return int(text)

    async def _parse(self, request: Request, type_: type[_T], message: str) -> _T:
        """Return the body of a request as a type; it is refused with a message if it is not of it."""
        try:
            return msgspec.convert(decoded(await self._body(request), "the body"), type_)
        except msgspec.ValidationError as error:
            raise BadRequest(f"{message}: {error}") from error

    async def _body(self, request: Request) -> bytes:
        body = b""
        try:
            async with asyncio.timeout(self.limits.request_seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > self.limits.body:
                        raise Refused(413, "DefinitionError", f"the body has more than {self.limits.body} bytes")
        except ClientDisconnect as error:
            raise Refused(400, "ClientDisconnect", "the client closed the connection while it sent the body") from error
        except TimeoutError as error:
            raise Refused(
                408, "RequestTimeout", f"the body did not arrive in {self.limits.request_seconds:g} s"
            ) from error
        return body


class _SqlRequest(msgspec.Struct, forbid_unknown_fields=True):
    query: str
    parameters: list[Any] | dict[str, Any] | None = None
    as_of: int | datetime | None = None


class _PushQuery(msgspec.Struct):
    table: str
    limit: int | None


class _PeerMessage(msgspec.Struct):
    type: str
    message: str


class _PeerError(msgspec.Struct):
    error: _PeerMessage


class _SessionRequest(msgspec.Struct, forbid_unknown_fields=True):
    token: str


class _Guard:
    """Refuses requests that a browser sends for a page of another origin."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
            if not self._access.is_host(headers.get(b"host")):
                response = error_response(421, "WrongHost", "the request is for another host; name it with --host-name")
                return await response(scope, receive, send)
            if not self._access.is_origin(headers.get(b"origin"), headers[b"host"]):
                return await error_response(403, "Forbidden", "pages of other origins are refused")(
                    scope, receive, send
                )
        return await self._app(scope, receive, send)


def make_app(
    tables: StateTables,
    *,
    access: Access | None = None,
    limits: Limits | None = None,
    page: bool | Path = False,
    status: Callable[[], Mapping[str, Any]] = dict,
    peers: Peers | None = None,
) -> Starlette:
    """Return the ASGI application that serves tables. `serve` runs it with uvicorn.

    Args:
        tables: The tables; call `StateTables.start` before.
        access: Access rights; by default every client has all.
        limits: Limits of requests.
        page: Serve the page over all tables at ``/``; or the folder of another, with ``index.html``, which finds the
            standard parts under ``/page/``.
        status: Returns the job's own status for ``/status`` and the page: names and plain values; ``title`` is the
            page's heading.
        peers: The servers of the other key groups, if the tables have a share of them.
    """
    access = access or Access()
    server = _Server(tables, access, limits or Limits(), status, peers or Peers(()))
    routes = [
        server.route("/health", server.health),
        server.route("/ready", server.ready),
        server.route("/metrics", server.metrics),
        server.route("/openapi.json", server.openapi),
        server.route("/status", server.status),
        server.route("/batches", server.batches),
        server.route("/tables", server.list_tables),
        server.route("/tables/{table}", server.scan),
        server.route("/tables/{table}/changes", server.changes),
        server.route("/tables/{table}/last-changes", server.last_changes),
        server.route("/tables/{table}/arrow", server.arrow),
        server.route("/tables/{table}/keys/{key:path}", server.get),
        server.route("/tables/{table}/history/{key:path}", server.history),
        server.route("/timers", server.timers),
        server.route("/sql", server.run_sql, "POST"),
        server.route("/sql/changes", server.push_changes),
        server.route("/session", server.open_session, "POST"),
        server.route("/session", server.close_session, "DELETE"),
        *page_routes(page),
    ]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await server.end()

    app = Starlette(
        routes=routes,
        middleware=[Middleware(_Guard, access=access)],
        exception_handlers={HTTPException: _no_route},
        lifespan=lifespan,
    )
    app.state.watch, app.state.end = server.watch, server.end
    return app


async def _while_connected(request: Request, work: Coroutine[Any, Any, bytes]) -> bytes:
    """Return the result of a coroutine, which is cancelled if the client disconnects."""
    result = await while_connected(request.receive, work)
    if result is None:
        raise Refused(400, "ClientDisconnect", "the client closed the connection")
    return result


def _json_response(body: bytes) -> Response:
    return Response(body, media_type="application/json", headers={"cache-control": "no-store"})


def _no_route(request: Request, error: Exception) -> Response:
    """Answer a request for an unknown path, or with a method that the path does not have."""
    assert isinstance(error, HTTPException)
    kind = error.detail.replace(" ", "")
    return error_response(
        error.status_code, kind, f"{request.method} {request.url.path}: see /openapi.json", error.headers
    )


def _entry_names(schema: StateSchema) -> list[str]:
    """Return the names of the parts of an entry: of a window, or of further key columns."""
    if schema.kind == "window":
        return list(schema.key)
    return list(schema.key[schema.value["stream_keys"] :]) if schema.kind == "table" else []


def _place(table: StateTable, request: Request, query: dict[str, str]) -> tuple[Any, Any, Any]:
    """Return the key, entry and namespace that a request names."""
    example_key, example_entry = request.state.example
    key = key_of(request.path_params["key"], example_key, "key")
    entry = entry_of(query["entry"], example_entry, table.schema, "entry") if "entry" in query else NOT_GIVEN
    return key, entry, namespace_of(query.get("namespace"), None, "namespace")


def _is_share(request: Request) -> bool:
    """Return true if a request is for the answer of the share alone."""
    return _is_true(request.query_params, "share")


def _is_true(query: Mapping[str, str], name: str) -> bool:
    text = query.get(name, "false")
    if text not in ("true", "false"):
        raise BadRequest(f"{name}={text!r:.140} must be true or false")
    return text == "true"


def _target(request: Request, *, as_of: int | None = None) -> str:
    """Return path and query of a request for the share of a peer."""
    query = dict(request.query_params) | {"share": "true"}
    if as_of is not None:
        query["as_of"] = str(as_of)
    path = request.scope["path"]
    return f"{quote(path)}?{urlencode(query)}"


def _example_text(key: Any, entry: Any) -> str:
    return urlsafe_b64encode(encode_key((key, entry))).decode()


def _example_of(text: str) -> tuple[Any, Any]:
    try:
        key, entry = decode_key(urlsafe_b64decode(text.encode()))
    except (ValueError, TypeError, errors.KeyedError) as error:
        raise BadRequest(f"{_EXAMPLE}: {text!r:.140} is not an example of a key") from error
    return key, entry


def _many(schema: StateSchema) -> str | None:
    """Return the kind of a key's entries (a list, a map or windows); ``None`` if a key has one value."""
    if schema.kind == "list":
        return "list"
    if schema.kind == "window":
        return "window" if schema.key else None
    if schema.kind in MAPS:
        return "map"
    return "map" if schema.kind == "table" and len(schema.key) > schema.value["stream_keys"] else None
