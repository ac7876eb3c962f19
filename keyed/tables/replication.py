"""Replication: a copy of a state table outside of keyed that gets each batch's changes, each exactly once."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING
from weakref import WeakSet

from keyed.base.arguments import without_credentials
from keyed.base.background import Background, Following, Status
from keyed.base.closing import Closeable
from keyed.changelog.model import batch_id
from keyed.destinations.sink import NO_COPY, Owner, Sink, SinkBatch, TableChanges, Written
from keyed.errors import DefinitionError, HistoryCompacted, KeyedError, SinkError, StateAccessError, TableNotFound
from keyed.tables.entries import Entry
from keyed.tables.operator_view import View
from keyed.tables.subscription import Feed, Token

if TYPE_CHECKING:
    from keyed.tables.replicated_rows import ReplicatedRows

_log = logging.getLogger(__name__)
#: Seconds that a step waits for a batch, and between two looks at tables that nobody follows.
_WAIT, _LOOK_AGAIN = 1.0, 0.2
#: Seconds after which the position is stored although the table has not changed; and although no batch came: Kafka
#: forgets an offset after a week.
_STORE, _STORE_AGAIN = 60.0, 86_400.0
#: Seconds for which a process that exits waits for a transaction.
_EXIT_WAIT = 5.0
#: Rows that are converted together.
_ROWS = 8192


class Replication(Following, Closeable):
    """A thread that copies a state table: first its state, and then the changes of each batch.

    `StateTable.replicate` starts one. The changes of a batch are one transaction, which also stores the position:
    each batch is in the copy once, and the next replication continues after it.

    If the copy is new, older than ``history=`` of the tables, of another changelog, or has other columns, the whole
    state is compared with it: rows that differ are written, those that the table lacks are removed.

    While the copy cannot be written, the thread retries. Any other error ends it, as closing the tables does; `check`
    raises it.

    Attributes:
        table: Operator and table.
        batch: Id of the last batch in the copy; −1 before it is known.
        transactions: Number of transactions so far.
        rows: Number of rows written so far.
        tombstones: Number of rows removed so far.
        resyncs: Comparisons of the whole state with a copy that was not empty.
    """

    def __init__(self, table: str, operator: str, feed: Feed, to: Sink) -> None:
        self.table = f"{operator}.{table}"
        self.to = to
        self._name = table
        self._feed = feed
        if not isinstance(to, Sink):
            raise DefinitionError(f"replicate: to={without_credentials(to)!r:.200} {NO_COPY}")
        self._writer = to.open_copy(Owner([self.table]))
        self._rows: ReplicatedRows | None = None
        self._at: Token | None = None
        #: Number of the last transaction, 0 before the first, and its token and digest of the columns, if it has them.
        self._number = 0
        self._copied: tuple[str, str] | None = None
        self._is_claimed = False
        self._stored_at = 0.0
        self._changed = threading.Condition()
        self._lock = threading.Lock()
        self.batch = -1
        self.transactions = self.rows = self.tombstones = self.resyncs = 0
        self._work = Background(
            f"replication of {self.table} to {self._writer.id}",
            self._step,
            is_transient=self._is_transient,
            at_end=lambda _: self._notify(),
        )
        try:
            # Errors of the definition are raised by the call.
            self._claim()
            self._work.start()
        except BaseException as error:
            self._writer.close()
            if isinstance(error, KeyedError) or not isinstance(error, Exception):
                raise
            raise self._translate(error) from error
        _open.add(self)

    @property
    def lag(self) -> int:
        """Number of batches that the tables have and the copy lacks.

        Raises:
            KeyedError: The error that ended following of the tables.
        """
        feed, at = self._feed, self._at
        try:
            shown = feed.shown()
            copied = None if at is None else feed.operator.extent.commit_of(at.batch, at.log_id)
        except TableNotFound:
            return 0
        return max(0, shown - (feed.operator.extent.oldest - 1 if copied is None else copied))

    def metrics(self) -> dict[str, int]:
        """Return its counters by name, and its status as a number (`keyed.base.background.Status.number`)."""
        lag: dict[str, int] = {}
        with suppress(Exception):
            lag = {"replication_lag": self.lag}
        return {
            "replication_status": self.status.number,
            "replication_failures": self.failures,
            "replication_batch": self.batch,
            **lag,
            "replication_transactions": self.transactions,
            "replication_rows": self.rows,
            "replication_tombstones": self.tombstones,
            "replication_resyncs": self.resyncs,
        }

    def check(self) -> None:
        """Raise the error that ended it, if there is one."""
        self._work.check()

    def wait_for(self, batch: int, timeout: float = 30.0) -> int:
        """Wait until the copy has a batch.

        Args:
            batch: Id of the batch.
            timeout: Seconds.

        Returns:
            The last batch in the copy.

        Raises:
            TimeoutError: It did not come in time; the message has `trouble`.
        """
        if type(batch) is not int:
            raise DefinitionError(f"wait_for({batch!r}): give the id of a batch")
        deadline = time.monotonic() + timeout
        with self._changed:
            while self.batch < batch:
                self.check()
                if self.status is Status.CLOSED:
                    raise StateAccessError(f"wait_for({batch}): the {self._work.name} is closed, at batch {self.batch}")
                left = deadline - time.monotonic()
                if left <= 0:
                    trouble = self.trouble
                    raise TimeoutError(
                        f"wait_for({batch}): the copy is at batch {self.batch} after {timeout:g} s"
                        f"{f'; its last attempt failed: {trouble}' if trouble else ''}"
                    )
                self._changed.wait(min(left, _WAIT))
        return self.batch

    def join(self) -> None:
        """Wait until it ends: another thread closes it, or an error ends it."""
        with self._changed:
            while self._work.is_running:
                self._changed.wait(_WAIT)
        self.check()

    def close(self, timeout: float | None = None) -> None:
        """End the thread after its transaction, and release the copy.

        Args:
            timeout: Maximal seconds for the transaction; ``None`` for no limit.
        """
        if self._work.is_inherited:
            return
        self._work.close(timeout)
        _open.discard(self)
        if self._work.is_running:
            return
        with self._lock:
            if self._is_claimed and self.status is Status.CLOSED:
                self._is_claimed = False
                try:
                    self._store()
                except Exception as error:  # noqa: BLE001 - the next one starts at the last transaction
                    _log.info("%s: its position was not stored: %s", self._work.name, error)
            self._writer.close()

    def __repr__(self) -> str:
        return f"<Replication of {self.table} to {self._writer.id}, {self.status.value}, batch {self.batch}>"

    def _claim(self) -> None:
        self._writer.claim()
        last = self._writer.last_copy()
        if last is None:
            raise SinkError(f"{self.to!r}: {self._writer.id} is not a copy of {self.table!r}; give another one")
        self._number, note = last
        self._copied = (note["token"], note.get("columns", "")) if "token" in note else None
        self._is_claimed = True
        self._at = None if self._copied is None else Token.of(self._copied[0])
        self._stored_at = time.monotonic()
        if self._at is not None:
            self._show(self._at)

    def _step(self) -> float:
        try:
            if not self._is_claimed:
                self._claim()
            if self._advance():
                return 0.0
            since = time.monotonic() - self._stored_at
            if since > _STORE:
                # Batches without changes have no transaction, so their position is stored now and then.
                self._store(again=since > _STORE_AGAIN)
        except Exception as error:
            self._is_claimed = False
            self._writer.close()
            if isinstance(error, KeyedError) or self._is_transient(error):
                raise
            raise self._translate(error) from error
        if self._feed.following.is_running:
            self._feed.wait(lambda: self._work.is_stopping or self._next() is not None, _WAIT)
            return 0.0
        return _LOOK_AGAIN

    def _is_transient(self, error: Exception) -> bool:
        if self._feed.following.status is Status.FAILED:
            return False
        return any(self._writer.is_transient(each) for each in (error, error.__cause__) if each is not None)

    def _translate(self, error: Exception) -> SinkError:
        """Return the error to raise for one of the sink."""
        return SinkError(f"{self.to!r}: {type(error).__name__}: {error}")

    def _next(self) -> int | None:
        """Return the commit to be written next, 0 for the whole state, or ``None`` if there is nothing to do."""
        feed, at = self._feed, self._at
        try:
            extent, shown = feed.operator.extent, feed.shown()
        except TableNotFound:
            # There is no batch yet, or the store is being rebuilt.
            return None
        if at is None:
            return 0
        commit = extent.commit_of(at.batch, at.log_id)
        if commit is None:
            # Tables that are still catching up have an older batch.
            return None if at.log_id == extent.log_id and at.batch > extent.batch else 0
        return commit + 1 if commit < shown else None

    def _advance(self) -> bool:
        """Write the next batch, or the whole state. Returns false if there is nothing to do."""
        number = self._next()
        if number is None:
            return False
        if number:
            try:
                self._write(number)
                return True
            except HistoryCompacted as error:
                reason = str(error)
        elif self._at is None:
            reason = "the batch of the copy is not known"
        else:
            reason = f"batch {batch_id(self._at.batch)} of the changelog {self._at.log_id} is not kept"
        self._resync(reason)
        return True

    def _write(self, number: int) -> None:
        """Write the changes of a commit.

        Raises:
            HistoryCompacted: They are not kept, or the columns have changed.
        """
        with self._feed.operator.changed_view(number) as view:
            rows, token = self._rows_of(view, number - 1), Token(view.at.log_id, view.at.batch, None, False)
            upserts, removed = rows.changes(view)
            if not upserts and not removed:
                self._at = token
                self._show(token)
                return
            digest = self._digest(rows)
            if self._copied is not None and digest != self._copied[1] != "":
                raise HistoryCompacted("the table has other columns than the copy")
            written = self._commit(token, digest, rows, upserts, removed)
        self._wrote(written, token)

    def _resync(self, reason: str) -> None:
        """Change the copy to the newest state."""
        with self._feed.operator.view(self._feed.shown()) as view:
            rows, token = self._rows_of(view), Token(view.at.log_id, view.at.batch, None, False)
            digest, is_new = self._digest(rows), not self._number
            written = self._commit(token, digest, rows, rows.snapshot(view), replaces=True)
        if not is_new or self._at is not None:
            self.resyncs += 1
            _log.warning(
                "%s: continued with the whole state of batch %d, %d rows written and %d removed: %s",
                self._work.name,
                batch_id(token.batch),
                written.rows,
                written.tombstones,
                reason,
            )
        self._wrote(written, token)

    def _digest(self, rows: ReplicatedRows) -> str:
        """Return a digest of the columns; empty if they are not known yet.

        Raises:
            DefinitionError: The sink has another key.
        """
        key = self._writer.copy_key
        if key is not None and {*key} != {*rows.key}:
            raise DefinitionError(
                f"replicate: {self.to!r}: the columns that identify a row of {self.table!r} are "
                f"{', '.join(rows.key)}; give key={list(rows.key)!r}"
            )
        return self._writer.digest_copy(rows) if rows.are_types_known else ""

    def _rows_of(self, view: View, before: int | None = None) -> ReplicatedRows:
        """Return the rows of a batch; those of the commit before show the types if the batch has removed all."""
        from keyed.tables.replicated_rows import ReplicatedRows

        rows = self._rows
        if rows is None or not rows.fits(view):
            namespaces = self.to.namespaces
            rows = ReplicatedRows(view, self._name, namespaces=namespaces)
            if before is not None and not rows.are_types_known:
                with self._feed.operator.view(before) as earlier, suppress(TableNotFound):
                    older = ReplicatedRows(earlier, self._name, namespaces=namespaces)
                    rows = older if older.fits(view) else rows
            self._rows = rows
        return rows

    def _commit(
        self,
        token: Token,
        digest: str,
        rows: ReplicatedRows | None = None,
        upserts: Iterable[Entry] = (),
        removed: Iterable[Entry] = (),
        *,
        replaces: bool = False,
    ) -> Written:
        """Write changes in one transaction, with the token of their batch; none before there are rows.

        Its note has ``token``, ``columns``, the digest, and ``state-batch``, the id of the batch.

        Args:
            token: The token.
            digest: The digest of the columns.
            rows: The rows of the table; ``None`` without changes.
            upserts: Written entries.
            removed: Removed ones.
            replaces: True to remove all other rows.
        """
        from keyed.tables.replicated_rows import CopiedRows

        written = Written()
        if rows is None or (replaces and not rows.are_types_known):
            if not self._number:
                return written
            # There are no rows, so the types of their keys may not be known.
            rows, upserts = None, ()

        def parts(entries: Iterable[Entry], *, of_keys: bool) -> Iterator[SinkBatch]:
            remaining = iter(entries)
            while part := list(islice(remaining, _ROWS)):
                assert rows is not None
                written.rows += 0 if of_keys else len(part)
                written.tombstones += len(part) if of_keys else 0
                yield CopiedRows(rows, part, self.to, of_keys)

        changes = TableChanges(rows, parts(upserts, of_keys=False), parts(removed, of_keys=True), replaces, written)
        note = {"token": str(token), "state-batch": str(batch_id(token.batch)), "columns": digest}
        if not self._writer.write_changes(changes, self._number + 1, note):
            raise SinkError(
                f"{self.to!r}: another replication of this table has written; it goes on in the place of this one"
            )
        self._number += 1
        self._copied, self._stored_at = (str(token), digest), time.monotonic()
        return written

    def _wrote(self, written: Written, token: Token) -> None:
        self._at = token
        self.transactions += 1
        self.rows += written.rows
        self.tombstones += written.tombstones
        self._show(token)

    def _store(self, *, again: bool = False) -> None:
        at, copied = self._at, self._copied
        if at is None or copied is None or (copied[0] == str(at) and not again):
            return
        self._commit(at, copied[1])

    def _show(self, token: Token) -> None:
        self.batch = batch_id(token.batch)
        self._notify()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


_open: WeakSet[Replication] = WeakSet()


@atexit.register
def _close_all() -> None:
    """End replications before the interpreter shuts down: a client that exists then may call back into it."""
    for each in list(_open):
        each.close(_EXIT_WAIT)
