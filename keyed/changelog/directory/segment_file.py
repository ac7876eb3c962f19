"""The file of one or more commits: a *segment*, or a *base*, which is a segment that holds the whole state in order.

A file is a sequence of frames (`keyed.codec.frames`), numbers big-endian::

    KCLB  block   msgpack of [kind: int, body] (`keyed.content.blocks`)
    ...
    KCLC  commit marker (`keyed.changelog.model`)
    ...           blocks and marker of each further commit
    KCLE  end     offset of the last marker u64 | crc32 u32 of the checksums of all frames before it, as they stand in
                  the file | flags u8, added: 1 if the changes are in the order of their addresses, each address once;
                  2 if the file has several commits

All are of version 1.

The end has a fixed size, so the last marker is found without reading the blocks. Its checksum is over all frames,
because a file may also lose, repeat or exchange frames that are intact by themselves.

A file without a valid end is incomplete. It is *torn* if it is cut short or ends in zeros, as after a crash of the
machine if the disk had not written synced data; everything else is corruption.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from struct import Struct
from typing import Protocol

import attrs
import msgspec

from keyed.changelog.model import COMMIT, Blocks, Commit, decode_commit, encode_commit
from keyed.codec.frames import FRAME_OVERHEAD, frame, frame_length, unframe
from keyed.content.blocks import Block, decode_block, encode_block, entries_in
from keyed.errors import CorruptionError

_BLOCK, _END = b"KCLB", b"KCLE"
_VERSION = 1
_SORTED, _SEVERAL = 1, 2
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
        others: The commits that follow, each with its content.

    Attributes:
        commit: The last written marker, with the number of records; known after the iteration.
        bytes: Bytes of the file; known after the iteration.
    """

    def __init__(self, commit: Commit, blocks: Blocks, others: Iterable[tuple[Commit, Blocks]] = ()) -> None:
        self._parts = [(commit, blocks), *others]
        self.commit = self._parts[-1][0]
        self.bytes = 0
        self._sorted = commit.snapshot and len(self._parts) == 1
        self._last: tuple[bytes, bytes] = (b"", b"")

    def __iter__(self) -> Iterator[bytes]:
        offset = checksum = marker_at = 0
        chunk: list[bytes] = []
        size = 0
        for commit, blocks in self._parts:
            records = 0
            for kind, count, body in self._bodies(blocks):
                record = frame(_BLOCK, _VERSION, _encode((kind, body)))
                records += count
                offset += len(record)
                checksum = _add(record, checksum)
                chunk.append(record)
                size += len(record)
                if size >= _CHUNK_BYTES:
                    yield b"".join(chunk)
                    chunk, size = [], 0
            self.commit = attrs.evolve(commit, records=records)
            marker = encode_commit(self.commit)
            checksum = _add(marker, checksum)
            chunk.append(marker)
            marker_at = offset
            offset += len(marker)
            size += len(marker)
        flags = _SORTED * self._sorted | _SEVERAL * (len(self._parts) > 1)
        chunk.append(frame(_END, _VERSION, _TAIL.pack(marker_at, checksum, flags)))
        self.bytes = offset + _TAIL_BYTES
        yield b"".join(chunk)

    def _bodies(self, blocks: Blocks) -> Iterator[tuple[int, int, object]]:
        """Yield kind, number of records and body of each block."""
        for block in blocks:
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


@attrs.frozen
class SegmentCommit:
    """A commit in a segment.

    Attributes:
        commit: Its marker.
    """

    commit: Commit
    _segment: SegmentFile
    _start: int
    _end: int

    def blocks(self) -> Iterator[Block]:
        """Yield the content. The whole file is checked before the first block.

        Raises:
            CorruptionError: The file is damaged.
            ChangelogError: The disk fails.
        """
        return self._segment.blocks(self._start, self._end)


class SegmentFile:
    """A segment that is read.

    Args:
        file: The file, open.
    """

    def __init__(self, file: ReadableFile) -> None:
        self._file = file
        self._where = str(file.path)
        self._end: tuple[int, int, int] | None = None
        self._is_checked = False

    def commit(self) -> Commit | None:
        """Return the last commit marker, or ``None`` if the file is torn.

        Raises:
            CorruptionError: The end, or the marker, is damaged.
            ChangelogError: The disk fails.
        """
        self._end = end = self._read_end()
        return None if end is None else decode_commit(self._frame(COMMIT, end[0]), self._where)

    def commits(self) -> Iterator[SegmentCommit]:
        """Yield the commits in order; `commit` has to be called first. Their blocks are not read.

        Raises:
            CorruptionError: A frame or marker is damaged.
            ChangelogError: The disk fails.
        """
        last, _, flags = self._ended()
        start, offset = 0, 0 if flags & _SEVERAL else last
        while offset < last:
            head = self._file.read(offset, FRAME_OVERHEAD)
            if head[:4] == COMMIT:
                yield SegmentCommit(decode_commit(self._frame(COMMIT, offset), self._where), self, start, offset)
                start = offset + FRAME_OVERHEAD + frame_length(head)
            elif head[:4] != _BLOCK:
                raise CorruptionError("expected a block or a commit marker", where=self._where, offset=offset)
            offset += FRAME_OVERHEAD + frame_length(head)
        if offset != last:
            raise CorruptionError("the end does not point to a commit marker", where=self._where, offset=last)
        yield SegmentCommit(decode_commit(self._frame(COMMIT, last), self._where), self, start, last)

    def blocks(self, start: int = 0, end: int | None = None) -> Iterator[Block]:
        """Yield the content; `commit` has to be called first. The whole file is checked before the first block.

        Args:
            start: Offset of the first block.
            end: Offset of the marker after the last one; that of the last marker if ``None``.

        Raises:
            CorruptionError: The file is damaged.
            ChangelogError: The disk fails.
        """
        last, expected, flags = self._ended()
        if not self._is_checked:
            checksum = 0
            for _, record in self._frames(0, last, several=bool(flags & _SEVERAL)):
                checksum = _add(record, checksum)
            if _add(self._frame(COMMIT, last), checksum) != expected:
                raise CorruptionError("blocks are missing or out of order", where=self._where, offset=0)
            self._is_checked = True
        for offset, record in self._frames(start, last if end is None else end):
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

    def _ended(self) -> tuple[int, int, int]:
        assert self._end is not None, "commit was not called, or the segment is torn"
        return self._end

    def _read_end(self) -> tuple[int, int, int] | None:
        """Return offset of the last marker, checksum and flags; ``None`` if the file is torn."""
        at = max(self._file.size - _TAIL_BYTES, 0)
        tail = self._file.read(at, _TAIL_BYTES)
        try:
            offset, checksum, flags = _TAIL.unpack(unframe(_END, tail, where=self._where, offset=at))
        except CorruptionError:
            if not any(tail) or self._is_cut():
                return None
            raise
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

    def _frames(self, start: int, end: int, *, several: bool = False) -> Iterator[tuple[int, bytes]]:
        """Yield the blocks from ``start`` to ``end``, each with its offset; with ``several`` also the markers."""
        offset = start
        while offset < end:
            is_marker = several and self._file.read(offset, 4) == COMMIT
            record = self._frame(COMMIT if is_marker else _BLOCK, offset)
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
        return unframe(kind, record, where=self._where, offset=offset)


def _add(record: bytes, checksum: int) -> int:
    """Add the checksum of one more frame to a checksum of checksums."""
    return zlib.crc32(memoryview(record)[FRAME_OVERHEAD - 4 : FRAME_OVERHEAD], checksum)
