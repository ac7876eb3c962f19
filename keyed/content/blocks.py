"""Changes of a key group in parts, as they stand in records: entries, and rows of table states.

An entry is an address, which is a pair (prefix, sub), with a value (`keyed.content.addresses`). A block is [kind: int,
body], as msgpack:

    in a changelog           in the log of a key group             body
    1 changes                1 changes, 2 reappended               [prefixes: [bytes], subs: [bytes] or [] if all are
                                                                   empty, values: [bytes or nil for a tombstone]]
    2 table rows                                                   rows: [state id, rows: int, removed: bytes or nil,
                                                                   written: bytes or nil]; both are Arrow IPC streams
                             3 changed table, 4 reappended         [key columns: [str], ranges: [[[column: str,
                                                                   least: int, greatest: int]]], rows]: all rows go
                                                                   that are in one of the ranges, then the removed
                                                                   ones, then the others are written

Reappended entries are live ones from rows of the log that are removed by cleaning. They precede the changes of their
segment, change nothing for a reader of the whole log, and are never exported.

Readers never skip a block: an unknown kind means corruption or a newer version, and raises an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import attrs
import msgspec

from keyed.errors import CorruptionError

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 1 << 20
"""A block of changes is closed at this size in bytes."""

_CHANGES, _TABLE_ROWS = 1, 2
_CHANGED_TABLE, _REAPPENDED = 3, 1

Change = tuple[bytes, bytes, bytes | None]
Range = tuple[str, int, int]
"""A comparison of an integer column: its name, the least and the greatest value."""


@attrs.frozen(eq=False)
class TableDelta:
    """Changes of a table in a commit: ranges are removed, then keys, then rows are written.

    Attributes:
        state_id: Id of the state.
        keys: Columns of its key.
        ranges: Removed ranges: in each, rows for which all of its comparisons hold.
        removed: Key columns of removed rows, each key once.
        upserts: Written rows, each key once.
    """

    state_id: int
    keys: tuple[str, ...]
    ranges: tuple[tuple[Range, ...], ...] = ()
    removed: pa.Table | None = None
    upserts: pa.Table | None = None

    @property
    def records(self) -> int:
        """Number of rows, removed and written."""
        return sum(rows.num_rows for rows in (self.removed, self.upserts) if rows is not None)

    @property
    def changed_keys(self) -> pa.Table | None:
        """The keys of all these rows; ``None`` if there are none."""
        import pyarrow as pa

        parts = [rows.select(list(self.keys)) for rows in (self.removed, self.upserts) if rows is not None]
        return pa.concat_tables(parts, promote_options="default") if parts else None


@attrs.frozen
class TableBlock:
    """Changed rows of a table state (`keyed.vectorized.TableState`).

    Attributes:
        state_id: Id of the state in the operator.
        rows: Number of rows, removed and written.
        removed: Keys of the removed rows: an Arrow IPC stream with the table's key columns.
        written: The written rows: an Arrow IPC stream with all columns. They apply after the removals.
    """

    state_id: int
    rows: int
    removed: bytes | None
    written: bytes | None


@attrs.frozen
class TableChange:
    """Changed rows of a table state in the log of a key group.

    Attributes:
        keys: Columns of the table's key.
        ranges: Removed ranges, applied before ``block``: rows for which all comparisons of one of them hold.
        block: The rows.
    """

    keys: tuple[str, ...]
    ranges: tuple[tuple[Range, ...], ...]
    block: TableBlock


Block = list[Change] | TableBlock
LogBlock = list[Change] | TableChange

_Body = TypeVar("_Body")
_Columns = tuple[list[bytes], list[bytes], list[bytes | None]]
_columns = msgspec.msgpack.Decoder(_Columns)
_TableRows = tuple[int, int, bytes | None, bytes | None]
_table_rows = msgspec.msgpack.Decoder(_TableRows)
_changed_table = msgspec.msgpack.Decoder(tuple[tuple[str, ...], tuple[tuple[Range, ...], ...], _TableRows])


def records_of(block: Block) -> int:
    """Return the number of entries, or of rows."""
    return block.rows if isinstance(block, TableBlock) else len(block)


def entries_in(block: Block) -> list[Change]:
    """Return the entries of a block, without its rows of tables."""
    return [] if isinstance(block, TableBlock) else block


def cut(changes: list[Change]) -> Iterator[tuple[int, list[Change]]]:
    """Cut changes into blocks, with the bytes of each."""
    start = size = 0
    for i, (prefix, sub, value) in enumerate(changes):
        size += len(prefix) + len(sub) + (len(value) if value is not None else 0) + 8
        if size >= BLOCK_BYTES:
            yield size, changes[start : i + 1]
            start, size = i + 1, 0
    if start < len(changes):
        yield size, changes[start:]


def encode_block(block: Block) -> Iterator[tuple[int, int, object]]:
    """Encode a block for a changelog.

    Yields:
        Kind, number of records and body of each resulting block.
    """
    if isinstance(block, TableBlock):
        yield _TABLE_ROWS, block.rows, attrs.astuple(block)
    else:
        for _, part in cut(block):
            yield _CHANGES, len(part), _columns_of(part)


def decode_block(kind: int, body: bytes | msgspec.Raw, where: str) -> Block:
    """Decode a block of a changelog. The content of Arrow streams is not checked.

    Raises:
        CorruptionError: The kind is unknown, or the body malformed.
    """
    if kind == _CHANGES:
        return _changes(body, where)
    if kind == _TABLE_ROWS:
        return _table_block(_decoded(_table_rows, body, where), where)
    raise _unknown(kind, where)


def encode_log_block(block: LogBlock, *, reappended: bool) -> tuple[int, object]:
    """Encode a block of a key group's log, of one entry at least: its kind and body."""
    if isinstance(block, TableChange):
        return _CHANGED_TABLE + reappended, (block.keys, block.ranges, attrs.astuple(block.block))
    return _CHANGES + reappended, _columns_of(block)


def decode_log_block(kind: int, body: bytes | msgspec.Raw, where: str) -> tuple[LogBlock, bool]:
    """Decode a block of a key group's log and its reappended flag. The content of Arrow streams is not checked.

    Raises:
        CorruptionError: The kind is unknown, or the body malformed.
    """
    if _CHANGES <= kind <= _CHANGES + _REAPPENDED:
        return _changes(body, where), kind != _CHANGES
    if _CHANGED_TABLE <= kind <= _CHANGED_TABLE + _REAPPENDED:
        keys, ranges, rows = _decoded(_changed_table, body, where)
        return TableChange(keys, ranges, _table_block(rows, where)), kind != _CHANGED_TABLE
    raise _unknown(kind, where)


def _columns_of(changes: Sequence[Change]) -> _Columns:
    prefixes, subs, values = map(list, zip(*changes, strict=True))
    return prefixes, subs if any(subs) else [], values


def _changes(body: bytes | msgspec.Raw, where: str) -> list[Change]:
    prefixes, subs, values = _decoded(_columns, body, where)
    if len(prefixes) != len(values) or (subs and len(subs) != len(values)):
        raise CorruptionError("a block's columns differ in length", where=where)
    return list(zip(prefixes, subs or [b""] * len(prefixes), values, strict=True))


def _table_block(rows: _TableRows, where: str) -> TableBlock:
    block = TableBlock(*rows)
    if block.state_id < 0 or block.rows < 0:
        raise CorruptionError("a block of table rows has a negative number", where=where)
    return block


def _decoded(decoder: msgspec.msgpack.Decoder[_Body], body: bytes | msgspec.Raw, where: str) -> _Body:
    try:
        return decoder.decode(body)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"a block is malformed: {error}", where=where) from error


def _unknown(kind: int, where: str) -> CorruptionError:
    return CorruptionError(f"block kind {kind} is unknown; a newer version wrote it", where=where)
