"""The changelog writers of a Python worker process.

A worker keeps the writer of every key group that it has served: opening one reads the end of the log and, in Kafka,
takes a transactional id. If another worker has served the group meanwhile, according to the group's own log, the writer
is opened again.
"""

from __future__ import annotations

import time

import attrs

from keyed.changelog.model import Changelog, ChangelogWriter, Commit
from keyed.engine.meta import GroupMeta

#: A writer that was not used for so long is closed: its group is served elsewhere, or its query has ended.
_IDLE_SECONDS = 900.0


@attrs.define(eq=False)
class _Held:
    writer: ChangelogWriter
    used: float


class WriterCache:
    """The writers that this process holds, by identity of the changelog and key group."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], _Held] = {}

    def writer(self, changelog: Changelog, log_id: str, group: int, meta: GroupMeta | None) -> ChangelogWriter:
        """Return the writer of a key group, which knows the end of the group's changelog.

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
        self._held[log_id, group] = _Held(writer, time.monotonic())
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


def _is_level(last: Commit | None, meta: GroupMeta | None) -> bool:
    """Return whether a changelog that ends with ``last`` has all but the last commit of a key group, or all of them."""
    if last is None or meta is None:
        return last is None and meta is None
    return (last.sequence, last.attempt) == (meta.commit, meta.attempt) or meta.follows(last.sequence, last.attempt)
