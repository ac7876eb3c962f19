"""A local store of a third party's: entries in SQLite, as ``store=SqliteStore``."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from keyed.base.arguments import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.content.addresses import PLAIN, decode_time, encode_time
from keyed.content.blocks import Change, TableDelta
from keyed.errors import LocalStoreError
from keyed.stores import MemoryStore

_TABLES = """
CREATE TABLE IF NOT EXISTS entries (prefix BLOB, sub BLOB, value BLOB, kind INT, PRIMARY KEY (prefix, sub));
CREATE INDEX IF NOT EXISTS times ON entries (kind, substr(value, 1, 8), prefix, sub);
CREATE TABLE IF NOT EXISTS position (log TEXT, row INT);
CREATE TABLE IF NOT EXISTS tables (id INT PRIMARY KEY, keys TEXT, rows BLOB);
"""


class SqliteStore:
    """A `LocalStore` in a file; rows of table states are in memory too, and written whole.

    Args:
        folder: The folder of the store.
    """

    def __init__(self, folder: Path) -> None:
        # With isolation_level=None transactions are begun and ended here.
        self._database = sqlite3.connect(folder / "entries.db", isolation_level=None, check_same_thread=False)
        self._database.executescript("PRAGMA synchronous = OFF;" + _TABLES)
        self._tables = MemoryStore()
        for state_id, keys, rows in self._rows("SELECT id, keys, rows FROM tables").fetchall():
            delta = TableDelta(state_id, tuple(keys.split(",")), upserts=pa.ipc.open_stream(rows).read_all())
            self._tables.apply("", 0, (), (delta,))

    def _rows(self, query: str, *given: Any) -> Any:
        try:
            return self._database.execute(query, given)
        except sqlite3.Error as error:
            raise LocalStoreError(f"SQLite: {error}") from error

    def position(self) -> tuple[str, int] | None:
        """See `LocalStore.position`."""
        found: tuple[str, int] | None = self._rows("SELECT log, row FROM position").fetchone()
        return found

    def get(self, prefix: bytes, sub: bytes) -> bytes | None:
        """See `LocalStore.get`."""
        found = self._rows("SELECT value FROM entries WHERE prefix = ? AND sub = ?", prefix, sub).fetchone()
        return None if found is None else found[0]

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """See `LocalStore.scan`."""
        query = "SELECT sub, value FROM entries WHERE prefix = ? AND sub >= ? ORDER BY sub"
        return iter(self._rows(query, prefix, start))

    def due(self, kind: int, up_to: int) -> Iterator[tuple[int, bytes, bytes]]:
        """See `LocalStore.due`."""
        if up_to < MIN_TIMESTAMP:
            return
        query = """SELECT substr(value, 1, 8), prefix, sub FROM entries
        WHERE kind = ? AND substr(value, 1, 8) <= ? ORDER BY substr(value, 1, 8), prefix, sub"""
        for time, prefix, sub in self._rows(query, kind, encode_time(min(up_to, MAX_TIMESTAMP))):
            yield decode_time(time), prefix, sub

    def items(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        """See `LocalStore.items`."""
        return iter(self._rows("SELECT prefix, sub, value FROM entries"))

    def table(self, state_id: int) -> Any:
        """See `LocalStore.table`."""
        return self._tables.table(state_id)

    def apply(self, log_id: str, row: int, changes: Iterable[Change], tables: Sequence[TableDelta] = ()) -> None:
        """See `LocalStore.apply`."""
        self._rows("BEGIN IMMEDIATE")
        try:
            for prefix, sub, value in changes:
                if value is None:
                    self._rows("DELETE FROM entries WHERE prefix = ? AND sub = ?", prefix, sub)
                else:
                    kind = prefix[0] if prefix[0] != PLAIN else None
                    self._rows("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", prefix, sub, value, kind)
            self._tables.apply(log_id, row, (), tables)
            for state_id in {delta.state_id for delta in tables}:
                self._write_table(state_id)
            self._rows("DELETE FROM position")
            self._rows("INSERT INTO position VALUES (?, ?)", log_id, row)
            self._rows("COMMIT")
        except BaseException:
            self._database.rollback()
            # The rows in memory may be ahead of the file.
            self.reset()
            raise

    def _write_table(self, state_id: int) -> None:
        table: Any = self._tables.table(state_id)
        parts = [part for _, part in table.select(None)]
        if not parts:
            self._rows("DELETE FROM tables WHERE id = ?", state_id)
            return
        written = pa.BufferOutputStream()
        rows = pa.concat_tables(parts, promote_options="default")
        with pa.ipc.new_stream(written, rows.schema) as stream:
            stream.write_table(rows)
        data = written.getvalue().to_pybytes()
        self._rows("INSERT OR REPLACE INTO tables VALUES (?, ?, ?)", state_id, ",".join(table.keys), data)

    def reset(self) -> None:
        """See `LocalStore.reset`."""
        for table in ("entries", "position", "tables"):
            self._rows(f"DELETE FROM {table}")
        self._tables.reset()

    def close(self) -> None:
        """See `LocalStore.close`."""
        self._database.close()
        self._tables.close()
