"""The file of a commit: a *segment*, or a *base*, which is a segment that holds the whole state in order.

A file is a sequence of frames (`keyed.codec.frames`), all of version 1, numbers big-endian::

    KCLB  block   msgpack of [kind: int, body] (`keyed.content.blocks`)
    ...
    KCLC  commit marker (`keyed.changelog.records`)
    KCLE  end     offset of the marker u64 | crc32 u32 of the checksums of all frames before it, as they stand in the
                  file | flags u8: 1 if the changes are in the order of their addresses, each address once

The end has a fixed size, so the marker is found without reading the blocks. Its checksum is over all frames, because a
file may also lose, repeat or exchange frames that are intact by themselves.

A file without a valid end is incomplete. It is *torn* if it is cut short or ends in zeros, as after a crash of the
machine if the disk had not written synced data; everything else is corruption.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import PurePath
from struct import Struct
from typing import Protocol

import attrs
import msgspec

from keyed.changelog.model import Blocks, Commit
from keyed.changelog.records import COMMIT, decode_commit, encode_commit
from keyed.codec.frames import FRAME_OVERHEAD, frame, frame_length, unframe
from keyed.content.blocks import Block, decode_block, encode_block, entries_in
from keyed.errors import CorruptionError

_BLOCK, _END = b"KCLB", b"KCLE"
_VERSION = 1
_SORTED = 1
_TAIL = Struct(">QIB")
_TAIL_BYTES = FRAME_OVERHEAD + _TAIL.size
_CHUNK_BYTES = 1 << 20
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw]).decode


class ReadableFile(Protocol):
    """A file that is open for reading."""

    @property
    def path(self) -> PurePath:
        """Its path, for messages."""

    @property
    def size(self) -> int:
        """Its bytes."""

    def read(self, offset: int, size: int) -> bytes:
        """Return the bytes from ``offset`` on; fewer than ``size`` only at the end of the file."""


class Segment:
    """A segment to be written, which is iterated over once for its bytes.

    Args:
        commit: The marker.
        blocks: The content.

    Attributes:
        commit: The written marker, with the number of records; known after the iteration.
        bytes: Bytes of the file; known after the iteration.
    """

    def __init__(self, commit: Commit, blocks: Blocks) -> None:
        self.commit = commit
        self.bytes = 0
        self._blocks = blocks
        self._sorted = commit.snapshot
        self._last: tuple[bytes, bytes] = (b"", b"")

    def __iter__(self) -> Iterator[bytes]:
        records = offset = checksum = 0
        chunk: list[bytes] = []
        size = 0
        for kind, count, body in self._bodies():
            record = frame(_BLOCK, _VERSION, _encode((kind, body)))
            records += count
            offset += len(record)
            checksum = _add(record, checksum)
            chunk.append(record)
            size += len(record)
            if size >= _CHUNK_BYTES:
                yield b"".join(chunk)
                chunk, size = [], 0
        self.commit = attrs.evolve(self.commit, records=records)
        marker = encode_commit(self.commit)
        tail = _TAIL.pack(offset, _add(marker, checksum), _SORTED if self._sorted else 0)
        end = b"".join((*chunk, marker, frame(_END, _VERSION, tail)))
        self.bytes = offset + len(end) - size
        yield end

    def _bodies(self) -> Iterator[tuple[int, int, object]]:
        """Yield kind, number of records and body of each block."""
        for block in self._blocks:
            self._sorted = self._sorted and self._follows(block)
            yield from encode_block(block)

    def _follows(self, block: Block) -> bool:
        """Return true if the entries of a block are in order, and follow those before it."""
        last = self._last
        for prefix, sub, _ in entries_in(block):
            address = (prefix, sub)
            if address <= last:
                return False
            last = address
        self._last = last
        return True


class SegmentFile:
    """A segment that is read.

    Args:
        file: The file, open.
    """

    def __init__(self, file: ReadableFile) -> None:
        self._file = file
        self._where = str(file.path)
        self._end: tuple[int, int, int] | None = None

    def commit(self) -> Commit | None:
        """Return the commit marker, or ``None`` if the file is torn.

        Raises:
            CorruptionError: The end, or the marker, is damaged.
            ChangelogError: The disk fails.
        """
        self._end = end = self._read_end()
        return None if end is None else decode_commit(self._frame(COMMIT, end[0]), self._where)

    def blocks(self) -> Iterator[Block]:
        """Yield the content; `commit` has to be called first. The whole file is checked before the first block.

        Raises:
            CorruptionError: The file is damaged.
            ChangelogError: The disk fails.
        """
        assert self._end is not None, "commit was not called, or the segment is torn"
        marker, expected, _ = self._end
        checksum = 0
        for _, record in self._frames(marker):
            checksum = _add(record, checksum)
        if _add(self._frame(COMMIT, marker), checksum) != expected:
            raise CorruptionError("blocks are missing or out of order", where=self._where, offset=0)
        for offset, record in self._frames(marker):
            yield self._block(record, offset)

    def is_sorted(self) -> bool:
        """Return true if all changes are in the order of their addresses, each address once."""
        return self._end is not None and bool(self._end[2] & _SORTED)

    def _block(self, record: bytes, offset: int) -> Block:
        where = f"{self._where} at byte {offset}"
        try:
            kind, body = _decode(memoryview(record)[FRAME_OVERHEAD:])
        except (ValueError, RecursionError) as error:
            raise CorruptionError(f"a block is malformed: {error}", where=self._where, offset=offset) from error
        return decode_block(kind, body, where)

    def _read_end(self) -> tuple[int, int, int] | None:
        """Return offset of the marker, checksum and flags; ``None`` if the file is torn."""
        at = max(self._file.size - _TAIL_BYTES, 0)
        tail = self._file.read(at, _TAIL_BYTES)
        try:
            payload = self._checked(_END, tail, at)
        except CorruptionError:
            if not any(tail) or self._is_cut():
                return None
            raise
        offset, checksum, flags = _TAIL.unpack(payload)
        if offset + FRAME_OVERHEAD > at:
            raise CorruptionError("the end does not point to a commit marker", where=self._where, offset=at)
        return offset, checksum, flags

    def _is_cut(self) -> bool:
        """Return true if the file ends within a frame, or before an expected one.

        Raises:
            CorruptionError: A frame before that is damaged.
        """
        offset = 0
        while (record := self._record(offset)) is not None:
            self._checked(_BLOCK if record[:4] != COMMIT else COMMIT, record, offset)
            offset += len(record)
        return True

    def _frames(self, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield the blocks, each with its offset; ``end`` is that of the marker."""
        offset = 0
        while offset < end:
            record = self._frame(_BLOCK, offset)
            yield offset, record
            offset += len(record)

    def _frame(self, kind: bytes, offset: int) -> bytes:
        """Return the frame at an offset, checked."""
        record = self._record(offset)
        if record is None:
            raise CorruptionError(f"a {kind.decode()} record is cut short", where=self._where, offset=offset)
        self._checked(kind, record, offset)
        return record

    def _record(self, offset: int) -> bytes | None:
        """Return the frame at an offset, not checked; ``None`` if the file ends within it."""
        head = self._file.read(offset, FRAME_OVERHEAD)
        if len(head) < FRAME_OVERHEAD:
            return None
        length = frame_length(head)
        start = offset + FRAME_OVERHEAD
        return head + self._file.read(start, length) if start + length <= self._file.size else None

    def _checked(self, kind: bytes, record: bytes, offset: int) -> bytes:
        """Return the payload of a frame."""
        return unframe(kind, record, where=self._where, offset=offset)[1]


def _add(record: bytes, checksum: int) -> int:
    """Add the checksum of one more frame to a checksum of checksums."""
    return zlib.crc32(memoryview(record)[FRAME_OVERHEAD - 4 : FRAME_OVERHEAD], checksum)
