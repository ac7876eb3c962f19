"""`DirectoryChangelog`: a changelog as files in a folder.

Layout of the folder, in which no file is ever replaced::

    header                                   header (`keyed.changelog.records`)
    groups/00000/, groups/00001/, ...        a key group each (`keyed.changelog.directory.group_folder`)
    positions/00000000000000000007.position  the runner's positions in its sources after sequence 7
    kept/<name>                              other data of the runner (both in `keyed.changelog.records`)
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

from keyed.changelog.directory.compaction import BackgroundCompaction, Compacted, CompactionLimits, compact_group
from keyed.changelog.directory.directory_reader import DirectoryReader
from keyed.changelog.directory.directory_writer import DirectoryWriter
from keyed.changelog.directory.disk import file_sizes, make_folder, publish, publish_staged, read_file, remove
from keyed.changelog.directory.group_folder import GroupFolder
from keyed.changelog.model import LogHeader, batch_id
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
from keyed.private_files import folder_path

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_KEPT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")
_POSITION = re.compile(r"(\d{20})\.position")
_FOLDERS = ("groups", "positions", "kept")
#: File systems create it in their root folder.
_NEW = frozenset({"header", "lost+found"})
_KNOWN = (
    (re.compile(r"keyed-commits-\d+"), "the checkpoint of a query in the local runtime"),
    (re.compile(r"offsets|commits"), "the checkpoint of a query on Spark"),
    (re.compile(r"_keyed-query"), "the output of a query"),
)
_POSITIONS_BETWEEN_DROPS = 256
_HOUR_MS = 60 * 60 * 1000


def _absolute(path: str | os.PathLike[str]) -> str:
    return os.path.abspath(folder_path(path, "DirectoryChangelog(path)"))  # noqa: PTH100 - links are kept


def _lag(value: Duration) -> int:
    return milliseconds_of(value, "DirectoryChangelog(compaction_lag)")


def _interval(value: Duration) -> int:
    return milliseconds_of(value, "DirectoryChangelog(export_interval)")


def _kept_name(name: str) -> str:
    if not _KEPT.fullmatch(name):
        raise ChangelogError(f"name={name!r} is not 1 to 128 of the characters A-Z, a-z, 0-9, _, - and, within, .")
    return name


def _history(value: int | None) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise DefinitionError(f"DirectoryChangelog(history_bytes={value!r}): give a number of bytes, or None")
    return value


def _other_content(root: Path) -> str | None:
    """Return a description of what a folder without a header holds, ``None`` if a changelog may be created in it.

    An interrupted creation leaves nothing, or hidden files. The folders are created after the header.

    Raises:
        ChangelogError: It cannot be read.
    """
    names = sorted(
        name
        for name in file_sizes(root)
        if not name.startswith(".") and name not in _NEW and not (name in _FOLDERS and not file_sizes(root / name))
    )
    if not names:
        return None
    if operators := sorted(path.parent.name for path in [*root.glob("*/header"), *root.glob("*/keyed-versions-*")]):
        return f"the state tables or changelogs of {', '.join(map(repr, operators))}, each in a folder below it"
    if "groups" in names:
        return "the key groups of a changelog whose file 'header' is missing"
    for pattern, found in _KNOWN:
        if any(map(pattern.fullmatch, names)):
            return found
    return repr(names[0]) + (f" and {len(names) - 1} more" if names[1:] else "")


@attrs.frozen
class DirectoryChangelog:
    """A changelog as files in a folder, on a local disk or on one that all machines of the job share.

    Each commit of a key group is a file, or several with ``export_interval``. A file is published atomically and never
    replaced. Old files are folded into one with the whole state: as the log grows, in a background thread, and by
    `compact`.

    Args:
        path: The folder; created with its parents, or empty. It belongs to one operator. All machines have to reach it
            by the same path, on a file system with hard links.
        compaction_lag: Commits younger than this are kept, so that past states can be restored and readers can resume:
            `int` milliseconds or `timedelta` of processing time. (Kafka's ``min.compaction.lag.ms``.)
        history_bytes: If the commits of a key group have more bytes than this, compaction keeps only the newest half of
            this number, whatever their age; ``None`` for no limit.
        auto_compact: Writers compact as the log grows, in a background thread. If false, run `compact`.
        export_interval: Commits of a key group are exported together, as one file, when the oldest is as old: `int`
            milliseconds or `timedelta` of processing time; at most 64 commits. 0 exports each commit. Readers lag by as
            much.
        group_access: The folder, if it is created, can be read by its group, for example by followers under another
            user. Otherwise only the user can read it.

    Raises:
        DefinitionError: A parameter breaks its rule.
    """

    path: str = attrs.field(converter=_absolute)
    compaction_lag: int = attrs.field(default=_HOUR_MS, converter=_lag, kw_only=True)
    history_bytes: int | None = attrs.field(default=None, converter=_history, kw_only=True)
    auto_compact: bool = attrs.field(default=True, kw_only=True)
    export_interval: int = attrs.field(default=0, converter=_interval, kw_only=True, eq=False)
    group_access: bool = attrs.field(default=False, kw_only=True)

    def __str__(self) -> str:
        return f"changelog {self.path}"

    def prepare(self, operator: str, parallelism: int) -> LogHeader:
        """Create the changelog, or check that an existing one belongs to this operator.

        Args:
            operator: Name of the operator.
            parallelism: Number of its key groups.

        Raises:
            ChangelogError: It belongs to another operator or number of key groups, cannot be created, or the folder has
                other content.
        """
        if not _NAME.fullmatch(operator):
            raise ChangelogError(f"operator={operator!r} is not 1 to 128 of the characters A-Z, a-z, 0-9, _ and -")
        root = Path(self.path)
        header = self.header()
        if header is None:
            self._refuse_other_content(root)
            make_folder(root, group=self.group_access)
            new = LogHeader(random_id(), operator, parallelism, time.time_ns() // 1_000_000)
            publish(root / "header", [encode_header(new)])
            # Another driver may have created it in the meantime.
            header = self._present()
        if (header.operator, header.parallelism) != (operator, parallelism):
            raise ChangelogError(
                f"{self.path} is the changelog of operator {header.operator!r} with {header.parallelism} key groups, "
                f"not of {operator!r} with {parallelism}; give each operator and number of key groups its own folder"
            )
        for name in _FOLDERS:
            make_folder(root / name, group=self.group_access)
        return header

    def header(self) -> LogHeader | None:
        """Return the identity of the changelog, or ``None`` if it was not created yet."""
        path = Path(self.path, "header")
        record = read_file(path)
        return None if record is None else decode_header(record, str(path))

    def writer(self, group: int) -> DirectoryWriter:
        """Open the writer of a key group.

        Raises:
            ChangelogError: The changelog does not exist on this machine, or cannot be written.
        """
        folder = self._group(group)
        return DirectoryWriter(folder, BackgroundCompaction(folder, self._limits) if self.auto_compact else None)

    def publish(self, group: int, sequence: int, attempt: str) -> bool:
        """Publish the commit of a key group that an attempt has staged.

        Returns:
            True if it is published. If not, it will be appended.

        Raises:
            ChangelogError: The changelog does not exist on this machine, or cannot be written.
        """
        return publish_staged(self._group(group).segment(sequence), attempt)

    def reader(self, group: int) -> DirectoryReader:
        """Open a reader of a key group.

        Raises:
            ChangelogError: The changelog does not exist on this machine.
        """
        return DirectoryReader(self._group(group))

    def compact(self) -> list[Compacted]:
        """Fold commits older than the compaction lag, now. A job may be running.

        Returns:
            The result for each key group.

        Raises:
            CorruptionError: The log of a group is damaged, or its state does not match its commits; nothing of that
                group was removed.
            ChangelogError: The disk fails.
        """
        groups = range(self._present().parallelism)
        done = [compact_group(self._group(group), self._limits) for group in groups]
        self._drop_positions()
        return done

    def put_position(self, sequence: int, data: bytes) -> None:
        """Store the runner's position after a batch. Storing the same one again has no effect.

        Raises:
            ChangelogDiverged: Another position is stored for this sequence.
            ChangelogError: It cannot be written.
        """
        self._present()
        path = self._position(sequence)
        if not publish(path, [encode_position(sequence, data)]) and self._read_position(sequence) != data:
            raise ChangelogDiverged(
                f"{path}: another position is stored for batch {batch_id(sequence)}; give changelog= an empty folder, "
                "which starts with a snapshot"
            )
        if sequence % _POSITIONS_BETWEEN_DROPS == 0:
            self._drop_positions()

    def positions(self, after: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield the positions after a sequence, in order. Compaction removes those before the bases of all groups.

        Raises:
            CorruptionError: A position is damaged.
            ChangelogError: The folder cannot be read.
        """
        for sequence in self._sequences():
            if sequence > after and (data := self._read_position(sequence)) is not None:
                yield sequence, data

    def keep(self, name: str, data: bytes) -> None:
        """Store data of the runner under a name. Storing the same again has no effect.

        Raises:
            ChangelogDiverged: Other data is stored under the name.
            ChangelogError: It cannot be written.
        """
        path = Path(self.path, "kept", _kept_name(name))
        self._present()
        record = encode_kept(name, data)
        if not publish(path, [record]) and read_file(path) != record:
            raise ChangelogDiverged(f"{path}: other data is stored under this name; give changelog= an empty folder")

    def forget(self, names: Iterable[str]) -> None:
        """Remove data that `keep` stored under names. Unknown names are ignored.

        Raises:
            ChangelogError: It cannot be removed.
        """
        remove(Path(self.path, "kept", _kept_name(name)) for name in names)

    def kept(self) -> Iterator[tuple[str, bytes]]:
        """Yield the data of `keep`, in order of names.

        Raises:
            CorruptionError: Data is damaged.
            ChangelogError: The folder cannot be read.
        """
        folder = Path(self.path, "kept")
        for name in sorted(file_sizes(folder)):
            # `forget` may have removed it in the meantime.
            if _KEPT.fullmatch(name) and (record := read_file(folder / name)) is not None:
                yield name, self._decoded_kept(record, folder / name)

    def _refuse_other_content(self, root: Path) -> None:
        """Refuse a folder with any content other than the start of a changelog.

        Raises:
            ChangelogError: It has other content, or cannot be read.
        """
        found = _other_content(root)
        # Another driver may have created it in the meantime.
        if found is not None and self.header() is None:
            raise ChangelogError(
                f"{self.path} holds {found}, so it is not a new folder for a changelog, and nothing was written to it; "
                "give DirectoryChangelog a new or empty folder of its own"
            )

    @property
    def _limits(self) -> CompactionLimits:
        return CompactionLimits(self.compaction_lag, self.history_bytes)

    def _present(self) -> LogHeader:
        """Return the header, which has to exist."""
        header = self.header()
        if header is None:
            raise ChangelogError(
                f"there is no changelog in {self.path}, or it is not visible from this machine; if a job has written "
                "it on several machines, give a path that leads to the same folder on all of them"
            )
        return header

    def _group(self, group: int) -> GroupFolder:
        header = self._present()
        if not 0 <= group < header.parallelism:
            raise ChangelogError(f"{self.path} has {header.parallelism} key groups; there is no group {group}")
        return GroupFolder(Path(self.path, "groups", f"{group:05d}"), header.log_id, group)

    def _position(self, sequence: int) -> Path:
        return Path(self.path, "positions", f"{sequence:020d}.position")

    def _sequences(self) -> list[int]:
        names = file_sizes(Path(self.path, "positions"))
        return sorted(int(match[1]) for match in map(_POSITION.fullmatch, names) if match)

    def _read_position(self, sequence: int) -> bytes | None:
        """Return a position, unless compaction has removed it."""
        path = self._position(sequence)
        record = read_file(path)
        if record is None:
            return None
        found, data = decode_position(record, str(path))
        if found != sequence:
            raise CorruptionError(f"the position belongs to sequence {found}", where=str(path))
        return data

    @staticmethod
    def _decoded_kept(record: bytes, path: Path) -> bytes:
        name, data = decode_kept(record, str(path))
        if name != path.name:
            raise CorruptionError(f"the record belongs to {name!r}", where=str(path))
        return data

    def _drop_positions(self) -> None:
        """Remove positions of states that no group can restore."""
        least = min(self._group(group).listing().base for group in range(self._present().parallelism))
        remove(self._position(sequence) for sequence in self._sequences() if sequence < least)
