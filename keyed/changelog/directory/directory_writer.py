"""Writes the log of one key group to its folder."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import attrs

from keyed.changelog.directory.compaction import BackgroundCompaction
from keyed.changelog.directory.disk import (
    is_staged,
    make_folder,
    publish,
    publish_staged,
    remove_leftovers,
    stage,
    unstage,
)
from keyed.changelog.directory.group_folder import GroupFolder
from keyed.changelog.directory.segment_file import Segment
from keyed.changelog.directory.stored_writer import StoredWriter
from keyed.changelog.model import Blocks, Commit, why_not_next


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
