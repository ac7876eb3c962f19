"""Writes the log of one key group to an object store."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import attrs

from keyed.base.background import Status
from keyed.changelog.directory.compaction import BackgroundCompaction
from keyed.changelog.directory.group_folder import Listing
from keyed.changelog.directory.segment_file import Segment
from keyed.changelog.model import Blocks, Commit, refusal_of
from keyed.changelog.objects.object_group import ObjectGroup
from keyed.errors import ChangelogDiverged

#: Seconds after a listing for which `last` makes no request, because it is called several times per batch. `append`
#: finds the commits of another writer.
_FRESH_SECONDS = 1.0


class ObjectWriter:
    """The `keyed.changelog.model.ChangelogWriter` of a key group.

    The first writer to put a sequence wins. Another writer that finds the same commit writes nothing; one that finds a
    different commit is refused.

    Args:
        group: The objects of the key group.
        compaction: Folds the log as it grows; ``None`` for no compaction.
        clock: Returns monotonic seconds.

    Raises:
        CorruptionError: The newest commit is damaged.
        ChangelogError: The store cannot be read.
    """

    def __init__(
        self,
        group: ObjectGroup,
        compaction: BackgroundCompaction | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group = group
        self._compaction = compaction
        self._clock = clock
        self._listing: Listing
        self._last: Commit | None
        self._looked: float
        self._look()
        if compaction is not None:
            compaction.begin(self._listing)

    def last(self) -> Commit | None:
        now = self._clock()
        if now - self._looked >= _FRESH_SECONDS:
            # Another writer may have continued, as when the group was moved to another worker and back.
            if self._last is None or self._group.exists(self._group.segment(self._last.sequence + 1)):
                self._look()
            self._looked = now
        return self._last

    def append(self, commit: Commit, blocks: Blocks) -> Commit:
        return self.append_all([(commit, blocks)])

    def append_all(self, commits: Sequence[tuple[Commit, Blocks]]) -> Commit:
        """See `keyed.changelog.model.GroupingWriter.append_all`."""
        group = self._group
        new = [(attrs.evolve(commit, log_id=group.log_id, group=group.group), blocks) for commit, blocks in commits]
        last = new[-1][0]
        if refusal_of(new, self._last) is not None:
            # Another writer may have continued in the meantime.
            self._look()
            while new and self._last is not None and new[0][0].sequence <= self._last.sequence:
                existing = group.existing(self._listing, new.pop(0)[0], self._last)
            if not new:
                return existing
            if (reason := refusal_of(new, self._last)) is not None:
                raise ChangelogDiverged(
                    f"{group.path}: {reason}; give changelog= an empty prefix, which starts with a snapshot"
                )
        (first, blocks), *others = new
        path = group.segment(first.sequence)
        segment = Segment(first, blocks, others)
        published = group.publish(path, segment)
        if published and self._compaction is not None:
            self._compaction.grown(segment.bytes)
        if published and self._last is not None and self._is_there(self._last.sequence):
            self._last, self._path, self._looked = segment.commit, path, self._clock()
            return segment.commit
        # Another writer was faster; or it is so far ahead that this sequence was compacted, which freed its name; or
        # this is the first commit, without a predecessor to compare; or the answer to the put was lost.
        self._look()
        return group.existing(self._listing, last, self._last)

    @property
    def status(self) -> Status:
        """The status of background compaction: starting before the first one; closed without compaction."""
        return Status.CLOSED if self._compaction is None else self._compaction.work.status

    def __repr__(self) -> str:
        return f"<ObjectWriter of {self._group.path}, compaction {self.status.value}>"

    def close(self) -> None:
        if self._compaction is not None:
            self._compaction.close()

    def _look(self) -> None:
        """Read the listing of the store."""
        self._listing, self._last = self._group.look()
        self._path = self._group.path_of(self._listing, 0 if self._last is None else self._last.sequence)
        self._looked = self._clock()

    def _is_there(self, sequence: int) -> bool:
        """Return true if the newest commit, or the base that replaced it, still exists."""
        return self._group.exists(self._path) or self._group.exists(self._group.base(sequence))
