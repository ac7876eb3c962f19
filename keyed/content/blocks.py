"""Blocks: many changes of entries as columns, inside a record of a log.

An entry is an address, which is a pair (prefix, sub), with a value (`keyed.content.addresses`). Bodies, as msgpack:

    changes     [prefixes: [bytes], subs: [bytes] or [] if all are empty, values: [bytes or nil for a tombstone]]
    table rows  [state id, rows: int, removed: bytes or nil, written: bytes or nil]    both are Arrow IPC streams
    table       [key columns: [str], ranges: [[[column: str, least: int, greatest: int]]], table rows as above]
                where all rows go that are in one of the ranges, then the removed ones, then the others are written

The last of them is for the log of a key group alone: in a changelog removed ranges are spelt out as keys. A body does
not say which of the three it is: the record that it stands in does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import msgspec

from keyed.errors import CorruptionError

BLOCK_BYTES = 1 << 20
"""A block of changes is closed when it has so many bytes."""

Change = tuple[bytes, bytes, bytes | None]


@attrs.frozen
class TableBlock:
    """Changed rows of a table state (`keyed.TableState`).

    Attributes:
        state_id: Id of the state in the operator.
        rows: Number of rows, removed and written.
        removed: Keys of the rows that are gone: an Arrow IPC stream with the table's key columns.
        written: Rows as they now are: an Arrow IPC stream with all columns. They apply after what is removed.
    """

    state_id: int
    rows: int
    removed: bytes | None
    written: bytes | None


Block = list[Change] | TableBlock
Range = tuple[str, int, int]


@attrs.frozen
class TableChange:
    """Changed rows of a table state in the log of a key group.

    Attributes:
        keys: Columns of the table's key.
        ranges: Removed ranges, before what is in ``block``: rows for which all comparisons of one of them hold.
        block: The rows.
    """

    keys: tuple[str, ...]
    ranges: tuple[tuple[Range, ...], ...]
    block: TableBlock

    @property
    def size(self) -> int:
        """About how many bytes its body has."""
        return 64 + len(self.block.removed or b"") + len(self.block.written or b"")


_Columns = tuple[list[bytes], list[bytes], list[bytes | None]]
_decode_columns = msgspec.msgpack.Decoder(_Columns).decode
_Ranges = tuple[tuple[Range, ...], ...]
_TableRows = tuple[int, int, bytes | None, bytes | None]
_decode_table = msgspec.msgpack.Decoder(_TableRows).decode
_decode_change = msgspec.msgpack.Decoder(tuple[tuple[str, ...], _Ranges, _TableRows]).decode


def cut(changes: Sequence[Change]) -> Iterator[tuple[int, Sequence[Change]]]:
    """Cut changes into blocks, with the bytes of each."""
    start = size = 0
    for i, (prefix, sub, value) in enumerate(changes):
        size += len(prefix) + len(sub) + (len(value) if value is not None else 0) + 8
        if size >= BLOCK_BYTES:
            yield size, changes[start : i + 1]
            start, size = i + 1, 0
    if start < len(changes):
        yield size, changes[start:]


def columns_of(changes: Sequence[Change]) -> _Columns:
    """The body of a block of changes, of which there is at least one."""
    prefixes, subs, values = map(list, zip(*changes, strict=True))
    return prefixes, subs if any(subs) else [], values


def decode_changes(body: bytes | msgspec.Raw, where: str) -> list[Change]:
    """Decode a block of changes.

    Raises:
        CorruptionError: The body is malformed, or its columns differ in length.
    """
    try:
        prefixes, subs, values = _decode_columns(body)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"a block of changes is malformed: {error}", where=where) from error
    if len(prefixes) != len(values) or (subs and len(subs) != len(values)):
        raise CorruptionError("a block's columns differ in length", where=where)
    return list(zip(prefixes, subs or [b""] * len(prefixes), values, strict=True))


def decode_table(body: bytes | msgspec.Raw, where: str) -> TableBlock:
    """Decode a block of table rows. What the Arrow streams hold is not looked at.

    Raises:
        CorruptionError: The body is malformed.
    """
    try:
        block = TableBlock(*_decode_table(body))
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"a block of table rows is malformed: {error}", where=where) from error
    if block.state_id < 0 or block.rows < 0:
        raise CorruptionError("a block of table rows has a negative number", where=where)
    return block


def table_change_body(change: TableChange) -> object:
    """The body of a block of a changed table."""
    return change.keys, change.ranges, attrs.astuple(change.block)


def decode_table_change(body: bytes | msgspec.Raw, where: str) -> TableChange:
    """Decode a block of a changed table. What the Arrow streams hold is not looked at.

    Raises:
        CorruptionError: The body is malformed.
    """
    try:
        keys, ranges, rows = _decode_change(body)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"a block of a table is malformed: {error}", where=where) from error
    return TableChange(keys, ranges, TableBlock(*rows))
