"""Writes the log of one key group to its folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import attrs

from keyed.base.background import Status
from keyed.changelog.directory.compaction import BackgroundCompaction
from keyed.changelog.directory.disk import (
    exists,
    is_staged,
    make_folder,
    publish,
    publish_staged,
    remove_leftovers,
    stage,
    sync_folder,
    unstage,
)
from keyed.changelog.directory.group_folder import GroupFolder, Listing
from keyed.changelog.directory.segment_file import Segment
from keyed.changelog.model import Blocks, Commit, refusal_of, why_not_next
from keyed.errors import ChangelogDiverged


class DirectoryWriter:
    """The `keyed.changelog.model.ChangelogWriter` of a key group.

    Writers are independent of each other. The first one to publish a sequence wins. Another writer that finds the same
    commit writes nothing; one that finds a different commit raises.

    Args:
        folder: The group's folder; created if missing.
        compaction: Compacts the log as it grows; ``None`` for no compaction.

    Raises:
        CorruptionError: The newest commit is damaged, and not merely torn.
        ChangelogError: The folder cannot be used.
    """

    def __init__(self, folder: GroupFolder, compaction: BackgroundCompaction | None) -> None:
        self._folder = folder
        self._compaction = compaction
        self._listing: Listing
        self._last: Commit | None
        #: Number of torn segments per sequence after the newest whole one.
        self._torn: dict[int, int]
        self._staged: Segment | None = None
        make_folder(folder.path)
        self._look()
        remove_leftovers(folder.path, self._listing.temporary)
        if compaction is not None:
            compaction.begin(self._listing)

    def last(self) -> Commit | None:
        self._take_published()
        last = self._last
        if last is None or exists(self._folder.segment(last.sequence + 1)) or not self._is_there(last.sequence):
            # Another writer has continued, as when the group was moved to another worker and back.
            self._look()
        return self._last

    def append(self, commit: Commit, blocks: Blocks) -> Commit:
        return self.append_all([(commit, blocks)])

    def append_all(self, commits: Sequence[tuple[Commit, Blocks]]) -> Commit:
        """See `keyed.changelog.model.GroupingWriter.append_all`."""
        folder = self._folder
        new = [(attrs.evolve(commit, log_id=folder.log_id, group=folder.group), blocks) for commit, blocks in commits]
        last = new[-1][0]
        if refusal_of(new, self._last) is not None:
            # Another writer may have continued in the meantime.
            self._look()
            while new and self._last is not None and new[0][0].sequence <= self._last.sequence:
                existing = self._folder.existing(self._listing, new.pop(0)[0], self._last)
            if not new:
                return existing
            if (reason := refusal_of(new, self._last)) is not None:
                raise ChangelogDiverged(
                    f"{folder.path}: {reason}; give changelog= an empty folder, which starts with a snapshot"
                )
        (first, blocks), *others = new
        path = folder.segment(first.sequence, self._torn.get(first.sequence, -1) + 1)
        segment = self._staged
        published = segment is not None and segment.commit.attempt == last.attempt and not others
        if segment is None or not published or not publish_staged(path, last.attempt):
            segment = Segment(first, blocks, others)
            published = publish(path, segment)
        self._unstage()
        if published and self._compaction is not None:
            self._compaction.grown(segment.bytes)
        if published and self._last is not None and self._is_there(self._last.sequence):
            self._last, self._path = segment.commit, path
            return segment.commit
        # Another writer was faster; or it is so far ahead that this sequence was compacted, which freed its name; or
        # this is the first commit, without a predecessor to compare.
        self._look()
        return self._folder.existing(self._listing, last, self._last)

    def stage(self, commit: Commit, blocks: Blocks) -> bool:
        commit = attrs.evolve(commit, log_id=self._folder.log_id, group=self._folder.group)
        self._unstage()
        if self._last is None or why_not_next(commit, self._last) is not None or commit.sequence in self._torn:
            return False
        segment = Segment(commit, blocks)
        stage(self._folder.segment(commit.sequence), commit.attempt, segment)
        self._staged = segment
        return True

    @property
    def status(self) -> Status:
        """The status of background compaction: starting before the first one; closed without compaction."""
        return Status.CLOSED if self._compaction is None else self._compaction.work.status

    def __repr__(self) -> str:
        text = f"<DirectoryWriter of {self._folder.path}, compaction {self.status.value}"
        work = self._compaction and self._compaction.work
        has_failed = work and work.last_error
        return f"{text}, {work.failures} failures: {work.last_error_text}>" if work and has_failed else f"{text}>"

    def close(self) -> None:
        self._unstage()
        if self._compaction is not None:
            self._compaction.close()

    def _take_published(self) -> None:
        """Record the staged commit, if it was published."""
        segment = self._staged
        if segment is None:
            return
        sequence = segment.commit.sequence
        path = self._folder.segment(sequence)
        with suppress(FileNotFoundError), self._folder.opened(path, sequence) as (published, _):
            if is_staged(path, segment.commit.attempt):
                # Its publisher may not have made it durable yet, or may never do so.
                sync_folder(self._folder.path)
            self._unstage()
            if published is not None and published.attempt == segment.commit.attempt:
                self._last, self._path = segment.commit, path
                if self._compaction is not None:
                    self._compaction.grown(segment.bytes)

    def _unstage(self) -> None:
        segment, self._staged = self._staged, None
        if segment is not None:
            unstage(self._folder.segment(segment.commit.sequence), segment.commit.attempt)

    def _look(self) -> None:
        """Read the folder."""
        self._listing, self._last = self._folder.look()
        # The publisher of the newest commit may have died before it was durable, and further commits depend on it.
        sync_folder(self._folder.path)
        newest = 0 if self._last is None else self._last.sequence
        segments = self._listing.segments
        self._torn = {sequence: again for sequence, (again, _) in segments.items() if sequence > newest}
        self._path = self._folder.path_of(self._listing, newest)

    def _is_there(self, sequence: int) -> bool:
        """Return true if the newest commit, or the base that replaced it, still exists."""
        return exists(self._path) or exists(self._folder.base(sequence))
