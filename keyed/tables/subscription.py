"""Subscriptions: a table's state, and then every change of it, batch by batch, resumed from a token."""

from __future__ import annotations

import asyncio
import threading
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from operator import attrgetter
from typing import Any, Literal, Self, TypeVar

import attrs
import msgspec

from keyed.base.background import Background, Status
from keyed.changelog.model import batch_id
from keyed.errors import DefinitionError, HistoryCompacted, TableNotFound
from keyed.tables.entries import Entry, EntryReader
from keyed.tables.operator_view import ChangedEntries, Operator, View

#: Maximal number of entries of a snapshot, or changes of a batch, per delivery, and maximal bytes of their values.
_PART_ENTRIES, _PART_BYTES = 1_000, 256 << 10
#: Seconds that a thread waits for an asynchronous reader, which may have been cancelled.
_ASYNC_WAIT = 1.0
_address_of = attrgetter("address")
_T = TypeVar("_T")


@attrs.frozen(kw_only=True)
class Change:
    """A changed entry after a batch.

    Attributes:
        kind: ``"snapshot"`` for an entry of the initial state of a subscription, otherwise ``"change"``.
        batch: Id of the batch, from 0.
        key: The key.
        namespace: Beside the key; ``None`` is the state itself.
        entry: The entry of the key, as in `Entry.entry`.
        old: The value before the batch; ``None`` if there was none, and in a snapshot.
        new: The value after it; ``None`` if it was removed.
        removed: True if the entry was removed.
        token: The ``subscribe(after=)`` that resumes after this change.
    """

    kind: Literal["snapshot", "change"]
    batch: int
    key: Any
    namespace: Any
    entry: Any
    old: Any
    new: Any
    removed: bool
    token: str


class Token(msgspec.Struct, array_like=True, frozen=True):
    """Position of a subscription.

    Attributes:
        log_id: Identity of the changelog.
        batch: Number of the commit of the last change, from 1.
        address: The address of the last delivered entry; ``None`` for a whole batch.
        in_snapshot: True if it was part of the snapshot.
    """

    log_id: str
    batch: int
    address: bytes | None
    in_snapshot: bool

    def __str__(self) -> str:
        return urlsafe_b64encode(msgspec.msgpack.encode(self)).decode().rstrip("=")

    @classmethod
    def of(cls, text: str) -> Token:
        """Read a token.

        Raises:
            DefinitionError: The text is not a token.
        """
        try:
            return _decode(urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4)))
        except (ValueError, AttributeError) as error:
            raise DefinitionError(f"after={text!r} is not a token of a subscription") from error


_decode = msgspec.msgpack.Decoder(Token).decode


@attrs.frozen
class Feed:
    """Source of the changes of an operator's tables.

    Attributes:
        operator: The operator.
        shown: Returns its newest visible commit.
        wait: Waits until a condition holds, for a number of seconds at most or for ever; returns true if it holds.
        following: The work that follows the changelogs.
    """

    operator: Operator
    shown: Callable[[], int]
    wait: Callable[[Callable[[], bool], float | None], bool]
    following: Background


@attrs.define(eq=False, repr=False, slots=False)
class Subscription(Iterator[Change], AsyncIterator[Change]):
    """The changes of a table: the state at one batch, then the changes of each later batch, in order.

    Each change is delivered once. A reader that was away for longer than the history, or whose token belongs to
    another changelog, gets the whole state again, as changes of kind ``"snapshot"``: drop the earlier state at the
    first of them.

    Iterating waits for changes; ``async for`` waits in a thread, and may be cancelled at any await without loss.

    Attributes:
        resets: Number of times that the whole state was delivered again.
        token: The token of the last change that was delivered, for ``subscribe(after=)``; ``None`` before the first.
    """

    _state: str
    _feed: Feed
    _within: Callable[[EntryReader], tuple[bytes, bytes]]
    _after: str | None

    def __attrs_post_init__(self) -> None:
        feed, after = self._feed, self._after
        # Changes that were read and not delivered yet.
        self._undelivered: deque[Change] = deque()
        # Held during a read: the thread of a cancelled reader may still be reading.
        self._lock = threading.Lock()
        self._reading: asyncio.Future[bool] | None = None
        # The changes of a partially read batch, which readers share while one of them uses it.
        self._partly: ChangedEntries | None = None
        self.resets = 0
        self.token: str | None = None
        # The token of the last read; `None` before the snapshot.
        self._at: Token | None = None
        if after in ("now", "beginning"):
            operator = feed.operator
            with operator.view(feed.shown() if after == "now" else operator.extent.oldest) as view:
                now = after == "now"
                self._at = Token(view.at.log_id, view.at.batch, None if now else b"", not now)
        elif after is not None:
            self._at = Token.of(after)

    def take(self, timeout: float | None = None) -> list[Change]:
        """Return the next changes: those of one batch, or a part of them or of the snapshot.

        Args:
            timeout: Seconds to wait for them; for ever if ``None``.

        Returns:
            The changes; none after the timeout.
        """
        return self._read_and(self._deliver_all, timeout) or []

    @property
    def status(self) -> Status:
        """The status of following: see `StateTables.status`."""
        return self._feed.following.status

    def __repr__(self) -> str:
        return f"<Subscription to {self._state}, {self.status.value}, after {self.token}>"

    def __next__(self) -> Change:
        change = self._read_and(self._deliver, None)
        assert change is not None, "without a timeout there is a change"
        return change

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        while True:
            # Another thread may have taken them.
            with suppress(IndexError):
                return self._deliver()
            reading = self._begin_reading()
            await asyncio.wait((reading,))
            reading.result()

    def _begin_reading(self) -> asyncio.Future[bool]:
        """Read in a thread, unless that of a cancelled reader is still reading: the next reader gets its result."""
        loop = asyncio.get_running_loop()
        if self._reading is None or self._reading.get_loop() is not loop:
            self._reading = loop.run_in_executor(None, self._fill, _ASYNC_WAIT)
            self._reading.add_done_callback(self._end_reading)
        return self._reading

    def _end_reading(self, reading: asyncio.Future[bool]) -> None:
        if self._reading is reading:
            self._reading = None
        if not reading.cancelled():
            # Its reader may have been cancelled. The next reader gets the same error.
            reading.exception()

    def _deliver(self) -> Change:
        change = self._undelivered.popleft()
        self.token = change.token
        return change

    def _deliver_all(self) -> list[Change]:
        changes, self._undelivered = self._undelivered, deque()
        self.token = changes[-1].token
        return list(changes)

    def _fill(self, timeout: float | None) -> bool:
        """Read changes, unless some are waiting to be delivered. Returns true if there are any."""
        return self._read_and(lambda: True, timeout) is not None

    def _read_and(self, deliver: Callable[[], _T], timeout: float | None) -> _T | None:
        """Read changes, unless some are waiting to be delivered, and deliver them before another thread does.

        Returns:
            The delivered changes, ``None`` after the timeout.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._locked(timeout) as is_locked:
            while is_locked:
                # An asynchronous reader takes changes without the lock.
                with suppress(IndexError):
                    if self._undelivered:
                        return deliver()
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                try:
                    if not self._read(left):
                        return None
                except HistoryCompacted:
                    self._at = None
                    self.resets += 1
            return None

    @contextmanager
    def _locked(self, timeout: float | None) -> Iterator[bool]:
        is_locked = self._lock.acquire(timeout=-1 if timeout is None else max(timeout, _ASYNC_WAIT))
        try:
            yield is_locked
        finally:
            if is_locked:
                self._lock.release()

    def _read(self, timeout: float | None) -> bool:
        """Read a part of the snapshot or the changes of a batch, which may be none. Returns true if there was one."""
        at = self._at
        if at is None or at.in_snapshot:
            self._read_snapshot(at)
            return True
        if not self._feed.wait(lambda: self._is_there(at), timeout):
            return False
        number = self._next(at)
        with self._feed.operator.changed_view(number) as view:
            first, end = self._within(view.reader(self._state))
            if at.address is not None:
                first = max(first, at.address + b"\x00")
            log_id, batch = view.at.log_id, view.at.batch
            changes = view.changes(self._state)
            answer: list[Change] = []
            size, rest = 0, None
            for change in islice(changes, bisect_left(changes, first, key=_address_of), None):
                if change.address >= end:
                    break
                if size > _PART_BYTES or len(answer) == _PART_ENTRIES:
                    rest = changes
                    break
                token = Token(log_id, batch, change.address, False)
                answer.append(_change("change", token, change.entry, change.old, removed=change.removed))
                size += change.size
        self._pass(answer, Token(log_id, batch, None, False) if rest is None else token)
        self._partly = rest
        return True

    def _pass(self, changes: list[Change], at: Token) -> None:
        """Advance once everything was read: a read that fails in the middle is repeated."""
        self._undelivered.extend(changes)
        self._at = at

    def _is_there(self, at: Token) -> bool:
        """Return true if the changes after a token can be read, or never will be."""
        try:
            return self._next(at) <= self._feed.shown()
        except HistoryCompacted:
            return True
        except TableNotFound:
            # It is being rebuilt.
            return False

    def _next(self, at: Token) -> int:
        """Return the commit with the changes after a token: the token's own commit if it has more.

        Raises:
            HistoryCompacted: The token's batch is no longer kept.
        """
        commit = self._feed.operator.extent.commit_of(at.batch, at.log_id)
        if commit is None:
            raise HistoryCompacted(f"batch {batch_id(at.batch)} of the changelog {at.log_id} is not kept")
        return commit + (at.address is None)

    def _read_snapshot(self, at: Token | None) -> None:
        with self._feed.operator.view(self._feed.shown() if at is None else self._next(at)) as view:
            log_id, number = view.at.log_id, view.at.batch
            reader = view.reader(self._state)
            first, end = self._within(reader)
            if at is not None and at.address:
                first = max(first, at.address + b"\x00")
            address, size = None, 0
            changes = []
            self._partly = None
            for prefix, sub, value in islice(view.scan(reader, first, end), _PART_ENTRIES):
                address = prefix + sub
                size += len(value)
                token = Token(log_id, number, address, True)
                changes.append(_change("snapshot", token, reader.entry(prefix, sub, value), None, removed=False))
                if size > _PART_BYTES:
                    break
        self._pass(changes, Token(log_id, number, address, address is not None))


def changes_of(view: View, state: str, limit: int) -> list[Change]:
    """Return the first changes of a state in a batch, as a subscription delivers them."""
    changes, at = view.changes(state)[:limit], view.at
    tokens = [Token(at.log_id, at.batch, each.address, False) for each in changes]
    return [
        _change("change", token, each.entry, each.old, removed=each.removed)
        for token, each in zip(tokens, changes, strict=True)
    ]


def _change(kind: Literal["snapshot", "change"], token: Token, entry: Entry, old: Any, *, removed: bool) -> Change:
    return Change(
        kind=kind,
        batch=batch_id(token.batch),
        key=entry.key,
        namespace=entry.namespace,
        entry=entry.entry,
        old=old,
        new=entry.value,
        removed=removed,
        token=str(token),
    )
