"""A changelog, and its writers, as named parts that are never replaced: files of a folder, or objects of a bucket."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import attrs

from keyed.base.background import Status
from keyed.base.ids import random_id
from keyed.changelog.directory.compaction import BackgroundCompaction, Compacted, CompactionLimits, compact_group
from keyed.changelog.directory.group_folder import AnyGroupFiles, Listing
from keyed.changelog.directory.segment_file import Segment
from keyed.changelog.model import (
    Blocks,
    Commit,
    LogHeader,
    batch_id,
    decode_header,
    decode_kept,
    decode_position,
    encode_header,
    encode_kept,
    encode_position,
    refusal_of,
)
from keyed.errors import ChangelogDiverged, ChangelogError, CorruptionError, DefinitionError

HOUR_MS = 60 * 60 * 1000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_KEPT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")
_POSITION = re.compile(r"(\d{20})\.position")
_POSITIONS_BETWEEN_DROPS = 256


def check_history(value: int | None, parameter: str) -> int | None:
    """Return a limit of bytes, after a check.

    Raises:
        DefinitionError: It is neither a number from 0 nor ``None``.
    """
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise DefinitionError(f"{parameter}={value!r}): give a number of bytes, or None")
    return value


def _kept_name(name: str) -> str:
    if not _KEPT.fullmatch(name):
        raise ChangelogError(f"name={name!r} is not 1 to 128 of the characters A-Z, a-z, 0-9, _, - and, within, .")
    return f"kept/{name}"


class StoredChangelog(ABC):
    """The parts of a changelog: its header, positions, kept data, and the files of its key groups.

    Attributes:
        compaction_lag: Milliseconds for which commits are kept.
        history_bytes: Bytes of commits that are kept; ``None`` for no limit.
    """

    __slots__ = ()
    #: The word for its place, in messages.
    _place: ClassVar[str]
    compaction_lag: int
    history_bytes: int | None

    @property
    @abstractmethod
    def _root(self) -> str:
        """The folder or URL."""

    @abstractmethod
    def _get(self, name: str) -> bytes | None:
        """Return a part, or ``None`` if there is none."""

    @abstractmethod
    def _put(self, name: str, record: bytes) -> bool:
        """Write a part, unless it exists. Return true if it was written."""

    @abstractmethod
    def _names(self, folder: str, after: str | None = None) -> Iterable[str]:
        """Return the names of the parts in a folder; those up to one may be left out."""

    @abstractmethod
    def _remove(self, names: Iterable[str]) -> None:
        """Remove parts; missing ones are ignored."""

    @abstractmethod
    def _create(self, record: bytes) -> None:
        """Write the header.

        Raises:
            ChangelogError: There is other content.
        """

    @abstractmethod
    def _missing(self) -> str:
        """Return the message for a changelog that does not exist."""

    @abstractmethod
    def _files(self, header: LogHeader, group: int) -> AnyGroupFiles:
        """Return the files of a key group, which exists."""

    def prepare(self, operator: str, parallelism: int) -> LogHeader:
        """See `Changelog.prepare`."""
        if not _NAME.fullmatch(operator):
            raise ChangelogError(f"operator={operator!r} is not 1 to 128 of the characters A-Z, a-z, 0-9, _ and -")
        header = self.header()
        is_new = header is None
        if header is None:
            self._create(encode_header(LogHeader(random_id(), operator, parallelism, time.time_ns() // 1_000_000)))
            # Another driver may have created it in the meantime.
            header = self._existing_header()
        if (header.operator, header.parallelism) != (operator, parallelism):
            raise ChangelogError(
                f"{self._root} is the changelog of operator {header.operator!r} with {header.parallelism} key groups, "
                f"not of {operator!r} with {parallelism}; give each operator and number of key groups its own "
                f"{self._place}"
            )
        self._complete(encode_header(header), is_new=is_new)
        return header

    @abstractmethod
    def _complete(self, record: bytes, *, is_new: bool) -> None:
        """Make or check, with its header, what else a changelog needs."""

    def header(self) -> LogHeader | None:
        """See `Changelog.header`."""
        record = self._get("header")
        return None if record is None else decode_header(record, f"{self._root}/header")

    def compact(self) -> list[Compacted]:
        """Fold commits older than the compaction lag, now. A job may be running.

        Returns:
            The result for each key group.

        Raises:
            CorruptionError: The log of a group is damaged; nothing of that group was removed.
        """
        header = self._existing_header()
        done = [compact_group(self._files(header, group), self._limits) for group in range(header.parallelism)]
        self._drop_positions(min(each.base for each in done))
        return done

    def put_position(self, sequence: int, data: bytes) -> None:
        """See `Changelog.put_position`."""
        header = self._existing_header()
        name = _position(sequence)
        if not self._put(name, encode_position(sequence, data)) and self._read_position(sequence) != data:
            raise ChangelogDiverged(
                f"{self._root}/{name}: another position is stored for batch {batch_id(sequence)}; give changelog= an "
                f"empty {self._place}, which starts with a snapshot"
            )
        if sequence % _POSITIONS_BETWEEN_DROPS == 0:
            groups = (self._files(header, group) for group in range(header.parallelism))
            self._drop_positions(min(group.listing().base for group in groups))

    def positions(self, after: int = 0) -> Iterator[tuple[int, bytes]]:
        """See `Changelog.positions`."""
        for sequence in self._sequences(after):
            if sequence > after and (data := self._read_position(sequence)) is not None:
                yield sequence, data

    def keep(self, name: str, data: bytes) -> None:
        """See `Changelog.keep`."""
        part, record = _kept_name(name), encode_kept(name, data)
        self._existing_header()
        if not self._put(part, record) and self._get(part) != record:
            raise ChangelogDiverged(
                f"{self._root}/{part}: other data is stored under this name; give changelog= an empty {self._place}"
            )

    def forget(self, names: Iterable[str]) -> None:
        """See `Changelog.forget`."""
        self._remove(map(_kept_name, names))

    def kept(self) -> Iterator[tuple[str, bytes]]:
        """See `Changelog.kept`."""
        for name in sorted(self._names("kept")):
            # `forget` may have removed it in the meantime.
            if _KEPT.fullmatch(name) and (record := self._get(f"kept/{name}")) is not None:
                where = f"{self._root}/kept/{name}"
                kept, data = decode_kept(record, where)
                if kept != name:
                    raise CorruptionError(f"the record belongs to {kept!r}", where=where)
                yield name, data

    @property
    def _limits(self) -> CompactionLimits:
        return CompactionLimits(self.compaction_lag, self.history_bytes)

    def _existing_header(self) -> LogHeader:
        """Return the header, which has to exist."""
        header = self.header()
        if header is None:
            raise ChangelogError(self._missing())
        return header

    def _group(self, group: int) -> Any:
        """Return the files of a key group."""
        header = self._existing_header()
        if not 0 <= group < header.parallelism:
            raise ChangelogError(f"{self._root} has {header.parallelism} key groups; there is no group {group}")
        return self._files(header, group)

    def _sequences(self, after: int = 0) -> list[int]:
        names = self._names("positions", _position(after) if after else None)
        return sorted(int(match[1]) for match in map(_POSITION.fullmatch, names) if match)

    def _read_position(self, sequence: int) -> bytes | None:
        """Return a position, unless compaction has removed it."""
        record = self._get(_position(sequence))
        if record is None:
            return None
        where = f"{self._root}/{_position(sequence)}"
        position, data = decode_position(record, where)
        if position != sequence:
            raise CorruptionError(f"the position belongs to sequence {position}", where=where)
        return data

    def _drop_positions(self, least: int) -> None:
        """Remove positions of states that no group can restore."""
        self._remove(_position(sequence) for sequence in self._sequences() if sequence < least)


def _position(sequence: int) -> str:
    return f"positions/{sequence:020d}.position"


class StoredWriter:
    """Base of the `keyed.changelog.model.ChangelogWriter` of files that are never replaced.

    Writers are independent of each other. The first one to publish a sequence wins. Another writer that finds the same
    commit writes nothing; one that finds a different commit raises.

    Args:
        files: The files of the key group.
        compaction: Compacts the log as it grows; ``None`` for no compaction.

    Raises:
        CorruptionError: The newest commit is damaged, and not merely torn.
        ChangelogError: The files cannot be read.
    """

    def __init__(self, files: AnyGroupFiles, compaction: BackgroundCompaction | None) -> None:
        self._files = files
        self._compaction = compaction
        self._listing: Listing
        self._last: Commit | None
        #: Number of torn segments per sequence after the newest whole one.
        self._torn: dict[int, int]
        self._look()
        if compaction is not None:
            compaction.begin(self._listing)

    def append(self, commit: Commit, blocks: Blocks) -> Commit:
        return self.append_all([(commit, blocks)])

    def append_all(self, commits: Sequence[tuple[Commit, Blocks]]) -> Commit:
        """See `keyed.changelog.model.GroupingWriter.append_all`."""
        files = self._files
        new = [(attrs.evolve(commit, log_id=files.log_id, group=files.group), blocks) for commit, blocks in commits]
        last = new[-1][0]
        if refusal_of(new, self._last) is not None:
            # Another writer may have continued in the meantime.
            self._look()
            while new and self._last is not None and new[0][0].sequence <= self._last.sequence:
                existing = files.existing(self._listing, new.pop(0)[0], self._last)
            if not new:
                return existing
            if (reason := refusal_of(new, self._last)) is not None:
                raise ChangelogDiverged(
                    f"{files.path}: {reason}; give changelog= an empty {files.place}, which starts with a snapshot"
                )
        (first, blocks), *others = new
        path = files.segment(first.sequence, self._torn.get(first.sequence, -1) + 1)
        segment = self._publish(path, Segment(first, blocks, others))
        if segment is not None and self._compaction is not None:
            self._compaction.grown(segment.bytes)
        if segment is not None and self._last is not None and self._is_there(self._last.sequence):
            self._advance(segment.commit, path)
            return segment.commit
        # Another writer was faster; or it is so far ahead that this sequence was compacted, which freed its name; or
        # this is the first commit, without a predecessor to compare; or the answer to a put was lost.
        self._look()
        return files.existing(self._listing, last, self._last)

    @property
    def status(self) -> Status:
        """The status of background compaction: starting before the first one; closed without compaction."""
        return Status.CLOSED if self._compaction is None else self._compaction.work.status

    def __repr__(self) -> str:
        text = f"<{type(self).__name__} of {self._files.path}, compaction {self.status.value}"
        work = self._compaction and self._compaction.work
        has_failed = work and work.last_error
        return f"{text}, {work.failures} failures: {work.last_error_text}>" if work and has_failed else f"{text}>"

    def close(self) -> None:
        if self._compaction is not None:
            self._compaction.close()

    def _publish(self, path: Any, segment: Segment) -> Segment | None:
        """Publish a segment under a name; ``None`` if that is taken."""
        return segment if self._files.publish(path, segment) else None

    def _advance(self, commit: Commit, path: Any) -> None:
        """Record the commit that this writer has published."""
        self._last, self._path = commit, path

    def _look(self) -> None:
        """Read the newest listing."""
        self._listing, self._last = self._files.look()
        # The publisher of the newest commit may have died before it was durable, and further commits depend on it.
        self._files.sync()
        newest = 0 if self._last is None else self._last.sequence
        segments = self._listing.segments
        self._torn = {sequence: again for sequence, (again, _) in segments.items() if sequence > newest}
        self._path = self._files.path_of(self._listing, newest)

    def _is_there(self, sequence: int) -> bool:
        """Return true if the newest commit, or the base that replaced it, still exists."""
        return self._files.exists(self._path) or self._files.exists(self._files.base(sequence))
