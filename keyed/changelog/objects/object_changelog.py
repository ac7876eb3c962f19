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
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

import attrs

from keyed.changelog.directory.compaction import BackgroundCompaction, Compacted, CompactionLimits, compact_group
from keyed.changelog.model import LogHeader, batch_id
from keyed.changelog.objects.bucket import Bucket
from keyed.changelog.objects.object_group import ObjectGroup
from keyed.changelog.objects.object_reader import ObjectReader
from keyed.changelog.objects.object_writer import ObjectWriter
from keyed.changelog.records import (
    decode_header,
    decode_kept,
    decode_position,
    encode_header,
    encode_kept,
    encode_position,
)
from keyed.durations import Duration, milliseconds_of
from keyed.errors import ChangelogDiverged, ChangelogError, CorruptionError, DefinitionError
from keyed.ids import random_id
from keyed.shown import type_of

_SCHEMES = ("s3://", "gs://", "az://")
_URL = re.compile(r"(s3|gs|az)://([A-Za-z0-9][A-Za-z0-9._-]{1,221})/+([A-Za-z0-9_.=+,! ()/-]+)")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_KEPT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")
_POSITION = re.compile(r"(\d{20})\.position")
_PARTS = frozenset({"header", "groups", "positions", "kept"})
_POSITIONS_BETWEEN_DROPS = 256
_HOUR_MS = 60 * 60 * 1000


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
    return tuple(sorted((name.lower(), _text(value)) for name, value in pairs.items()))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _names(options: tuple[tuple[str, str], ...]) -> str:
    """Show names only: the values may be secrets."""
    return repr([name for name, _ in options])


def _lag(value: Duration) -> int:
    return milliseconds_of(value, "ObjectStoreChangelog(compaction_lag)")


def _timeout(value: Duration) -> int:
    return milliseconds_of(value, "ObjectStoreChangelog(timeout)", least=1)


def _history(value: int | None) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise DefinitionError(f"ObjectStoreChangelog(history_bytes={value!r}): give a number of bytes, or None")
    return value


def _interval(value: Duration) -> int:
    return milliseconds_of(value, "ObjectStoreChangelog(export_interval)")


def _kept_name(name: str) -> str:
    if not _KEPT.fullmatch(name):
        raise ChangelogError(f"name={name!r} is not 1 to 128 of the characters A-Z, a-z, 0-9, _, - and, within, .")
    return name


@attrs.frozen
class ObjectStoreChangelog:
    """A changelog in an object store: S3 and stores with its protocol, Google Cloud Storage, Azure Blob Storage.

    Each commit of a key group is an object, or several with ``export_interval``. An object is put only if none of its
    name exists. The store therefore has to support conditional puts (``If-None-Match: *``), as these three do. Old
    commits are folded into an object that holds the whole state: as the log grows, in a background thread, and by
    `compact`.

    Args:
        url: ``s3://BUCKET/PREFIX``, ``gs://BUCKET/PREFIX`` or ``az://CONTAINER/PREFIX``. The prefix belongs to one
            operator, and has no objects at first. The bucket has to exist.
        storage_options: Options of the client, beyond those in the environment, such as ``{"region": "eu-west-1"}`` or
            ``{"endpoint": "http://localhost:9000", "allow_http": True}``: those of obstore's stores and of its HTTP
            client. They are sent to the query's workers. Their values are never shown.
        compaction_lag: Commits younger than this are kept, so that past states can be restored and readers can resume:
            `int` milliseconds or `timedelta` of processing time.
        history_bytes: If the commits of a key group have more bytes than this, compaction keeps only the newest half of
            this number, whatever their age; ``None`` for no limit.
        auto_compact: Writers compact as the log grows, in a background thread. If false, run `compact`.
        export_interval: Commits of a key group are exported together, as one object, when the oldest is as old: `int`
            milliseconds or `timedelta` of processing time; at most 64 commits. 0 exports each commit. Readers lag by as
            much.
        timeout: Time for which a request is retried, if the store throttles or does not answer, before it fails: `int`
            milliseconds or `timedelta`.

    Raises:
        DefinitionError: A parameter breaks its rule.
    """

    url: str = attrs.field(converter=_checked_url)
    storage_options: tuple[tuple[str, str], ...] = attrs.field(default=(), converter=_pairs, repr=_names)
    compaction_lag: int = attrs.field(default=_HOUR_MS, converter=_lag, kw_only=True)
    history_bytes: int | None = attrs.field(default=None, converter=_history, kw_only=True)
    auto_compact: bool = attrs.field(default=True, kw_only=True)
    export_interval: int = attrs.field(default=0, converter=_interval, kw_only=True, eq=False)
    timeout: int = attrs.field(default=60_000, converter=_timeout, kw_only=True)

    def __str__(self) -> str:
        return f"changelog {self.url}"

    def prepare(self, operator: str, parallelism: int) -> LogHeader:
        """Create the changelog, or check that an existing one belongs to this operator.

        Args:
            operator: Name of the operator.
            parallelism: Number of its key groups.

        Raises:
            ChangelogError: It belongs to another operator or number of key groups, cannot be created, or there are
                other objects under the prefix.
        """
        if not _NAME.fullmatch(operator):
            raise ChangelogError(f"operator={operator!r} is not 1 to 128 of the characters A-Z, a-z, 0-9, _ and -")
        header = self.header()
        if header is None:
            self._refuse_other_content()
            new = LogHeader(random_id(), operator, parallelism, time.time_ns() // 1_000_000)
            self._bucket.put(self._key("header"), encode_header(new))
            # Another driver may have created it in the meantime.
            header = self._present()
            self._bucket.check_conditions(self._key("header"), encode_header(header))
        if (header.operator, header.parallelism) != (operator, parallelism):
            raise ChangelogError(
                f"{self.url} is the changelog of operator {header.operator!r} with {header.parallelism} key groups, "
                f"not of {operator!r} with {parallelism}; give each operator and number of key groups its own prefix"
            )
        return header

    def header(self) -> LogHeader | None:
        """Return the identity of the changelog, or ``None`` if it was not created yet."""
        record = self._bucket.get(self._key("header"))
        return None if record is None else decode_header(record, f"{self.url}/header")

    def writer(self, group: int) -> ObjectWriter:
        """Open the writer of a key group.

        Raises:
            ChangelogError: The changelog does not exist, or the store fails.
        """
        objects = self._group(group)
        return ObjectWriter(objects, BackgroundCompaction(objects, self._limits) if self.auto_compact else None)

    def reader(self, group: int) -> ObjectReader:
        """Open a reader of a key group.

        Raises:
            ChangelogError: The changelog does not exist, or the store fails.
        """
        return ObjectReader(self._group(group))

    def compact(self) -> list[Compacted]:
        """Fold commits older than the compaction lag, now. A job may be running.

        Returns:
            The result for each key group.

        Raises:
            CorruptionError: The log of a group is damaged, or its state does not match its commits; nothing of that
                group was removed.
            ChangelogError: The store fails.
        """
        header = self._present()
        done = [compact_group(self._objects(header, group), self._limits) for group in range(header.parallelism)]
        self._drop_positions(min(each.base for each in done))
        return done

    def put_position(self, sequence: int, data: bytes) -> None:
        """Store the runner's position after a batch. Storing the same one again has no effect.

        Raises:
            ChangelogDiverged: Another position is stored for this sequence.
            ChangelogError: It cannot be written.
        """
        header = self._present()
        put = self._bucket.put(self._position(sequence), encode_position(sequence, data))
        if not put and self._read_position(sequence) != data:
            raise ChangelogDiverged(
                f"{self.url}: another position is stored for batch {batch_id(sequence)}; give changelog= an empty "
                "prefix, which starts with a snapshot"
            )
        if sequence % _POSITIONS_BETWEEN_DROPS == 0:
            groups = (self._objects(header, group) for group in range(header.parallelism))
            self._drop_positions(min(group.listing().base for group in groups))

    def positions(self, after: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield the positions after a sequence, in order. Compaction removes those before the bases of all groups.

        Raises:
            CorruptionError: A position is damaged.
            ChangelogError: The store fails.
        """
        for sequence in self._sequences(after):
            if (data := self._read_position(sequence)) is not None:
                yield sequence, data

    def keep(self, name: str, data: bytes) -> None:
        """Store data of the runner under a name. Storing the same again has no effect.

        Raises:
            ChangelogDiverged: Other data is stored under the name.
            ChangelogError: It cannot be written.
        """
        key = self._key(f"kept/{_kept_name(name)}")
        self._present()
        record = encode_kept(name, data)
        if not self._bucket.put(key, record) and self._bucket.get(key) != record:
            raise ChangelogDiverged(
                f"{self.url}/kept/{name}: other data is stored under this name; give changelog= an empty prefix"
            )

    def forget(self, names: Iterable[str]) -> None:
        """Remove data that `keep` stored under names. Unknown names are ignored.

        Raises:
            ChangelogError: It cannot be removed.
        """
        self._bucket.delete(self._key(f"kept/{_kept_name(name)}") for name in names)

    def kept(self) -> Iterator[tuple[str, bytes]]:
        """Yield the data of `keep`, in order of names.

        Raises:
            CorruptionError: Data is damaged.
            ChangelogError: The store fails.
        """
        for name in sorted(self._bucket.sizes(self._key("kept"))):
            # `forget` may have removed it in the meantime.
            if _KEPT.fullmatch(name) and (record := self._bucket.get(self._key(f"kept/{name}"))) is not None:
                where = f"{self.url}/kept/{name}"
                found, data = decode_kept(record, where)
                if found != name:
                    raise CorruptionError(f"the record belongs to {found!r}", where=where)
                yield name, data

    @property
    def _bucket(self) -> Bucket:
        scheme, _, rest = self.url.partition("://")
        return Bucket(scheme, rest.partition("/")[0], self.storage_options, self.timeout / 1000)

    def _key(self, name: str) -> str:
        return f"{self.url.split('/', 3)[3]}/{name}"

    @property
    def _limits(self) -> CompactionLimits:
        return CompactionLimits(self.compaction_lag, self.history_bytes)

    def _refuse_other_content(self) -> None:
        """Refuse a prefix that has objects already.

        Raises:
            ChangelogError: It has objects, or cannot be listed.
        """
        found = self._bucket.children(self.url.split("/", 3)[3])
        # Another driver may have created it in the meantime.
        if found and self.header() is None:
            what = "the parts of a changelog whose 'header' is missing" if _PARTS.issuperset(found) else repr(found[0])
            raise ChangelogError(
                f"{self.url} holds {what}, so it is not a new prefix for a changelog, and nothing was written to it; "
                "give ObjectStoreChangelog a prefix of its own"
            )

    def _present(self) -> LogHeader:
        """Return the header, which has to exist."""
        header = self.header()
        if header is None:
            raise ChangelogError(
                f"there is no changelog at {self.url}; a query that starts with it creates one. Check the URL, the "
                "endpoint and that the bucket exists"
            )
        return header

    def _group(self, group: int) -> ObjectGroup:
        return self._objects(self._present(), group)

    def _objects(self, header: LogHeader, group: int) -> ObjectGroup:
        if not 0 <= group < header.parallelism:
            raise ChangelogError(f"{self.url} has {header.parallelism} key groups; there is no group {group}")
        path = PurePosixPath(self.url.partition("://")[2], "groups", f"{group:05d}")
        return ObjectGroup(self._bucket, path, header.log_id, group)

    def _position(self, sequence: int) -> str:
        return self._key(f"positions/{sequence:020d}.position")

    def _sequences(self, after: int = 0) -> list[int]:
        names = self._bucket.sizes(self._key("positions"), self._position(after) if after else None)
        return sorted(int(match[1]) for match in map(_POSITION.fullmatch, names) if match)

    def _read_position(self, sequence: int) -> bytes | None:
        """Return a position, unless compaction has removed it."""
        record = self._bucket.get(self._position(sequence))
        if record is None:
            return None
        where = f"{self.url}/positions/{sequence:020d}.position"
        found, data = decode_position(record, where)
        if found != sequence:
            raise CorruptionError(f"the position belongs to sequence {found}", where=where)
        return data

    def _drop_positions(self, least: int) -> None:
        """Remove positions of states that no group can restore."""
        self._bucket.delete(self._position(sequence) for sequence in self._sequences() if sequence < least)


def is_object_store(text: object) -> bool:
    """Return true for the URL of an object store."""
    return isinstance(text, str) and text.startswith(_SCHEMES)


def changelog_at(given: Any) -> Any:
    """Return the changelog at the URL of an object store; any other argument unchanged.

    Raises:
        DefinitionError: The URL is malformed.
    """
    return ObjectStoreChangelog(given) if is_object_store(given) else given
