"""`DirectoryChangelog`: a changelog as files in a folder.

Layout of the folder, in which no file is ever replaced::

    header                                   header (`keyed.changelog.model`)
    groups/00000/, groups/00001/, ...        a key group each (`keyed.changelog.directory.group_folder`)
    positions/00000000000000000007.position  the runner's positions in its sources after sequence 7
    kept/<name>                              other data of the runner (both in `keyed.changelog.model`)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, ClassVar

import attrs

from keyed.base.arguments import Duration, milliseconds_of
from keyed.base.private_files import folder_path
from keyed.changelog.directory.compaction import BackgroundCompaction
from keyed.changelog.directory.disk import (
    file_sizes,
    is_staged,
    make_folder,
    publish,
    publish_staged,
    read_file,
    remove,
    remove_leftovers,
    stage,
    unstage,
)
from keyed.changelog.directory.group_folder import AnyGroupFiles, GroupFolder, Listing
from keyed.changelog.directory.segment_file import Segment
from keyed.changelog.directory.stored_changelog import HOUR_MS, StoredChangelog, StoredWriter, check_history
from keyed.changelog.model import Blocks, Commit, LogHeader, why_not_next
from keyed.errors import ChangelogError, HistoryCompacted

_NEWEST = 2**63 - 1


class DirectoryReader:
    """The `keyed.changelog.model.ChangelogReader` of a key group.

    Args:
        folder: The group's folder.
    """

    def __init__(self, folder: AnyGroupFiles) -> None:
        self._folder = folder
        #: The newest commit at the last read, and its file: while that exists and the next one does not, nothing is
        #: new.
        self._last: tuple[Commit, PurePath] | None = None

    def last(self) -> Commit | None:
        if self._last is not None:
            commit, path = self._last
            if self._folder.exists(path) and not self._folder.exists(self._folder.segment(commit.sequence + 1)):
                return commit
        listing, last = self._folder.look()
        self._last = None if last is None else (last, self._folder.path_of(listing, last.sequence))
        return last

    def commits(self, after: int = 0, until: int | None = None) -> Iterator[tuple[Commit, Blocks]]:
        end = _NEWEST if until is None else until
        listing = self._listing(after, end)
        self._check_history(listing, after, end)
        position = after
        while True:
            try:
                for stored, _, _ in self._folder.commits(listing, position, end):
                    yield stored.commit, stored.blocks()
                    position = stored.commit.sequence
                return
            except FileNotFoundError as error:
                # Compaction has removed it. Commits that were not read yet are in the base, where only reading from the
                # start can begin.
                again = self._folder.listing()
                if again == listing:
                    raise ChangelogError(f"{error.filename} is listed, but cannot be opened") from error
                listing = again
                self._check_history(listing, position, end)

    def _listing(self, after: int, until: int) -> Listing:
        """Return a listing for reading the commits after a sequence, up to another one."""
        return self._folder.listing()

    def _check_history(self, listing: Listing, after: int, until: int) -> None:
        base = listing.base
        if 0 < after < base or until < base:
            raise HistoryCompacted(
                f"{self._folder.path}: the history before commit {base} was compacted, and after={after}, "
                f"until={until} needs it; begin with 0 or at {base}, and give the changelog a longer compaction_lag"
            )


class DirectoryWriter(StoredWriter):
    """A `StoredWriter` to a folder, which stages commits.

    Args:
        folder: The group's folder; created if missing.
        compaction: Compacts the log as it grows; ``None`` for no compaction.

    Raises:
        CorruptionError: The newest commit is damaged, and not merely torn.
        ChangelogError: The folder cannot be used.
    """

    def __init__(self, folder: GroupFolder, compaction: BackgroundCompaction | None) -> None:
        self._staged: Segment | None = None
        make_folder(folder.path)
        super().__init__(folder, compaction)
        remove_leftovers(folder.path, self._listing.temporary)

    def last(self) -> Commit | None:
        self._take_published()
        last, files = self._last, self._files
        if last is None or files.exists(files.segment(last.sequence + 1)) or not self._is_there(last.sequence):
            # Another writer has continued, as when the group was moved to another worker and back.
            self._look()
        return self._last

    def stage(self, commit: Commit, blocks: Blocks) -> bool:
        commit = attrs.evolve(commit, log_id=self._files.log_id, group=self._files.group)
        self._unstage()
        if self._last is None or why_not_next(commit, self._last) is not None or commit.sequence in self._torn:
            return False
        segment = Segment(commit, blocks)
        stage(self._files.segment(commit.sequence), commit.attempt, segment)
        self._staged = segment
        return True

    def close(self) -> None:
        self._unstage()
        super().close()

    def _publish(self, path: Any, segment: Segment) -> Segment | None:
        """Publish the staged segment of the same attempt instead, if it is there."""
        staged, attempt = self._staged, segment.commit.attempt
        if staged is not None and staged.commit.attempt == attempt and publish_staged(path, attempt):
            published: Segment | None = staged
        else:
            published = segment if publish(path, segment) else None
        self._unstage()
        return published

    def _take_published(self) -> None:
        """Record the staged commit, if it was published."""
        segment = self._staged
        if segment is None:
            return
        sequence = segment.commit.sequence
        path = self._files.segment(sequence)
        with suppress(FileNotFoundError), self._files.opened(path, sequence) as (published, _):
            if is_staged(path, segment.commit.attempt):
                # Its publisher may not have made it durable yet, or may never do so.
                self._files.sync()
            self._unstage()
            if published is not None and published.attempt == segment.commit.attempt:
                self._advance(segment.commit, path)
                if self._compaction is not None:
                    self._compaction.grown(segment.bytes)

    def _unstage(self) -> None:
        segment, self._staged = self._staged, None
        if segment is not None:
            unstage(self._files.segment(segment.commit.sequence), segment.commit.attempt)


_FOLDERS = ("groups", "positions", "kept")
#: File systems create it in their root folder.
_NEW = frozenset({"header", "lost+found"})
_KNOWN = (
    (re.compile(r"keyed-commits-\d+"), "the checkpoint of a query in the local runtime"),
    (re.compile(r"offsets|commits"), "the checkpoint of a query on Spark"),
    (re.compile(r"_keyed-query"), "the output of a query"),
)


def _absolute(path: str | os.PathLike[str]) -> str:
    return os.path.abspath(folder_path(path, "DirectoryChangelog(path)"))  # noqa: PTH100 - links are kept


def _lag(value: Duration) -> int:
    return milliseconds_of(value, "DirectoryChangelog(compaction_lag)")


def _interval(value: Duration) -> int:
    return milliseconds_of(value, "DirectoryChangelog(export_interval)")


def _history(value: int | None) -> int | None:
    return check_history(value, "DirectoryChangelog(history_bytes")


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
    for pattern, entry in _KNOWN:
        if any(map(pattern.fullmatch, names)):
            return entry
    return repr(names[0]) + (f" and {len(names) - 1} more" if names[1:] else "")


@attrs.frozen
class DirectoryChangelog(StoredChangelog):
    """A changelog as files in a folder, on a local disk or on one that all machines of the job share.

    Commits are files, and old ones are folded into one with the whole state. Methods raise `ChangelogError` if the
    storage fails, and `CorruptionError` for damaged data.

    Args:
        path: The folder of one operator, new or empty, which all machines reach by the same path, on a file system
            with hard links.
        compaction_lag: Commits younger than this are kept, for past states and readers that resume: `int`
            milliseconds or `timedelta` of processing time (Kafka's ``min.compaction.lag.ms``).
        history_bytes: If the commits of a key group have more bytes, compaction keeps only the newest half as many,
            whatever their age.
        auto_compact: Writers compact as the log grows, in a background thread. If false, run `compact`.
        export_interval: Commits of a key group are exported together when the oldest is as old: `int` milliseconds or
            `timedelta` of processing time; at most 64. Readers lag by as much.
        group_access: A new folder can be read by its group; otherwise only by the user.

    Raises:
        DefinitionError: A parameter breaks its rule.
    """

    _place: ClassVar[str] = "folder"

    path: str = attrs.field(converter=_absolute)
    compaction_lag: int = attrs.field(default=HOUR_MS, converter=_lag, kw_only=True)
    history_bytes: int | None = attrs.field(default=None, converter=_history, kw_only=True)
    auto_compact: bool = attrs.field(default=True, kw_only=True)
    export_interval: int = attrs.field(default=0, converter=_interval, kw_only=True, eq=False)
    group_access: bool = attrs.field(default=False, kw_only=True)

    def __str__(self) -> str:
        return f"changelog {self.path}"

    def writer(self, group: int) -> DirectoryWriter:
        """See `Changelog.writer`."""
        folder = self._group(group)
        return DirectoryWriter(folder, BackgroundCompaction(folder, self._limits) if self.auto_compact else None)

    def publish(self, group: int, sequence: int, attempt: str) -> bool:
        """Publish the commit of a key group that an attempt has staged.

        Returns:
            True if it is published. If not, it will be appended.

        Raises:
            ChangelogError: It is not on this machine, or cannot be written.
        """
        return publish_staged(self._group(group).segment(sequence), attempt)

    def reader(self, group: int) -> DirectoryReader:
        """See `Changelog.reader`."""
        return DirectoryReader(self._group(group))

    @property
    def _root(self) -> str:
        return self.path

    def _get(self, name: str) -> bytes | None:
        return read_file(Path(self.path, name))

    def _put(self, name: str, record: bytes) -> bool:
        return publish(Path(self.path, name), [record])

    def _names(self, folder: str, after: str | None = None) -> Iterable[str]:
        return file_sizes(Path(self.path, folder))

    def _remove(self, names: Iterable[str]) -> None:
        remove(Path(self.path, name) for name in names)

    def _create(self, record: bytes) -> None:
        root = Path(self.path)
        other = _other_content(root)
        # Another driver may have created it in the meantime.
        if other is not None and self.header() is None:
            raise ChangelogError(
                f"{self.path} holds {other}, so it is not a new folder for a changelog, and nothing was written to it; "
                "give DirectoryChangelog a new or empty folder of its own"
            )
        make_folder(root, group=self.group_access)
        self._put("header", record)

    def _complete(self, record: bytes, *, is_new: bool) -> None:
        for name in _FOLDERS:
            make_folder(Path(self.path, name), group=self.group_access)

    def _missing(self) -> str:
        return (
            f"there is no changelog in {self.path}, or it is not visible from this machine; if a job has written "
            "it on several machines, give a path that leads to the same folder on all of them"
        )

    def _files(self, header: LogHeader, group: int) -> GroupFolder:
        return GroupFolder(Path(self.path, "groups", f"{group:05d}"), header.log_id, group)
