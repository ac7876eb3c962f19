"""Segments: the log rows that one commit of a key group appends.

A segment is one or more log rows of at most about a megabyte. A row is a frame (`keyed.codec.frames`) of kind ``KSEG``,
version 1, whose payload is msgpack::

    [commit: int, last: bool, attempt: str, before: str, blocks: [[kind: int, body], ...]]

``commit`` numbers the group's commits from 1 and ``last`` marks the last row of the segment. ``attempt`` is the
identity of the attempt that wrote the row, and ``before`` that of the row before it (empty for the first row of a log):
they distinguish a store of another branch of the log, after a checkpoint was set back, from one that is merely behind.

Blocks are those of `keyed.content.blocks` for the log of a key group.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
import msgspec

from keyed.codec.frames import RecordFormat
from keyed.content.blocks import BLOCK_BYTES, LogBlock, decode_log_block, encode_log_block

# A body is decoded by its kind, so that a later kind may have another form.
_RECORD: RecordFormat[Any] = RecordFormat(b"KSEG", 1, tuple[int, bool, str, str, list[tuple[int, msgspec.Raw]]])


@attrs.frozen
class LogRow:
    """A decoded log row.

    Attributes:
        commit: Number of the commit that it belongs to.
        last: True if it is the last row of its segment.
        attempt: Identity of the attempt that wrote it.
        before: Identity of the attempt that wrote the row before it.
        reappended: Live content of cleaned rows, which applies before the changes.
        changed: Changes of the batch.
    """

    commit: int
    last: bool
    attempt: str
    before: str
    reappended: list[LogBlock]
    changed: list[LogBlock]


def encode_rows(
    commit: int,
    reappended: Iterable[tuple[int, LogBlock]],
    changed: Iterable[tuple[int, LogBlock]],
    attempt: str = "",
    before: str = "",
) -> list[bytes]:
    """Return the log rows of a segment.

    Args:
        commit: Number of the commit.
        reappended: Live content of cleaned rows, from `Delta.log_blocks`.
        changed: The batch's changes, in the same form.
        attempt: Identity of the attempt that writes them.
        before: Identity of the attempt that wrote the last existing row.
    """
    rows: list[list[object]] = [[]]
    room = BLOCK_BYTES
    for blocks, is_reappended in ((reappended, True), (changed, False)):
        for size, block in blocks:
            if size > room and rows[-1]:
                rows.append([])
                room = BLOCK_BYTES
            rows[-1].append(encode_log_block(block, reappended=is_reappended))
            room -= size
    last = len(rows) - 1
    return [_RECORD.encode((commit, i == last, attempt, attempt if i else before, row)) for i, row in enumerate(rows)]


def decode_row(record: bytes, where: str) -> LogRow:
    """Decode a log row.

    Raises:
        CorruptionError: Bad checksum, unknown version or block kind, or a malformed body.
    """
    commit, last, attempt, before, blocks = _RECORD.decode(record, where)
    row = LogRow(commit, last, attempt, before, [], [])
    for kind, body in blocks:
        block, is_reappended = decode_log_block(kind, body, where)
        (row.reappended if is_reappended else row.changed).append(block)
    return row
