"""`ObjectStoreChangelog`: a changelog as objects under a prefix of a bucket.

Names under the prefix, of objects that are never replaced::

    header                                   header (`keyed.changelog.model`)
    groups/00000/, groups/00001/, ...        a key group each (`keyed.changelog.directory.group_folder`)
    positions/00000000000000000007.position  the runner's positions in its sources after sequence 7
    kept/<name>                              other data of the runner (both in `keyed.changelog.model`)

Each is written by a put that is refused if an object of this name exists. This fences writers. Objects are written
atomically, so none is torn: a truncated one is damaged.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, ClassVar

import attrs

from keyed.base.arguments import Duration, milliseconds_of, setting_text, type_of
from keyed.changelog.directory.compaction import BackgroundCompaction
from keyed.changelog.directory.directory_changelog import DirectoryReader
from keyed.changelog.directory.group_folder import GroupFiles, Listing
from keyed.changelog.directory.segment_file import SegmentFile
from keyed.changelog.directory.stored_changelog import HOUR_MS, StoredChangelog, StoredWriter, check_history
from keyed.changelog.model import Commit, LogHeader
from keyed.changelog.objects.bucket import Bucket
from keyed.errors import ChangelogError, CorruptionError, DefinitionError

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


class ObjectReader(DirectoryReader):
    """The `keyed.changelog.model.ChangelogReader` of a key group.

    It lists only objects after the newest known commit, or after the start of the read.

    Args:
        group: The objects of the key group.
    """

    def __init__(self, group: ObjectGroup) -> None:
        super().__init__(group)
        self._group = group
        self._newest: Commit | None = None
        #: The listing of `last` that is not read yet, and the sequence after which it was listed.
        self._listed: tuple[int, Listing] | None = None

    def last(self) -> Commit | None:
        known = self._newest
        after = 0 if known is None else known.sequence
        listing, newest = self._group.look(after, known)
        self._newest = newest
        if newest is not known:
            self._listed = after, listing
        return newest

    def _listing(self, after: int, until: int) -> Listing:
        listed, self._listed = self._listed, None
        if listed is not None and listed[0] <= after and self._newest is not None and until <= self._newest.sequence:
            return listed[1]
        if not 0 < after < until:
            return self._group.listing()
        listing = self._group.listing(after)
        # The next commit may be in an object with earlier ones, whose name is before those that were listed.
        ends = self._newest is not None and self._newest.sequence == after
        first = next(iter(listing.segments), 0)
        return listing if first == after + 1 or (ends and not first) else self._group.listing()


#: Seconds after a listing for which `last` makes no request, because it is called several times per batch. `append`
#: finds the commits of another writer.
_FRESH_SECONDS = 1.0


class ObjectWriter(StoredWriter):
    """A `StoredWriter` to an object store, which looks for the commits of other writers once a second.

    Args:
        group: The objects of the key group.
        compaction: Folds the log as it grows; ``None`` for no compaction.
        clock: Returns monotonic seconds.

    Raises:
        CorruptionError: The newest commit is damaged.
        ChangelogError: The store cannot be read.
    """

    def __init__(
        self, group: ObjectGroup, compaction: BackgroundCompaction | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._looked: float
        super().__init__(group, compaction)

    def last(self) -> Commit | None:
        now = self._clock()
        if now - self._looked >= _FRESH_SECONDS:
            # Another writer may have continued, as when the group was moved to another worker and back.
            if self._last is None or self._files.exists(self._files.segment(self._last.sequence + 1)):
                self._look()
            self._looked = now
        return self._last

    def _advance(self, commit: Commit, path: Any) -> None:
        super()._advance(commit, path)
        self._looked = self._clock()

    def _look(self) -> None:
        super()._look()
        self._looked = self._clock()


_SCHEMES = ("s3://", "gs://", "az://")
_URL = re.compile(r"(s3|gs|az)://([A-Za-z0-9][A-Za-z0-9._-]{1,221})/+([A-Za-z0-9_.=+,! ()/-]+)")
_PARTS = frozenset({"header", "groups", "positions", "kept"})


def _checked_url(url: str) -> str:
    match = _URL.fullmatch(url) if isinstance(url, str) else None
    parts = match[3].strip("/").split("/") if match is not None else []
    if match is None or not all(part.strip(".") for part in parts):
        # It may hold credentials, which do not belong in such a URL.
        raise DefinitionError(
            "ObjectStoreChangelog(url): give 's3://BUCKET/PREFIX', 'gs://BUCKET/PREFIX' or 'az://CONTAINER/PREFIX', "
            "with a prefix for this operator alone, and credentials in the environment or in storage_options"
        )
    return f"{match[1]}://{match[2]}/{'/'.join(parts)}"


def _pairs(options: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> tuple[tuple[str, str], ...]:
    pairs = dict(options)
    for name, value in pairs.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float):
            raise DefinitionError(
                f"ObjectStoreChangelog(storage_options): {name!r} is {type_of(value)}; options are sent to the "
                "executors as data: give strings or numbers"
            )
    return tuple(sorted((name.lower(), setting_text(value)) for name, value in pairs.items()))


def _names(options: tuple[tuple[str, str], ...]) -> str:
    """Show names only: the values may be secrets."""
    return repr([name for name, _ in options])


def _timeout(value: Duration) -> int:
    return milliseconds_of(value, "ObjectStoreChangelog(timeout)", least=1)


def _lag(value: Duration) -> int:
    return milliseconds_of(value, "ObjectStoreChangelog(compaction_lag)")


def _interval(value: Duration) -> int:
    return milliseconds_of(value, "ObjectStoreChangelog(export_interval)")


def _history(value: int | None) -> int | None:
    return check_history(value, "ObjectStoreChangelog(history_bytes")


@attrs.frozen
class ObjectStoreChangelog(StoredChangelog):
    """A changelog in an object store: S3 and stores with its protocol, Google Cloud Storage, Azure Blob Storage.

    The store has to support conditional puts (``If-None-Match: *``), as these three do.

    Args:
        url: ``s3://BUCKET/PREFIX``, ``gs://BUCKET/PREFIX`` or ``az://CONTAINER/PREFIX``: an existing bucket, and a new
            prefix of one operator.
        storage_options: Options of obstore's stores and HTTP client, beyond those in the environment, such as
            ``{"endpoint": "http://localhost:9000", "allow_http": True}``. They are sent to the query's workers, and
            never shown.
        compaction_lag: As in `DirectoryChangelog`.
        history_bytes: As in `DirectoryChangelog`.
        auto_compact: As in `DirectoryChangelog`.
        export_interval: As in `DirectoryChangelog`.
        timeout: Time for which a request is retried: `int` milliseconds or `timedelta`.

    Raises:
        DefinitionError: A parameter breaks its rule.
    """

    _place: ClassVar[str] = "prefix"

    url: str = attrs.field(converter=_checked_url)
    storage_options: tuple[tuple[str, str], ...] = attrs.field(default=(), converter=_pairs, repr=_names)
    compaction_lag: int = attrs.field(default=HOUR_MS, converter=_lag, kw_only=True)
    history_bytes: int | None = attrs.field(default=None, converter=_history, kw_only=True)
    auto_compact: bool = attrs.field(default=True, kw_only=True)
    export_interval: int = attrs.field(default=0, converter=_interval, kw_only=True, eq=False)
    timeout: int = attrs.field(default=60_000, converter=_timeout, kw_only=True)

    def __str__(self) -> str:
        return f"changelog {self.url}"

    def writer(self, group: int) -> ObjectWriter:
        """See `Changelog.writer`."""
        objects = self._group(group)
        return ObjectWriter(objects, BackgroundCompaction(objects, self._limits) if self.auto_compact else None)

    def reader(self, group: int) -> ObjectReader:
        """See `Changelog.reader`."""
        return ObjectReader(self._group(group))

    @property
    def _bucket(self) -> Bucket:
        scheme, _, rest = self.url.partition("://")
        return Bucket(scheme, rest.partition("/")[0], self.storage_options, self.timeout / 1000)

    def _key(self, name: str) -> str:
        return f"{self.url.split('/', 3)[3]}/{name}"

    @property
    def _root(self) -> str:
        return self.url

    def _get(self, name: str) -> bytes | None:
        return self._bucket.get(self._key(name))

    def _put(self, name: str, record: bytes) -> bool:
        return self._bucket.put(self._key(name), record)

    def _names(self, folder: str, after: str | None = None) -> Iterable[str]:
        return self._bucket.sizes(self._key(folder), None if after is None else self._key(after))

    def _remove(self, names: Iterable[str]) -> None:
        self._bucket.delete(map(self._key, names))

    def _create(self, record: bytes) -> None:
        names = self._bucket.children(self.url.split("/", 3)[3])
        # Another driver may have created it in the meantime.
        if names and self.header() is None:
            parts = "the parts of a changelog whose 'header' is missing" if _PARTS.issuperset(names) else None
            raise ChangelogError(
                f"{self.url} holds {parts or repr(names[0])}, so it is not a new prefix for a changelog, and nothing "
                "was written to it; give ObjectStoreChangelog a prefix of its own"
            )
        self._put("header", record)

    def _complete(self, record: bytes, *, is_new: bool) -> None:
        if is_new:
            self._bucket.check_conditions(self._key("header"), record)

    def _missing(self) -> str:
        return (
            f"there is no changelog at {self.url}; a query that starts with it creates one. Check the URL, the "
            "endpoint and that the bucket exists"
        )

    def _files(self, header: LogHeader, group: int) -> ObjectGroup:
        path = PurePosixPath(self.url.partition("://")[2], "groups", f"{group:05d}")
        return ObjectGroup(self._bucket, path, header.log_id, group)


def is_object_store(text: object) -> bool:
    """Return true for the URL of an object store."""
    return isinstance(text, str) and text.startswith(_SCHEMES)


def changelog_at(place: Any) -> Any:
    """Return the changelog at the URL of an object store; any other argument unchanged.

    Raises:
        DefinitionError: The URL is malformed.
    """
    return ObjectStoreChangelog(place) if is_object_store(place) else place
