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
may follow any commit. `keyed.changelog.directory.segment_file` has the content of both.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path, PurePath
from typing import Any, Generic, TypeVar

import attrs

from keyed.changelog.directory.disk import OpenFile, exists, file_sizes, locked, publish, remove, sync_folder
from keyed.changelog.directory.segment_file import ReadableFile, SegmentCommit, SegmentFile
from keyed.changelog.model import Commit
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
