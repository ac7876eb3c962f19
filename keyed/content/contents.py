"""The whole content of a key group, entries and rows of tables, and the hash of it.

Each live entry is hashed by itself, and the hashes are added modulo 2^128. A commit subtracts replaced entries and adds
written ones, without reading the others, and any two programs with the same entries get the same sum (the incremental
multiset hash of Clarke et al., 2003, with addition).

    hash of an entry   XXH3 (128 bits, seed 0) over  length of prefix (u32 BE) | prefix | sub | value
    of no entries      0
    as text            32 hexadecimal digits

The length of sub is not hashed: under one prefix all subs are prefix-free encodings. Rows of tables are hashed by
`keyed.content.row_hash`, and their hashes are added like those of entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_128_intdigest

from keyed.content.addresses import key_of
from keyed.content.blocks import BLOCK_BYTES, Block, Change, LogBlock, TableChange, TableDelta
from keyed.content.delta import OVERHEAD, Delta, deltas, table_keys
from keyed.content.local_store import ReadStore
from keyed.content.table_entries import entries_of, tables_of
from keyed.errors import CorruptionError

if TYPE_CHECKING:
    import pyarrow as pa


MODULUS = 1 << 128
_DIGITS = 32
#: The packed lengths of usual prefixes.
_LENGTHS = tuple(size.to_bytes(4, "big") for size in range(256))


def hash_sum(entries: Iterable[tuple[bytes, bytes, bytes | None]], start: int = 0) -> int:
    """Return ``start`` plus the hashes of entries, modulo 2^128. A value of ``None`` adds nothing."""
    return sum(map(xxh3_128_intdigest, _hashed(entries)), start) % MODULUS


def _hashed(entries: Iterable[tuple[bytes, bytes, bytes | None]]) -> Iterator[bytes]:
    """Return the hashed bytes of the entries that have a value."""
    return (
        b"".join((_LENGTHS[len(prefix)] if len(prefix) < 256 else len(prefix).to_bytes(4, "big"), prefix, sub, value))
        for prefix, sub, value in entries
        if value is not None
    )


class LiveHash:
    """The hash and the number of live entries and rows, updated with each change.

    Args:
        store: The live entries and rows before each change; empty by default.
        value: Its hash.

    Attributes:
        value: The hash, modulo 2^128.
        live: Number of entries and rows, relative to the start.
    """

    def __init__(self, store: ReadStore | None = None, value: int = 0) -> None:
        self._store = store
        self.value = value
        self.live = 0

    def add(self, delta: Delta, replaced: Mapping[int, pa.Table] | None = None) -> None:
        """Add a change that the store does not have yet.

        Args:
            delta: The change, with each address once.
            replaced: The rows that it removes or overwrites, by state id, if they are known.
        """
        digest, store = xxh3_128_intdigest, self._store
        total, live = self.value, self.live
        if store is None:
            hashes = list(map(digest, _hashed(delta.entries)))
            total, live = sum(hashes, total), live + len(hashes)
        else:
            for prefix, sub, value in delta.entries:
                head = len(prefix).to_bytes(4, "big") + prefix + sub
                old = store.get(prefix, sub)
                if value is not None:
                    total += digest(head + value)
                    live += 1
                if old is not None:
                    total -= digest(head + old)
                    live -= 1
        for table in delta.tables:
            from keyed.content.row_hash import rows_hash

            old_rows = _stored(store, table) if replaced is None else replaced.get(table.state_id)
            for sign, rows in ((1, table.upserts), (-1, old_rows)):
                if rows is not None:
                    total += sign * rows_hash(rows, table.state_id)
                    live += sign * rows.num_rows
        self.value, self.live = total % MODULUS, live


def _stored(store: ReadStore | None, table: TableDelta) -> pa.Table | None:
    """Return the rows that a change removes or overwrites."""
    stored, keys = None if store is None else store.table(table.state_id), table.changed_keys
    return None if stored is None or keys is None else stored.rows_of(keys)


def hash_text(value: int) -> str:
    """Return the text form of a hash, for storage and display."""
    return f"{value:0{_DIGITS}x}"


def hash_of_text(text: str, where: str) -> int:
    """Return the hash of a text from `hash_text`.

    Raises:
        CorruptionError: It is not a hash.
    """
    if len(text) != _DIGITS or not all(digit in "0123456789abcdef" for digit in text):
        raise CorruptionError(f"{text!r} is not a hash of {_DIGITS} hexadecimal digits", where=where)
    return int(text, 16)


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
