"""The changelog writers of a Python worker process.

A worker keeps the writer of every key group that it has served: opening one reads the end of the log and, in Kafka,
takes a transactional id. If another worker has served the group since then, according to the group's own log, the
writer is opened again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache

import attrs

from keyed.changelog.model import Blocks, Changelog, ChangelogWriter, Commit, append_all
from keyed.engine.meta import GroupMeta

#: Seconds after which an unused writer is closed: another worker serves its group, or its query has ended.
_IDLE_SECONDS = 900.0


@attrs.define(eq=False)
class _CacheEntry:
    writer: ChangelogWriter
    used: float


class WriterCache:
    """The writers that this process holds, by identity of the changelog and key group."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], _CacheEntry] = {}

    def writer(self, changelog: Changelog, log_id: str, group: int, meta: GroupMeta | None) -> ChangelogWriter:
        """Return the writer of a key group, with the end of the group's changelog read.

        Args:
            changelog: The changelog.
            log_id: Its identity.
            group: Index of the group.
            meta: The group's meta record, ``None`` before its first commit.

        Raises:
            ChangelogError: It cannot be opened.
        """
        self._drop_idle()
        held = self._held.get((log_id, group))
        if held is not None:
            held.used = time.monotonic()
            if _is_level(held.writer.last(), meta):
                return held.writer
            self.discard(log_id, group)
        writer = changelog.writer(group)
        self._held[log_id, group] = _CacheEntry(writer, time.monotonic())
        return writer

    def discard(self, log_id: str, group: int) -> None:
        """Close the writer of a key group, if there is one."""
        held = self._held.pop((log_id, group), None)
        if held is not None:
            held.writer.close()

    def _drop_idle(self) -> None:
        limit = time.monotonic() - _IDLE_SECONDS
        for log_id, group in [key for key, held in self._held.items() if held.used < limit]:
            self.discard(log_id, group)


class LateWriter:
    """A `ChangelogWriter` that is opened when it is first used.

    Args:
        opened: Returns the writer.
    """

    def __init__(self, opened: Callable[[], ChangelogWriter]) -> None:
        self._opened = cache(opened)

    def last(self) -> Commit | None:
        """See `ChangelogWriter.last`."""
        return self._opened().last()

    def append(self, commit: Commit, blocks: Blocks) -> Commit:
        """See `ChangelogWriter.append`."""
        return self._opened().append(commit, blocks)

    def append_all(self, commits: Sequence[tuple[Commit, Blocks]]) -> Commit:
        """See `GroupingWriter.append_all`."""
        return append_all(self._opened(), commits)

    def close(self) -> None:
        """Do nothing: the writer belongs to the cache."""


def _is_level(last: Commit | None, meta: GroupMeta | None) -> bool:
    """Return true if a changelog that ends with ``last`` has all commits of a key group, or all except the waiting."""
    if last is None or meta is None:
        return last is None and meta is None
    return (last.sequence, last.attempt) == (meta.commit, meta.attempt) or meta.follows(last.sequence, last.attempt)
