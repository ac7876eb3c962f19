"""The files of one key group's log and their order, `GroupFiles`, and its folder, `GroupFolder`.

    00000000000000000007.segment     the commit of sequence 7, and those that were exported with it
    00000000000000000007-1.segment   the same again, because the file above is torn; also -2, -3, ...
    00000000000000000007.base        the whole state after the commit of sequence 7, which compaction left
    compacting                       the lock for compaction of the log
    .*.tmp                           files that are being written, or were when their writer died
    .00000000000000000008.segment.3f6c1a9e.staged.tmp
                                     what attempt 3f6c1a9e of the job would have as the commit of sequence 8: it becomes
                                     the segment when it is known that the job has committed this attempt

A segment is named by its first commit. Of two writers with the same last commit, one can therefore write the next
segment, whatever the number of its commits. A base replaces whole segments: all segments up to its sequence, and all
bases before it, are leftovers, which are not read any more. The commits after it have no gaps, except that a snapshot
may follow any commit.

The file of one or more commits is a *segment*, or a *base*, which is a segment that holds the whole state in order. It
is a sequence of frames (`keyed.codec.frames`), numbers big-endian::

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

import re
import zlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path, PurePath
from struct import Struct
from typing import Any, Generic, Protocol, TypeVar

import attrs
import msgspec

from keyed.changelog.directory.disk import OpenFile, exists, file_sizes, locked, publish, remove, sync_folder
from keyed.changelog.model import COMMIT, Blocks, Commit, decode_commit, encode_commit
from keyed.codec.frames import FRAME_OVERHEAD, frame, frame_length, unframe
from keyed.content.blocks import Block, decode_block, encode_block, entries_in
from keyed.errors import ChangelogDiverged, ChangelogError, ChangelogFenced, CorruptionError

AnyPath = TypeVar("AnyPath", bound=PurePath)
_TRIES = 10
_NAME = re.compile(r"(\d{20})(?:-([1-9]\d{0,8}))?\.segment|(\d{20})\.base")


@attrs.frozen
class Listing:
    """The files of a key group at one time.

    Attributes:
        base: Sequence of the newest base; 0 if there is none.
        base_bytes: Its size.
        segments: The segments after the base by their first sequence, in order: the number of rewrites of each, and
            the bytes of all its files.
        leftovers: Names of files that are not read any more, in the order of their removal: while one of them exists,
            those after it do too.
        temporary: Names of files that are being written, or were left by a dead writer.
    """

    base: int
    base_bytes: int
    segments: dict[int, tuple[int, int]]
    leftovers: list[str]
    temporary: list[str]

    @property
    def history_bytes(self) -> int:
        """Bytes of all segments after the base."""
        return sum(size for _, size in self.segments.values())

    @property
    def is_whole(self) -> bool:
        """True if it is not empty, and the sequences in its names have no gap."""
        newest = max(self.segments, default=self.base)
        return newest > 0 and newest == self.base + len(self.segments)


class GroupFiles(ABC, Generic[AnyPath]):
    """The files of one key group, independent of their storage.

    Args:
        path: Their folder or prefix.
        log_id: Identity of the changelog that they are part of.
        group: Index of the key group.

    Attributes:
        place: The word for the place of a changelog, in messages.
    """

    place = "folder"

    def __init__(self, path: AnyPath, log_id: str, group: int) -> None:
        self.path = path
        self.log_id = log_id
        self.group = group

    @abstractmethod
    def sizes(self, after: int) -> dict[str, int]:
        """Return the names of the files with their sizes: at least those after the segment of a sequence."""

    @abstractmethod
    def open(self, path: AnyPath) -> AbstractContextManager[ReadableFile]:
        """Open a file.

        Raises:
            FileNotFoundError: It was removed.
        """

    @abstractmethod
    def exists(self, path: AnyPath) -> bool:
        """Return true if a file of this name exists."""

    @abstractmethod
    def publish(self, path: AnyPath, chunks: Iterable[bytes]) -> bool:
        """Write a file, unless one of this name exists. Return true if it was written."""

    @abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Remove files in this order; missing ones are ignored."""

    @abstractmethod
    def sync(self) -> None:
        """Make the list of files durable."""

    @abstractmethod
    def compacting(self, *, wait: bool) -> AbstractContextManager[bool]:
        """Hold the lock for compaction of the log; false if another process holds it."""

    def base(self, sequence: int) -> AnyPath:
        """Return the base after a sequence."""
        return self.path / f"{sequence:020d}.base"

    def segment(self, sequence: int, again: int = 0) -> AnyPath:
        """Return the segment of a sequence; ``again`` counts its rewrites, from 0."""
        return self.path / (f"{sequence:020d}-{again}.segment" if again else f"{sequence:020d}.segment")

    def path_of(self, listing: Listing, sequence: int) -> AnyPath:
        """Return the path of the file with the commit of a sequence in a listing."""
        firsts = list(listing.segments)
        number = bisect_right(firsts, sequence) - 1
        if number < 0 or sequence <= listing.base:
            return self.base(sequence)
        return self.segment(firsts[number], listing.segments[firsts[number]][0])

    def listing(self, after: int = 0) -> Listing:
        """Return the listing of the folder.

        Listing a folder is not atomic: during a compaction a listing may lack both a new base and the files that it
        replaced. An empty listing, or one with a gap, as after a segment of several commits, therefore counts only if
        the next one is the same.

        Args:
            after: The listing may begin after the segment of this sequence. Its base is then this sequence or a later
                one.

        Raises:
            ChangelogError: It cannot be read, or keeps changing.
        """
        before: Listing | None = None
        for _ in range(_TRIES):
            listing = self._listed(after)
            if listing == before or listing.is_whole:
                return listing
            before = listing
        raise self._restless()

    def _listed(self, after: int) -> Listing:
        bases: dict[int, int] = {}
        segments: dict[int, tuple[int, int]] = {}
        names: list[tuple[int, str]] = []
        temporary = []
        for name, size in self.sizes(after).items():
            match = _NAME.fullmatch(name)
            if match is None:
                temporary.append(name)
                continue
            sequence = int(match[1] or match[3])
            names.append((sequence, name))
            if match[3]:
                bases[sequence] = size
            else:
                again, known = segments.get(sequence, (0, 0))
                segments[sequence] = (max(again, int(match[2] or 0)), known + size)
        base = max(bases, default=after)
        return Listing(
            base,
            bases.get(base, 0),
            {sequence: segments[sequence] for sequence in sorted(segments) if sequence > base},
            [name for sequence, name in sorted(names) if sequence <= base and name != self.base(base).name],
            temporary,
        )

    @contextmanager
    def opened(self, path: AnyPath, sequence: int) -> Iterator[tuple[Commit | None, SegmentFile]]:
        """Open a segment or base, with its last marker; the marker is ``None`` if it is torn.

        Args:
            path: The file.
            sequence: The sequence in its name.

        Raises:
            FileNotFoundError: It was removed.
            CorruptionError: It is damaged, or its content does not match its name.
            ChangelogError: It cannot be read.
        """
        with self.open(path) as file:
            segment = SegmentFile(file)
            commit = segment.commit()
            if commit is not None:
                identity = (commit.log_id, commit.group, next(segment.commits()).commit.sequence)
                if identity != (self.log_id, self.group, sequence):
                    raise CorruptionError(
                        f"commit {identity} belongs to another log or sequence: (log id, group, sequence) should be "
                        f"{(self.log_id, self.group, sequence)}",
                        where=str(path),
                    )
            yield commit, segment

    def look(self, after: int = 0, known: Commit | None = None) -> tuple[Listing, Commit | None]:
        """Return the listing of the folder, and the newest whole commit.

        Args:
            after: As in `listing`.
            known: The commit of that sequence, if it is not 0.

        Raises:
            CorruptionError: The newest commit is damaged, and not merely torn.
            ChangelogError: The folder cannot be read.
        """
        for _ in range(_TRIES):
            listing = self.listing(after)
            if known is not None and listing.base == after and not listing.segments:
                return listing, known
            with suppress(FileNotFoundError):  # Compaction removed a listed file.
                return listing, self._newest(listing)
        raise self._restless()

    def _restless(self) -> ChangelogError:
        return ChangelogError(f"{self.path} changes faster than it can be read; retry")

    def _newest(self, listing: Listing) -> Commit | None:
        for sequence in reversed(listing.segments):
            with self.opened(self.segment(sequence, listing.segments[sequence][0]), sequence) as (commit, _):
                if commit is not None:
                    return commit
        if not listing.base:
            return None
        with self.opened(self.base(listing.base), listing.base) as (commit, _):
            return self._check_whole_base(commit, self.base(listing.base))

    def commits(self, listing: Listing, after: int, until: int) -> Iterator[tuple[SegmentCommit, SegmentFile, AnyPath]]:
        """Yield the commits of a listing in order, each with its file, which is open until the next one.

        Args:
            listing: The listing of the folder.
            after: Begin after this sequence; if it lies before the base, begin with the base.
            until: End with this sequence.

        Raises:
            FileNotFoundError: Compaction removed a listed file.
            CorruptionError: A file is damaged, or one is missing or torn between others.
            ChangelogError: A file cannot be read.
        """
        before: Commit | None = None
        if after < listing.base:
            path = self.base(listing.base)
            with self.opened(path, listing.base) as (commit, segment):
                before = self._check_whole_base(commit, path)
                yield next(segment.commits()), segment, path
            after = listing.base
        torn: AnyPath | None = None
        # The one with the next commit may begin earlier.
        firsts = list(listing.segments)
        for sequence in firsts[max(bisect_right(firsts, after + 1) - 1, 0) :]:
            if sequence > until:
                break
            path = self.segment(sequence, listing.segments[sequence][0])
            with self.opened(path, sequence) as (last, segment):
                if last is None:
                    torn = torn or path
                    continue
                for stored in segment.commits():
                    commit = stored.commit
                    if commit.sequence <= after:
                        before = commit if commit.sequence == after else before
                        continue
                    if commit.sequence > until:
                        break
                    if not commit.snapshot:
                        if torn is not None:
                            raise CorruptionError("the segment is torn, and others follow", where=str(torn))
                        if commit.sequence != after + 1:
                            missing = f"the segment of sequence {after + 1} is missing"
                            raise CorruptionError(missing, where=str(self.path))
                        if before is not None and commit.previous != before.attempt:
                            raise CorruptionError(f"the commit does not follow commit {after}", where=str(path))
                    yield stored, segment, path
                    before, after, torn = commit, commit.sequence, None

    def existing(self, listing: Listing, commit: Commit, last: Commit | None) -> Commit:
        """Return the existing commit of the same sequence and attempt.

        Args:
            listing: The newest listing.
            commit: The commit.
            last: The newest commit.

        Raises:
            ChangelogFenced: There is none, because another writer has continued.
            ChangelogDiverged: It is of another attempt.
        """
        path = self.path_of(listing, commit.sequence)
        stored = None
        with suppress(FileNotFoundError), self.opened(path, int(path.name[:20])) as (marker, segment):
            in_file = (each.commit for each in segment.commits()) if marker is not None else ()
            stored = next((each for each in in_file if each.sequence == commit.sequence), None)
        if stored is None:
            newest = 0 if last is None else last.sequence
            raise ChangelogFenced(
                f"{path}: another writer has continued to commit {newest} while commit {commit.sequence} was written; "
                "unless this is an outdated attempt, open the writer again"
            )
        if stored.attempt != commit.attempt:
            raise ChangelogDiverged(
                f"{path}: another commit {commit.sequence} exists, of attempt {stored.attempt} and not "
                f"{commit.attempt}; give changelog= an empty {self.place}, which starts with a snapshot"
            )
        return stored

    @staticmethod
    def _check_whole_base(commit: Commit | None, path: PurePath) -> Commit:
        if commit is None:
            raise CorruptionError("the base is torn, and its segments were removed", where=str(path))
        return commit


AnyGroupFiles = GroupFiles[Any]
"""The files of a key group, for code that only passes their paths on."""


class GroupFolder(GroupFiles[Path]):
    """The files of one key group in a folder."""

    def sizes(self, after: int) -> dict[str, int]:
        return file_sizes(self.path)

    def open(self, path: Path) -> OpenFile:
        return OpenFile(path)

    def exists(self, path: Path) -> bool:
        return exists(path)

    def publish(self, path: Path, chunks: Iterable[bytes]) -> bool:
        return publish(path, chunks)

    def remove(self, names: Iterable[str]) -> None:
        remove(self.path / name for name in names)

    def sync(self) -> None:
        sync_folder(self.path)

    @contextmanager
    def compacting(self, *, wait: bool) -> Iterator[bool]:
        if not exists(self.path):
            # No writer was opened yet, so the folder does not exist.
            yield False
            return
        with locked(self.path / "compacting", wait=wait) as held:
            yield held


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
