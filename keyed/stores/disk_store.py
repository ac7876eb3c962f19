"""Base of the local stores on disk: the keys and values of an ordered database of bytes.

    M                                       position: a frame of kind KPOS, version 1, with the payload
                                            row (i64 BE) | number of floors (u8) | floors | log id (UTF-8)
                                            where a floor is kind (u8) | time (8 bytes)
    E | prefix | sub                        length of the prefix (u32 BE) | value
    I | kind (u8) | time | prefix | sub     length of the prefix (u32 BE)
    T, U, V ...                             table states: `keyed.stores.disk_tables`

Prefix, sub, time and kind are those of `keyed.content.addresses`. No prefix is a proper prefix of another one, so the
keys under E sort by (prefix, sub) and those under I by (time, prefix, sub).

A *floor* is a time before which a kind has no entries. Fired and expired entries leave tombstones at the low end of
their kind until a compaction removes them; reading starts at the floor and so skips them, and a kind without due
entries is not read at all.

A store caches up to 32 MiB of values that it has read since the last `apply`, and up to 32 MiB of rows of tables.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING, Any

from keyed.base.arguments import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.base.closing import closing_on_error
from keyed.codec.frames import frame, unframe
from keyed.content.addresses import PLAIN, TIMER_PROCESSING, decode_time, encode_time
from keyed.content.blocks import Change, TableDelta
from keyed.errors import CorruptionError, LocalStoreError
from keyed.stores.database import successor

if TYPE_CHECKING:
    from keyed.stores.disk_tables import ChunkCache, DiskTable
    from keyed.table_state.chunks import ChunkedTable

_POSITION = b"M"
_FRAME, _VERSION = b"KPOS", 1
_ROW = Struct(">qB")
_pack_length = Struct(">I").pack
#: The packed lengths of usual prefixes.
_LENGTHS = tuple(_pack_length(size) for size in range(256))
#: Size limit of the cache of values, and the overhead of each value in it.
_MEMORY, _OVERHEAD = 32 << 20, 200
#: Number of entries that are looked up in one call.
_LOOK_UPS = 1024
_UNKNOWN = b"?"


class DiskStore:
    """Base of the stores on disk: `_connect` opens the database.

    Args:
        path: Folder of the store; created if missing, with its parents.

    Raises:
        LocalStoreError: The folder is damaged, in use or cannot be created. The message names it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._open()

    def _connect(self) -> Any:
        """Open the database."""
        raise NotImplementedError

    def _open(self) -> None:
        self._database = database = self._connect()
        self._get = database.get
        self._forget()
        self._tables: dict[int, DiskTable] = {}
        self._chunks: ChunkCache | None = None
        with closing_on_error(database):
            self._position, self._floors = self._read_position()

    def _read_position(self) -> tuple[tuple[str, int] | None, dict[int, bytes]]:
        """Read the record of the position and the floors."""
        where = str(self._database.path)
        record = self._database.look_up(_POSITION)
        if record is None:
            for _ in self._database.range(b"E", b"\xff"):
                raise LocalStoreError(f"{where} holds entries but no position")
            return None, {}
        try:
            payload = unframe(_FRAME, record, where=where, version=_VERSION)
            row, size = _ROW.unpack_from(payload)
            end = _ROW.size + 9 * size
            floors = {payload[at]: payload[at + 1 : at + 9] for at in range(_ROW.size, end, 9)}
            return (payload[end:].decode(), row), floors
        except (CorruptionError, UnicodeDecodeError, IndexError, struct_error) as error:
            raise LocalStoreError(f"{where}: damaged position record: {error}") from error

    def position(self) -> tuple[str, int] | None:
        """See `LocalStore.position`."""
        return self._position

    def get(self, prefix: bytes, sub: bytes) -> bytes | None:
        """See `LocalStore.get`. Values that were read since the last `apply` are cached."""
        key = b"E" + prefix + sub
        value = self._read.get(key, _UNKNOWN)
        if value is not _UNKNOWN:
            return value
        try:
            value = self._get(key)
        except Exception as error:
            raise self._database.failed("cannot be read", error) from error
        if value is None:
            self._room -= _OVERHEAD
        else:
            value = value[4:]
            self._room -= _OVERHEAD + len(value)
        if self._room < 0:
            self._forget()
        self._read[key] = value
        return value

    def _forget(self) -> None:
        self._read: dict[bytes, bytes | None] = {}
        self._room = _MEMORY

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """See `LocalStore.scan`."""
        head = b"E" + prefix
        length = len(head)
        return ((key[length:], value[4:]) for key, value in self._database.range(head + start, successor(head)))

    def due(self, kind: int, up_to: int) -> Iterator[tuple[int, bytes, bytes]]:
        """See `LocalStore.due`."""
        floor = self._floors.get(kind)
        if floor is None or up_to < MIN_TIMESTAMP:
            return
        last = encode_time(min(up_to, MAX_TIMESTAMP))
        if last < floor:
            return
        head = bytes((ord("I"), kind))
        first = True
        # Prefixes start with their kind, so FF comes after all that are due at the last time.
        for key, length in self._database.range(head + floor, head + last + b"\xff"):
            if first:
                first = False
                self._floors[kind] = key[2:10]
            middle = 10 + int.from_bytes(length, "big")
            yield decode_time(key, 2), key[10:middle], key[middle:]
        if first:
            self._floors[kind] = encode_time(min(up_to, MAX_TIMESTAMP - 1) + 1)

    def items(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        """See `LocalStore.items`. The order is that of (prefix, sub)."""
        for key, value in self._database.range(b"E", b"F"):
            middle = 1 + int.from_bytes(value[:4], "big")
            yield key[1:middle], key[middle:], value[4:]

    def table(self, state_id: int) -> ChunkedTable | None:
        """See `LocalStore.table`."""
        return self._table(state_id)

    def _table(self, state_id: int, keys: Sequence[str] | None = None) -> DiskTable | None:
        """Return a table; a new one with these columns of the key, if they are given and it does not exist."""
        table = self._tables.get(state_id)
        if table is None:
            from keyed.stores.disk_tables import ChunkCache, DiskTable

            self._chunks = self._chunks or ChunkCache()
            table = DiskTable.open(self._database, self._chunks, state_id, keys)
            if table is not None:
                self._tables[state_id] = table
        return table

    def apply(self, log_id: str, row: int, changes: Iterable[Change], tables: Sequence[TableDelta] = ()) -> None:
        """See `LocalStore.apply`. When it raises, the store is as before."""
        batch = self._database.batch()
        floors = dict(self._floors)
        self._change(batch, changes, floors)
        try:
            self._change_tables(batch, tables)
            self._write(batch, log_id, row, floors)
        except BaseException:
            # The content on disk is as before; the cached tables may not be.
            self._tables.clear()
            raise
        self._position = (log_id, row)
        self._floors = floors
        self._forget()

    def _change(self, batch: Any, changes: Iterable[Change], floors: dict[int, bytes]) -> None:
        """Add changes of entries to a write batch, and to the floors."""
        timed: dict[bytes, Change] = {}
        for change in changes:
            prefix, sub, value = change
            kind = prefix[0]
            key = b"E" + prefix + sub
            if kind == PLAIN:
                if value is None:
                    batch.delete(key)
                else:
                    size = len(prefix)
                    batch[key] = (_LENGTHS[size] if size < 256 else _pack_length(size)) + value
            elif kind >= TIMER_PROCESSING and sub[0] == 0:
                # An unnamed timer has its time in its address, so its place in the index needs no look-up.
                index = b"I%c%b%b%b" % (kind, sub[1:9], prefix, sub)
                if value is None:
                    batch.delete(key)
                    batch.delete(index)
                else:
                    size = len(prefix)
                    length = _LENGTHS[size] if size < 256 else _pack_length(size)
                    batch[key] = length + value
                    batch[index] = length
                    floor = floors.get(kind)
                    if floor is None or value[:8] < floor:
                        floors[kind] = value[:8]
            else:
                timed[key] = change
        if timed:
            self._apply_timed(batch, timed, floors)

    def _change_tables(self, batch: Any, tables: Sequence[TableDelta]) -> None:
        """Add changes of tables to a write batch."""
        changed: dict[int, Any] = {delta.state_id: self._table(delta.state_id, delta.keys) for delta in tables}
        for delta in tables:
            changed[delta.state_id].apply(delta)
        for table in changed.values():
            table.compact()
            table.write(batch)

    def _write(self, batch: Any, log_id: str, row: int, floors: dict[int, bytes]) -> None:
        """Write a batch with the position."""
        payload = _ROW.pack(row, len(floors)) + b"".join(b"%c%b" % floor for floor in floors.items()) + log_id.encode()
        batch[_POSITION] = frame(_FRAME, _VERSION, payload)
        self._database.write(batch)

    def _apply_timed(self, batch: Any, changes: dict[bytes, Change], floors: dict[int, bytes]) -> None:
        """Add changes of entries whose old place in the time index must be looked up, one change per address."""
        known = self._read
        rest = iter(changes.items())
        while part := list(islice(rest, _LOOK_UPS)):
            unknown = [key for key, _ in part if key not in known]
            stored = dict(zip(unknown, self._database.look_up(unknown), strict=True)) if unknown else {}
            for key, (prefix, sub, value) in part:
                kind = prefix[0]
                if key in stored:
                    raw = stored[key]
                    old = None if raw is None else raw[4:12]
                else:
                    raw = known[key]
                    old = None if raw is None else raw[:8]
                new = None if value is None else value[:8]
                if old is not None and old != new:
                    batch.delete(b"I%c%b%b%b" % (kind, old, prefix, sub))
                if value is None or new is None:
                    batch.delete(key)
                    continue
                length = _pack_length(len(prefix))
                batch[key] = length + value
                if old != new:
                    batch[b"I%c%b%b%b" % (kind, new, prefix, sub)] = length
                    floor = floors.get(kind)
                    if floor is None or new < floor:
                        floors[kind] = new
