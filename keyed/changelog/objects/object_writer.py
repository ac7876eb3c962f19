"""Writes the log of one key group to an object store."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from keyed.changelog.directory.compaction import BackgroundCompaction
from keyed.changelog.directory.stored_writer import StoredWriter
from keyed.changelog.model import Commit
from keyed.changelog.objects.object_group import ObjectGroup

#: Seconds after a listing for which `last` makes no request, because it is called several times per batch. `append`
#: finds the commits of another writer.
_FRESH_SECONDS = 1.0


class ObjectWriter(StoredWriter):
    """A `StoredWriter` to an object store, which looks for the commits of other writers once a second.

    Args:
        group: The objects of the key group.
        compaction: Folds the log as it grows; ``None`` for no compaction.
        clock: Returns monotonic seconds.

    Raises:
        CorruptionError: The newest commit is damaged.
        ChangelogError: The store cannot be read.
    """

    def __init__(
        self, group: ObjectGroup, compaction: BackgroundCompaction | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._looked: float
        super().__init__(group, compaction)

    def last(self) -> Commit | None:
        now = self._clock()
        if now - self._looked >= _FRESH_SECONDS:
            # Another writer may have continued, as when the group was moved to another worker and back.
            if self._last is None or self._files.exists(self._files.segment(self._last.sequence + 1)):
                self._look()
            self._looked = now
        return self._last

    def _advance(self, commit: Commit, path: Any) -> None:
        super()._advance(commit, path)
        self._looked = self._clock()

    def _look(self) -> None:
        super()._look()
        self._looked = self._clock()
