"""Push: a table's state, and then every change of it, batch by batch, from wherever a reader left off."""

from __future__ import annotations

import asyncio
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import islice
from typing import Any, Literal

import attrs
import msgspec

from keyed.errors import DefinitionError, HistoryCompacted, TableNotFound
from keyed.views.entries import Entry, EntryReader
from keyed.views.operator_view import Operator

#: Entries of a snapshot that are read at a time.
_SNAPSHOT_ENTRIES = 1_000
#: How long a thread waits for an asynchronous reader, which may have gone away meanwhile, seconds.
_ASYNC_WAIT = 1.0


@attrs.frozen(kw_only=True)
class Change:
    """An entry as a batch left it.

    Attributes:
        kind: ``"snapshot"`` for an entry of the state that a subscription begins with, else ``"change"``.
        batch: Number of the batch.
        key: The key.
        namespace: The namespace beside the key; ``None`` is the state itself.
        entry: Which entry of the key, as `Entry.entry` has it.
        old: The value before the batch; ``None`` if there was none, and in a snapshot.
        new: The value after it; ``None`` if it is gone.
        removed: Whether it is gone: a map may hold ``None``.
        token: What goes on behind this change: text for ``subscribe(after=)``.
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
    """Where a subscription is.

    Attributes:
        log_id: Identity of the changelog.
        batch: The batch that the last change is of.
        address: The address of the last entry given; of a whole batch ``None``.
        in_snapshot: Whether it was part of the snapshot.
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
            DefinitionError: It is none.
        """
        try:
            return _decode(urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4)))
        except (ValueError, AttributeError) as error:
            raise DefinitionError(f"after={text!r} is no token of a subscription") from error


_decode = msgspec.msgpack.Decoder(Token).decode


@attrs.frozen
class Feed:
    """Where changes of an operator's tables come from.

    Attributes:
        operator: The operator.
        shown: Gives the newest commit of it that is shown.
        wait: Waits until something is so, for so many seconds at most or for ever; gives whether it is.
    """

    operator: Operator
    shown: Callable[[], int]
    wait: Callable[[Callable[[], bool], float | None], bool]


class Subscription(Iterator[Change]):
    """The changes of a table: first the state as one batch left it, then what each later batch changed, in order.

    Each change comes once. A reader that was away for longer than the history goes back, or whose token is of another
    changelog, gets the state anew, in changes of kind ``"snapshot"``: what it had before is to be dropped at the first
    of them, and `resets` counts it.

    Iterating waits for changes; `take` waits for as long as it is told; ``async for`` waits in a thread. Nothing is
    kept for a reader: a slow one reads from the history, until it is behind that.

    Attributes:
        resets: How often the state was given anew.
        token: What goes on behind the last change that was given, for ``subscribe(after=)``; ``None`` before the first.
    """

    def __init__(
        self,
        state: str,
        feed: Feed,
        within: Callable[[EntryReader], tuple[bytes, bytes]],
        after: str | None,
    ) -> None:
        self._state = state
        self._feed = feed
        self._within = within
        self._given: deque[Change] = deque()
        self.resets = 0
        self.token: str | None = None
        # What was read last; `None` before the snapshot.
        self._at: Token | None = None
        if after in ("now", "beginning"):
            operator = feed.operator
            with operator.view(feed.shown() if after == "now" else operator.extent.oldest) as view:
                now = after == "now"
                self._at = Token(view.at.log_id, view.at.batch, None if now else b"", not now)
        elif after is not None:
            self._at = Token.of(after)

    def take(self, timeout: float | None = None) -> list[Change]:
        """Return the next changes: those of one batch, or a part of the snapshot.

        Args:
            timeout: Seconds to wait for them; for ever if ``None``.

        Returns:
            The changes; none if the time is over.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._given:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                if not self._read(left):
                    return []
            except HistoryCompacted:
                self._at = None
                self.resets += 1
        changes = list(self._given)
        self._given.clear()
        self.token = changes[-1].token
        return changes

    def __next__(self) -> Change:
        if not self._given:
            self._given.extend(self.take())
        change = self._given.popleft()
        self.token = change.token
        return change

    async def __aiter__(self) -> AsyncIterator[Change]:
        while True:
            for change in await asyncio.to_thread(self.take, _ASYNC_WAIT):
                self.token = change.token
                yield change

    def _read(self, timeout: float | None) -> bool:
        """Read a part of the snapshot or the changes of a batch, which may be none. Gives whether there was one."""
        at = self._at
        if at is None or at.in_snapshot:
            self._read_snapshot(at)
            return True
        if not self._feed.wait(lambda: self._is_there(at), timeout):
            return False
        number = self._next(at)
        with self._feed.operator.view(number) as view:
            if not view.at.follows or number <= view.extent.oldest:
                raise HistoryCompacted(f"the changes of batch {view.at.batch} are not kept")
            first, end = self._within(view.reader(self._state))
            if at.address is not None:
                first = max(first, at.address + b"\x00")
            log_id, batch = view.at.log_id, view.at.batch
            for change in view.changes(self._state):
                if first <= change.address < end:
                    token = Token(log_id, batch, change.address, False)
                    self._given.append(_change("change", token, change.entry, change.old, removed=change.removed))
        self._at = Token(log_id, batch, None, False)
        return True

    def _is_there(self, at: Token) -> bool:
        """Tell whether what follows a token can be read, or never will."""
        try:
            return self._next(at) <= self._feed.shown()
        except HistoryCompacted:
            return True
        except TableNotFound:
            # It is being built anew.
            return False

    def _next(self, at: Token) -> int:
        """Return the commit that has what follows a token; that of the token itself if there is more of it.

        Raises:
            HistoryCompacted: The token's batch is not kept.
        """
        commit = self._feed.operator.extent.commit_of(at.batch, at.log_id)
        if commit is None:
            raise HistoryCompacted(f"batch {at.batch} of the changelog {at.log_id} is not kept")
        return commit + (at.address is None)

    def _read_snapshot(self, at: Token | None) -> None:
        with self._feed.operator.view(self._feed.shown() if at is None else self._next(at)) as view:
            log_id, number = view.at.log_id, view.at.batch
            reader = view.reader(self._state)
            first, end = self._within(reader)
            if at is not None and at.address:
                first = max(first, at.address + b"\x00")
            address = None
            for prefix, sub, value in islice(view.scan(reader, first, end), _SNAPSHOT_ENTRIES):
                address = prefix + sub
                token = Token(log_id, number, address, True)
                self._given.append(_change("snapshot", token, reader.entry(prefix, sub, value), None, removed=False))
        self._at = Token(log_id, number, address, address is not None)


def _change(kind: Literal["snapshot", "change"], token: Token, entry: Entry, old: Any, *, removed: bool) -> Change:
    return Change(
        kind=kind,
        batch=token.batch,
        key=entry.key,
        namespace=entry.namespace,
        entry=entry.entry,
        old=old,
        new=entry.value,
        removed=removed,
        token=str(token),
    )
