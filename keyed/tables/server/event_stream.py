"""Changes of tables as server-sent events (HTML Living Standard, section 9.2).

The ``id`` of an event is the token of a change, or the id of a batch: a browser sends it as ``Last-Event-ID`` when it
reconnects, and the stream resumes after it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import attrs
import msgspec
from starlette.types import Receive, Scope, Send

from keyed.base.background import Status
from keyed.errors import KeyedError
from keyed.formats.json_writer import as_json
from keyed.tables.server.access import ASKING, ConcurrencyLimit, Refused, Slots
from keyed.tables.state_tables import StateTables
from keyed.tables.subscription import Change, Subscription

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
#: Seconds of silence after which a comment is sent, so that proxies keep the connection open.
_SILENCE = 15.0
_LOOK_AGAIN = 1.0
#: Number of streams that read at a time, each in a thread. More threads would not read faster, but the event loop, and
#: with it every other request, would wait for all of them at each system call, until they release the interpreter lock.
_READING = 2
#: Seconds that a stream waits for its turn to read.
_PATIENCE = 30.0
_ENDED = (Status.FAILED, Status.CLOSED)
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class Watch:
    """Wakes all streams of a server at a new batch and when following ends; one thread waits for all streams.

    Attributes:
        slots: The slots of streams; those that are used are open.
        dropped: Number of streams that were ended because the reader took too long.
        dropped_for_memory: Number of connections that were dropped because unread answers took too much memory.
        resets: Number of times that a reader got the whole state again because it was too far behind.
        is_over: True if the server is shutting down, and all streams end.
        reading: Held by a stream while it reads.
    """

    def __init__(self, tables: StateTables, streams: int, tokens: int) -> None:
        self._tables = tables
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self.slots = Slots(streams, tokens)
        self.dropped = self.dropped_for_memory = self.resets = 0
        self.is_over = False
        self.reading = ConcurrencyLimit(_READING, _PATIENCE, 503, "reads of changes", tokens)

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return self.slots.used.total()

    def count_dropped_for_memory(self) -> None:
        """Count a connection that was dropped because unread answers took too much memory."""
        self.dropped_for_memory += 1

    async def end(self) -> None:
        """End all streams."""
        self.is_over = True
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    @property
    def batch(self) -> int:
        """Id of the newest batch; −1 before the first one."""
        return self._tables.batch

    async def next_batch(self, batch: int) -> None:
        """Wait for another batch than this one, with a time limit."""
        if self.is_over or self._tables.status in _ENDED or self._tables.batch != batch:
            return
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._wait(batch))
        async with self._changed:
            with suppress(TimeoutError):
                async with asyncio.timeout(_SILENCE):
                    await self._changed.wait()

    async def _wait(self, batch: int) -> None:
        while self.streams and self._tables.status not in _ENDED:
            try:
                with suppress(TimeoutError):
                    await asyncio.to_thread(self._tables.wait_for, batch + 1, _LOOK_AGAIN)
                # The batches of a job that was restored from a past batch continue after that one.
                newest = self._tables.batch
                is_new, batch = newest != batch, newest
            except Exception as error:  # noqa: BLE001 - if following ended with it, each stream meets it
                _log.debug("waiting for a batch: %s", error)
                is_new = False
                if self._tables.status not in _ENDED:
                    await asyncio.sleep(_LOOK_AGAIN)
            if is_new:
                await self._notify()
        await self._notify()


class _ReadyEvents:
    """Events that are encoded when they are read, and never end."""

    end = None

    async def encoded(self, events: bytes) -> bytes:
        """Return the events."""
        return events


@attrs.define(eq=False)
class ChangeEvents(_ReadyEvents):
    """The changes of a table.

    Args:
        subscription: The source of the changes.
    """

    _subscription: Subscription

    @property
    def resets(self) -> int:
        """Number of times that the reader got the whole state again."""
        return self._subscription.resets

    def take(self) -> bytes:
        """Return the next changes, each an event ``snapshot`` or ``change``."""
        events = []
        for change in self._subscription.take(0.0):
            fields = attrs.asdict(change, recurse=False)
            events.append(_event(fields.pop("token"), change.kind, fields))
        return b"".join(events)


@attrs.define(eq=False)
class BatchEvents(_ReadyEvents):
    """The newest batch, and then each newer one that is seen. Batches in between are skipped.

    If the job's own status changes without a batch, as when it ends, the batch is sent again with the new status.

    Args:
        batch: Returns the id of the newest batch.
        job: Returns the job's own status.
        describe: Returns the description of the newest batch, with this status of the job.
    """

    resets = 0
    _batch: Callable[[], int]
    _job: Callable[[], dict[str, Any]]
    _describe: Callable[[dict[str, Any]], dict[str, Any]]
    _sent: tuple[int, dict[str, Any]] = attrs.field(default=(-1, {}), init=False)
    _was_sent: bool = attrs.field(default=False, init=False)

    def take(self) -> bytes:
        """Return the newest batch as an event ``batch``, unless it was sent already."""
        batch, sent = self._batch(), self._sent[0]
        # A status that changes all the time is not sent again before the stream has waited for a batch.
        if batch == sent and (self._was_sent or batch < 0):
            self._was_sent = False
            return b""
        now = batch, self._job()
        if now == self._sent:
            return b""
        self._sent, self._was_sent = now, True
        return _event(str(batch), "batch", self._describe(now[1]))


class PushedRows(msgspec.Struct):
    """The JSON of the row after each of some changes and before it, and the reasons of rows that are left out."""

    rows: list[tuple[msgspec.Raw, msgspec.Raw]]
    bad: list[str]


@attrs.define(eq=False)
class PushEvents:
    """The rows of a push query, each an event ``snapshot`` or ``change``; at its ``LIMIT`` an ``end``.

    An event ``bad`` has the number of rows that were left out so far because an expression fails.

    Args:
        subscription: The source of the changes.
        rows: Returns the rows of changes.
        left: Number of rows, ``None`` without a limit.
    """

    _subscription: Subscription
    _rows: Callable[[list[Change]], Awaitable[PushedRows]]
    _left: int | None
    _bad: int = attrs.field(default=0, init=False)

    @property
    def resets(self) -> int:
        """Number of times that the reader got the whole state again."""
        return self._subscription.resets

    @property
    def end(self) -> bytes | None:
        """The event ``end``, once ``LIMIT`` is reached."""
        return b"event: end\ndata: {}\n\n" if self._left == 0 else None

    def take(self) -> list[Change]:
        """Return the next changes."""
        return self._subscription.take(0.0)

    async def encoded(self, changes: list[Change]) -> bytes:
        """Return the events of changes."""
        events = []
        rows = await self._rows(changes)
        for change, (row, old) in zip(changes, rows.rows, strict=True):
            if bytes(row) == bytes(old) == b"null":
                continue
            if self._left == 0:
                break
            fields = {"kind": change.kind, "batch": change.batch, "row": row, "old": old}
            events.append(_event(change.token, change.kind, fields))
            self._left = None if self._left is None else self._left - 1
        if rows.bad:
            self._bad += len(rows.bad)
            events.append(b"event: bad\ndata: " + as_json({"rows": self._bad, "reason": rows.bad[0]}) + b"\n\n")
        if self._left == 0:
            return b"".join(events)
        # Sets the id without an event, so that changes without rows are not read again after a reconnection.
        return b"".join((*events, b"id: %b\n\n" % changes[-1].token.encode()))


Events = ChangeEvents | BatchEvents | PushEvents
"""The events of a stream."""


@attrs.define(eq=False)
class EventStream:
    """A response that lasts until the reader disconnects.

    Args:
        events: The events.
        watch: Waits for new batches.
        send_seconds: Seconds that the reader may take to read a part.
        message_of: Returns the text of an error that the reader is allowed to see.
    """

    status_code = 200
    _events: Events
    _watch: Watch
    _send_seconds: float
    _message_of: Callable[[Exception], str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the reader disconnects or the server ends."""
        token = ASKING.get()
        self._watch.slots.used[token] += 1
        try:
            await while_connected(receive, self._write(send))
        except (TimeoutError, asyncio.CancelledError):
            # A server that ends does not wait for slow readers.
            self._watch.dropped += 1
        finally:
            self._watch.slots.release(token)
            self._watch.resets += self._events.resets

    async def _write(self, send: Send) -> None:
        await self._send(send, {"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self._send(send, _part(b"retry: 1000\n\n"))
        batch = -1
        while not self._watch.is_over and self._events.end is None:
            try:
                before = self._watch.batch
                async with self._watch.reading.acquired():
                    ready: Any = await asyncio.to_thread(self._events.take)
                events = await self._events.encoded(ready) if ready else b""
            except Exception as error:  # noqa: BLE001 - the reader gets it
                # The error that ended following was logged at that time.
                if not isinstance(error, KeyedError) and error.__cause__ is None:
                    _log.exception("a stream ends")
                kind = error.kind if isinstance(error, Refused) else type(error).__name__
                message = as_json({"type": kind, "message": self._message_of(error)})
                await self._send(send, _part(b"event: error\ndata: " + message + b"\n\n", more=False))
                return
            if events:
                await self._send(send, _part(events))
                continue
            if batch == before:
                await self._send(send, _part(b": \n\n"))
            batch = before
            await self._watch.next_batch(before)
        await self._send(send, _part(self._events.end or b"", more=False))

    async def _send(self, send: Send, message: dict[str, object]) -> None:
        async with asyncio.timeout(self._send_seconds):
            await send(message)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T | None:
    """Return the result of a coroutine; if the client disconnects, cancel it and return ``None``."""

    async def wait_for_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = working, _ = asyncio.create_task(work), asyncio.create_task(wait_for_disconnect())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _part(body: bytes, *, more: bool = True) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": more}


def _event(token: str, kind: str, fields: dict[str, Any]) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (token.encode(), kind.encode(), as_json(fields))
