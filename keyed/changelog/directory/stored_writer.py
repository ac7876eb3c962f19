"""The writer of one key group's log, independent of the storage of its files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from keyed.base.background import Status
from keyed.changelog.directory.compaction import BackgroundCompaction
from keyed.changelog.directory.group_folder import AnyGroupFiles, Listing
from keyed.changelog.directory.segment_file import Segment
from keyed.changelog.model import Blocks, Commit, refusal_of
from keyed.errors import ChangelogDiverged


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
