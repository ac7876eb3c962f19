"""Segments: what one commit of a key group appends to its log.

A segment is one or more log rows of about a megabyte at most. A row is a frame (`keyed.codec.frames`) of kind ``KSEG``,
version 1, whose payload is msgpack::

    [commit: int, last: bool, attempt: str, before: str, blocks: [[kind: int, body], ...]]

``commit`` numbers the group's commits from 1 and ``last`` marks the last row of the segment. ``attempt`` is the
identity of the attempt that wrote the row, and ``before`` that of the row before it (empty for the first row of a log):
by them a store that followed another course of the log, because a checkpoint was set back, is told from one that is
merely behind.

Readers skip no block: an unknown kind is corruption, or a newer version, and stops them. Kinds and their bodies:

    1 CHANGES     changes, as `keyed.content.blocks` has them
    2 REAPPENDED  the same; live entries of cleaned rows. They stand before the changes of their segment, change
                  nothing that a reader of the whole log has, and are never exported.
    3 TABLE       changes of a table state, as `keyed.content.blocks` has them
    4 TABLE_REAPPENDED  the same, with written rows alone: live rows of a table, as REAPPENDED
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import msgspec

from keyed.codec.frames import RecordFormat
from keyed.content.blocks import (
    BLOCK_BYTES,
    Change,
    TableChange,
    columns_of,
    cut,
    decode_changes,
    decode_table_change,
    table_change_body,
)
from keyed.errors import CorruptionError

CHANGES = 1
REAPPENDED = 2
TABLE = 3
TABLE_REAPPENDED = 4

# A body is decoded by its kind, so that a later kind may look otherwise.
_RECORD: RecordFormat[Any] = RecordFormat(b"KSEG", 1, tuple[int, bool, str, str, list[tuple[int, msgspec.Raw]]])


@attrs.frozen
class LogRow:
    """A decoded log row.

    Attributes:
        commit: Number of the commit that it belongs to.
        last: Whether it is the last row of its segment.
        attempt: Identity of the attempt that wrote it.
        before: Identity of the attempt that wrote the row before it.
        blocks: Pairs of block kind and its changes, or its change of a table, in order.
    """

    commit: int
    last: bool
    attempt: str
    before: str
    blocks: list[tuple[int, list[Change] | TableChange]]

    @property
    def entries(self) -> Iterator[Change]:
        """All entries in the order in which they apply."""
        for _, block in self.blocks:
            if not isinstance(block, TableChange):
                yield from block

    @property
    def tables(self) -> list[TableChange]:
        """All changes of tables in the order in which they apply."""
        return [block for _, block in self.blocks if isinstance(block, TableChange)]


def encode_rows(
    commit: int,
    reappended: list[Change],
    changes: list[Change],
    attempt: str = "",
    before: str = "",
    *,
    tables_reappended: Sequence[TableChange] = (),
    tables: Sequence[TableChange] = (),
) -> list[bytes]:
    """The log rows of a segment.

    Args:
        commit: Number of the commit.
        reappended: Live entries of cleaned rows.
        changes: The batch's changes.
        attempt: Identity of the attempt that writes them.
        before: Identity of the attempt that wrote the last row that is there.
        tables_reappended: Live rows of tables out of cleaned rows.
        tables: The batch's changes of tables.
    """
    blocks = [
        *_blocks(REAPPENDED, reappended),
        *((change.size, (TABLE_REAPPENDED, table_change_body(change))) for change in tables_reappended),
        *_blocks(CHANGES, changes),
        *((change.size, (TABLE, table_change_body(change))) for change in tables),
    ]
    rows: list[list[object]] = []
    room = 0
    for size, block in blocks:
        if not rows or size > room:
            rows.append([])
            room = BLOCK_BYTES
        rows[-1].append(block)
        room -= size
    if not rows:
        rows.append([])
    last = len(rows) - 1
    return [_RECORD.encode((commit, i == last, attempt, attempt if i else before, row)) for i, row in enumerate(rows)]


def _blocks(kind: int, changes: list[Change]) -> Iterator[tuple[int, object]]:
    """Blocks with their sizes."""
    for size, part in cut(changes):
        yield size, [kind, columns_of(part)]


def decode_row(record: bytes, where: str) -> LogRow:
    """Decode a log row.

    Raises:
        CorruptionError: Bad checksum, unknown version or block kind, or a malformed body.
    """
    commit, last, attempt, before, blocks = _RECORD.decode(record, where)
    result: list[tuple[int, list[Change] | TableChange]] = []
    for kind, body in blocks:
        if kind in (CHANGES, REAPPENDED):
            result.append((kind, decode_changes(body, where)))
        elif kind in (TABLE, TABLE_REAPPENDED):
            result.append((kind, decode_table_change(body, where)))
        else:
            raise CorruptionError(f"block kind {kind} is unknown; a newer version wrote it", where=where)
    return LogRow(commit, last, attempt, before, result)
