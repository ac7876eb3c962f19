"""`ObjectStoreChangelog`: a changelog as objects under a prefix of a bucket.

Names under the prefix, of objects that are never replaced::

    header                                   header (`keyed.changelog.records`)
    groups/00000/, groups/00001/, ...        a key group each (`keyed.changelog.directory.group_folder`)
    positions/00000000000000000007.position  the runner's positions in its sources after sequence 7
    kept/<name>                              other data of the runner (both in `keyed.changelog.records`)

Each is written by a put that is refused if an object of this name exists. This fences writers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any, ClassVar

import attrs

from keyed.base.arguments import setting_text
from keyed.base.durations import Duration, milliseconds_of
from keyed.base.shown import type_of
from keyed.changelog.directory.compaction import BackgroundCompaction
from keyed.changelog.directory.stored_changelog import HOUR_MS, StoredChangelog, check_history
from keyed.changelog.model import LogHeader
from keyed.changelog.objects.bucket import Bucket
from keyed.changelog.objects.object_group import ObjectGroup
from keyed.changelog.objects.object_reader import ObjectReader
from keyed.changelog.objects.object_writer import ObjectWriter
from keyed.errors import ChangelogError, DefinitionError

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
