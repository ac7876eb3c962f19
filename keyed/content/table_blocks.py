"""Changes of tables as blocks of a log: Arrow IPC streams, compressed."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from keyed.codec.arrow_streams import read_stream, write_stream
from keyed.content.blocks import TableBlock, TableChange
from keyed.tables.chunks import TableDelta
from keyed.tables.layout import row_bytes

#: Bytes of values in one block, so that a log row stays below about a megabyte.
_BLOCK_BYTES = 1 << 20


def blocks_of(delta: TableDelta) -> Iterator[TableChange]:
    """The blocks that say what ``delta`` says; the ranges and removed keys stand before the written rows."""
    ranges = delta.ranges
    for rows, is_removed in ((delta.removed, True), (delta.upserts, False)):
        for part in _parts(rows) if rows is not None else ():
            data = (write_stream(part), None) if is_removed else (None, write_stream(part))
            yield TableChange(delta.keys, ranges, TableBlock(delta.state_id, part.num_rows, *data))
            ranges = ()
    if ranges:
        yield TableChange(delta.keys, ranges, TableBlock(delta.state_id, 0, None, None))


def delta_of(change: TableChange, where: str) -> TableDelta:
    """What a block says.

    Raises:
        CorruptionError: Its rows cannot be read.
    """
    block = change.block
    removed, upserts = (None if data is None else read_stream(data, where) for data in (block.removed, block.written))
    return TableDelta(block.state_id, change.keys, change.ranges, removed, upserts)


def _parts(table: pa.Table) -> Iterator[pa.Table]:
    size = max(1, table.num_rows * _BLOCK_BYTES // max(1, row_bytes(table)))
    for start in range(0, table.num_rows, size):
        yield table.slice(start, size)
