"""The objects of one key group's log. Their names are those of the files in `keyed.changelog.directory.group_folder`.

Objects are written atomically, so none is torn: a truncated one is damaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath

from keyed.changelog.directory.group_folder import GroupFiles
from keyed.changelog.directory.segment_file import SegmentFile
from keyed.changelog.model import Commit
from keyed.changelog.objects.bucket import Bucket
from keyed.errors import ChangelogError, CorruptionError

_CHUNK_BYTES = 4 << 20
#: Number of cached chunks of an object: of its end, and at the read position.
_CHUNKS = 2
#: The last opened object is cached up to this size, because a reader reads its marker and then its content.
_KEPT_BYTES = 128 << 10


class ObjectFile:
    """An object that is read in chunks, each with one request.

    Args:
        bucket: The bucket.
        key: Name of the object.
        path: Its path, for messages.

    Raises:
        FileNotFoundError: It does not exist.
        ChangelogError: It cannot be read.
    """

    def __init__(self, bucket: Bucket, key: str, path: PurePosixPath) -> None:
        self.path = path
        self._bucket = bucket
        self._key = key
        first, self.size = bucket.get_range(key, 0, _CHUNK_BYTES)
        self._chunks = {0: first}

    def read(self, offset: int, size: int) -> bytes:
        parts = []
        end = min(offset + size, self.size)
        while offset < end:
            number, start = divmod(offset, _CHUNK_BYTES)
            part = self._chunk(number)[start : start + end - offset]
            if not part:
                raise ChangelogError(
                    f"{self.path} cannot be read at byte {offset}: the store returned fewer bytes than announced"
                )
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def _chunk(self, number: int) -> bytes:
        chunk = self._chunks.pop(number, None)
        if chunk is None:
            try:
                chunk, _ = self._bucket.get_range(self._key, number * _CHUNK_BYTES, _CHUNK_BYTES)
            except FileNotFoundError as error:
                raise ChangelogError(
                    f"{self.path} was removed while it was read, as compaction does; read again"
                ) from error
            while len(self._chunks) >= _CHUNKS:
                del self._chunks[next(iter(self._chunks))]
        self._chunks[number] = chunk
        return chunk


class ObjectGroup(GroupFiles[PurePosixPath]):
    """The objects of one key group.

    Args:
        bucket: The bucket.
        path: Name of the bucket and prefix of the objects.
        log_id: Identity of the changelog that they are part of.
        group: Index of the key group.
    """

    place = "prefix"

    def __init__(self, bucket: Bucket, path: PurePosixPath, log_id: str, group: int) -> None:
        super().__init__(path, log_id, group)
        self._bucket = bucket
        self._kept: ObjectFile | None = None

    def sizes(self, after: int) -> dict[str, int]:
        offset = self._key(self.segment(after)) if after else None
        return self._bucket.sizes(self._key(self.path), offset)

    @contextmanager
    def open(self, path: PurePosixPath) -> Iterator[ObjectFile]:
        kept = self._kept
        if kept is not None and kept.path == path:
            yield kept
            return
        file = ObjectFile(self._bucket, self._key(path), path)
        self._kept = file if file.size <= _KEPT_BYTES else None
        yield file

    @contextmanager
    def opened(self, path: PurePosixPath, sequence: int) -> Iterator[tuple[Commit | None, SegmentFile]]:
        with super().opened(path, sequence) as (commit, segment):
            if commit is None:
                raise CorruptionError("the object is cut short", where=str(path))
            yield commit, segment

    def exists(self, path: PurePosixPath) -> bool:
        return self._bucket.size(self._key(path)) is not None

    def publish(self, path: PurePosixPath, chunks: Iterable[bytes]) -> bool:
        return self._bucket.put(self._key(path), b"".join(chunks))

    def remove(self, names: Iterable[str]) -> None:
        self._bucket.delete(self._key(self.path / name) for name in names)

    def sync(self) -> None:
        pass

    @contextmanager
    def compacting(self, *, wait: bool) -> Iterator[bool]:
        # Two processes may compact at once: the bases of one sequence are equal, and each removes only objects that a
        # base replaces.
        yield True

    def _key(self, path: PurePosixPath) -> str:
        return str(path.relative_to(self._bucket.name))
