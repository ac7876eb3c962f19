"""Table states of a store on disk: their chunks in its database, read on demand.

Keys and values, beside those of `keyed.stores.disk_store`:

    T | state id (u16 BE)                     directory: a frame of kind KTBL, its version that of the
                                              hash (`keyed.content.row_hash`), with the msgpack of
                                              [key columns, next number, runs: [[chunk, ...], ...]], where a chunk is
                                              [number, rows, least hash, greatest hash, bounds, live rows]
    U | state id (u16 BE) | number (u32 BE)   rows: an Arrow IPC stream, the hash of each row's key before its columns
    V | state id (u16 BE) | number (u32 BE)   which rows are dead, a bit each; there if any is

A chunk's rows are written once, before anything refers to them; the changes of a commit take effect with the directory,
in the write batch of the store's position. Chunks from the next number on are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa

from keyed.codec.frames import RecordFormat
from keyed.content.row_hash import HASH_VERSION
from keyed.errors import CorruptionError, LocalStoreError
from keyed.table_state.chunks import Chunk, ChunkedTable, Mask, Sorted

_STATE = Struct(">cH")
_NUMBER = Struct(">cHI")
_HASH = "__keyed_hash"
#: Size limit of the cache of rows, in bytes.
_MEMORY = 32 << 20

_Chunk = tuple[int, int, int, int, dict[str, tuple[int, int]], int]
_Directory = tuple[tuple[str, ...], int, list[list[_Chunk]]]
_DIRECTORY: RecordFormat[_Directory] = RecordFormat(b"KTBL", HASH_VERSION, _Directory)


class ChunkCache:
    """Cache of the rows of recently used chunks."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], Sorted] = {}
        self._bytes = 0

    def get(self, state_id: int, number: int, load: Callable[[], Sorted]) -> Sorted:
        """Return the rows of a chunk; ``load`` reads them if they are not cached."""
        content = self._held.pop((state_id, number), None)
        if content is None:
            content = load()
            self._bytes += content.table.nbytes
        self._held[state_id, number] = content
        while self._bytes > _MEMORY and len(self._held) > 1:
            self._bytes -= self._held.pop(next(iter(self._held))).table.nbytes
        return content


class _StoredChunk(Chunk):
    """A chunk on disk."""

    def __init__(self, table: DiskTable, entry: _Chunk) -> None:
        self._table = table
        self.number, self.rows, low, high, self.bounds, self._alive = entry
        self.low, self.high = np.uint64(low), np.uint64(high)
        self._dead: Mask | None = None
        self.changed = False

    def content(self) -> Sorted:
        return self._table.content(self.number)

    @property
    def dead(self) -> Mask | None:  # type: ignore[override]
        if self._dead is None and self._alive < self.rows:
            self._dead = self._table.dead(self.number, self.rows)
        return self._dead

    @property
    def alive(self) -> int:
        return self._alive

    def kill(self, rows: Any) -> None:
        dead = self.dead
        self._dead = np.zeros(self.rows, dtype="bool") if dead is None else dead
        self._dead[rows] = True
        self._alive = self.rows - int(np.count_nonzero(self._dead))
        self.changed = True

    def entry(self) -> _Chunk:
        """Return the chunk's entry for the directory."""
        return self.number, self.rows, int(self.low), int(self.high), self.bounds, self._alive


class DiskTable(ChunkedTable):
    """The rows of one table state in a store on disk.

    Args:
        database: The store's database.
        cache: Cache of rows that were read.
        state_id: Id of the state.
        keys: Columns of its key.
    """

    def __init__(self, database: Any, cache: ChunkCache, state_id: int, keys: Sequence[str]) -> None:
        super().__init__(keys)
        self._database = database
        self._cache = cache
        self._state_id = state_id
        self._next = 0
        self._stored: set[int] = set()

    @classmethod
    def open(
        cls, database: Any, cache: ChunkCache, state_id: int, new_keys: Sequence[str] | None = None
    ) -> DiskTable | None:
        """Return the stored table; without one a new table with these columns of the key, or ``None`` without them.

        Raises:
            LocalStoreError: Its directory is damaged.
        """
        record = database.look_up(_STATE.pack(b"T", state_id))
        if record is None:
            return None if new_keys is None else cls(database, cache, state_id, new_keys)
        try:
            keys, following, runs = _DIRECTORY.decode(record, str(database.path))
        except CorruptionError as error:
            raise LocalStoreError(f"{database.path}: damaged directory of table {state_id}: {error}") from error
        table = cls(database, cache, state_id, keys)
        table._next = following
        table.runs = [[_StoredChunk(table, entry) for entry in run] for run in runs]
        table._stored = {entry[0] for run in runs for entry in run}
        return table

    def content(self, number: int) -> Sorted:
        """Return the rows of a chunk."""
        return self._cache.get(self._state_id, number, lambda: self._load(number))

    def dead(self, number: int, rows: int) -> Mask:
        """Return a mask of the dead rows of a chunk."""
        bits = self._read(b"V", number)
        return np.unpackbits(np.frombuffer(bits, "uint8"), count=rows).astype("bool")

    def write(self, batch: Any) -> None:
        """Add the changes of `apply` to a write batch."""
        chunks: dict[int, Any] = {chunk.number: chunk for _, chunk in self.chunks}  # type: ignore[attr-defined]
        for number in self._stored - set(chunks):
            batch.delete(_NUMBER.pack(b"U", self._state_id, number))
            batch.delete(_NUMBER.pack(b"V", self._state_id, number))
        for number, chunk in chunks.items():
            if chunk.changed:
                batch[_NUMBER.pack(b"V", self._state_id, number)] = np.packbits(chunk.dead).tobytes()
                chunk.changed = False
        self._stored = set(chunks)
        runs = [[chunk.entry() for chunk in run] for run in self.runs]  # type: ignore[attr-defined]
        batch[_STATE.pack(b"T", self._state_id)] = _DIRECTORY.encode((self.keys, self._next, runs))

    def keep(self, chunk: Chunk) -> Chunk:
        if isinstance(chunk, _StoredChunk):
            return chunk
        number, self._next = self._next, self._next + 1
        self._stored.add(number)
        content = chunk.content()
        rows = content.table.add_column(0, _HASH, pa.array(content.hashes))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows.combine_chunks())
        # In a separate batch, so that merging large runs does not hold all of their rows in memory. Rows that a failed
        # write left under this number are ignored.
        batch = self._database.batch()
        batch[_NUMBER.pack(b"U", self._state_id, number)] = sink.getvalue().to_pybytes()
        batch.delete(_NUMBER.pack(b"V", self._state_id, number))
        self._database.write(batch)
        kept = _StoredChunk(self, (number, chunk.rows, int(chunk.low), int(chunk.high), chunk.bounds, chunk.rows))
        if chunk.dead is not None:
            kept.kill(chunk.dead)
        return kept

    def _load(self, number: int) -> Sorted:
        try:
            with pa.ipc.open_stream(pa.py_buffer(self._read(b"U", number))) as reader:
                rows = reader.read_all()
            hashes: Any = rows.column(_HASH)
            return Sorted(hashes.to_numpy(), rows.drop_columns([_HASH]))
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise LocalStoreError(
                f"{self._database.path}: damaged rows of table {self._state_id}, chunk {number}: {error}"
            ) from error

    def _read(self, kind: bytes, number: int) -> bytes:
        data: bytes | None = self._database.look_up(_NUMBER.pack(kind, self._state_id, number))
        if data is None:
            raise LocalStoreError(f"{self._database.path}: rows of table {self._state_id}, chunk {number} are missing")
        return data
