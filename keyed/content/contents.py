"""The whole content of a key group: entries and rows of tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from keyed.content.addresses import key_of
from keyed.content.blocks import BLOCK_BYTES, Block, Change, LogBlock, TableChange, TableDelta
from keyed.content.delta import OVERHEAD, Delta, deltas, table_keys
from keyed.content.entry_hash import LiveHash
from keyed.content.local_store import ReadStore
from keyed.content.table_entries import entries_of, tables_of


def contents(store: ReadStore, states: dict[str, Any]) -> Iterator[Delta]:
    """Yield the whole content of a store, in parts of about `BLOCK_BYTES`.

    Args:
        store: The store.
        states: Descriptions of the states, by name.
    """
    entries: list[Change] = []
    size = 0
    for entry in store.items():
        entries.append(entry)
        size += len(entry[0]) + len(entry[1]) + len(entry[2]) + OVERHEAD
        if size >= BLOCK_BYTES:
            yield Delta(entries)
            entries, size = [], 0
    if entries:
        yield Delta(entries)
    for state_id, keys in table_keys(states).items():
        table = store.table(state_id)
        for _, rows in table.select(None) if table is not None else ():
            if rows.num_rows:
                yield Delta(tables=[TableDelta(state_id, keys, upserts=rows)])


def content_blocks(store: ReadStore, states: dict[str, Any]) -> Iterator[Block]:
    """Yield the `contents` of a store as blocks of a changelog."""
    return (block for delta in contents(store, states) for block in delta.blocks())


def content_entries(store: ReadStore, states: dict[str, Any], where: str = "a local store") -> Iterator[Change]:
    """Yield the `contents` of a store, rows of tables as entries; ``where`` is the store, for messages."""
    tables = tables_of(states, where)
    return (entry for block in content_blocks(store, states) for entry in entries_of(block, tables, where))


def contents_hash(store: ReadStore, states: dict[str, Any]) -> LiveHash:
    """Return the number and hash of the whole content of a store."""
    live = LiveHash()
    for delta in contents(store, states):
        live.add(delta)
    return live


def stored_key(store: ReadStore, states: dict[str, Any]) -> Any:
    """Return one of the keys in a store; ``None`` if there is none. Keys of broadcast states are null."""
    keys = (key_of(prefix) for prefix, _, _ in content_entries(store, states))
    return next((key for key in keys if key is not None), None)


class StillLive:
    """Collects the entries and rows of log blocks that are still live and unchanged.

    Args:
        store: The live entries and rows.
        changed: The current changes: entries and rows that do not stay unchanged.
    """

    def __init__(self, store: ReadStore, changed: Delta) -> None:
        self._store = store
        self._changed = changed.entries
        self._goes: set[tuple[bytes, bytes]] | None = None
        self._entries: list[Change] = []
        self._rows: dict[int, list[Any]] = {}

    def add(self, block: LogBlock, where: str) -> int:
        """Add the live entries and rows of a block. Returns their approximate bytes in the log.

        Raises:
            CorruptionError: The rows of a table cannot be read.
        """
        if self._goes is None:
            self._goes = {(prefix, sub) for prefix, sub, _ in self._changed}
        get, goes, size = self._store.get, self._goes, 0
        stream = block.block.written or b"" if isinstance(block, TableChange) else b""
        (delta,) = deltas([block], {}, where)
        for prefix, sub, value in delta.entries:
            if value is not None and (prefix, sub) not in goes and get(prefix, sub) == value:
                self._entries.append((prefix, sub, value))
                size += len(prefix) + len(sub) + len(value)
        for table in delta.tables:
            stored = self._store.table(table.state_id)
            if stored is not None and table.upserts is not None:
                positions = stored.live(table.upserts)
                self._rows.setdefault(table.state_id, []).append(positions)
                size += len(stream) * len(positions) // max(1, table.upserts.num_rows)
        return size

    def delta(self) -> Delta:
        """Return the collected entries and rows, each row once."""
        tables = []
        for state_id, live in self._rows.items():
            import numpy as np

            stored = self._store.table(state_id)
            rows = stored.at(np.unique(np.concatenate(live))) if stored is not None else None
            if stored is not None and rows is not None:
                tables.append(TableDelta(state_id, stored.keys, upserts=rows))
        return Delta(self._entries, tables)
