"""A store of versions kept level with a changelog, at the newest batch that all key groups have."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from heapq import merge
from typing import Any

from keyed.changelog.model import Blocks, Changelog, Commit, LogHeader
from keyed.content.blocks import Change
from keyed.content.table_entries import TableEntries, entries_of, tables_of
from keyed.errors import HistoryCompacted, StateAccessError
from keyed.recovery.cut import newest_sequence
from keyed.views.version_store import VersionedBatch, VersionReader, VersionStore

_log = logging.getLogger(__name__)
#: Changes that are written at a time.
_CHANGES = 20_000


class Held:
    """The store in use, and how many snapshots hold which commits of it and of those before it."""

    def __init__(self, store: VersionStore) -> None:
        self.store = store
        self._is_closed = False
        self._counts: Counter[tuple[VersionStore, int]] = Counter()
        self._lock = threading.Lock()

    def take(self, store: VersionStore, commit: int) -> None:
        """Keep a store open, and what a commit left in it.

        Raises:
            StateAccessError: All stores were closed.
        """
        with self._lock:
            if self._is_closed:
                raise StateAccessError("the tables are closed; ask within their with block, or open them again")
            self._counts[store, commit] += 1

    def give_back(self, store: VersionStore, commit: int) -> None:
        """Undo a `take`."""
        with self._lock:
            self._counts[store, commit] -= 1
            self._counts += Counter()
            unused = store is not self.store and not any(held is store for held, _ in self._counts)
        if unused:
            store.close(delete=True)

    def is_held(self) -> bool:
        """Whether a snapshot holds the store in use."""
        return any(held is self.store for held, _ in self._counts)

    def least(self, default: int) -> int:
        """The oldest commit of the store in use that a snapshot holds."""
        with self._lock:
            return min((commit for held, commit in self._counts if held is self.store), default=default)

    def replace(self, new: VersionStore) -> None:
        """Use another store from now on."""
        with self._lock:
            old, self.store = self.store, new
            unused = not any(held is old for held, _ in self._counts)
        if unused:
            old.close(delete=True)

    def close(self) -> None:
        """Close all stores."""
        with self._lock:
            self._is_closed = True
            for store in {self.store, *(held for held, _ in self._counts)}:
                store.close(delete=store is not self.store)


class Follower:
    """Follows the changelog of one operator.

    What is shown is whole: one batch of all key groups, as they committed it. The store goes on from where it stands;
    it is built anew, and the log says so, if it followed another changelog, or was away for longer than that goes back.

    Args:
        changelog: The changelog. It need not be written yet.
        path: Folder of the store.
        history_ms: How far back, in processing time from the newest batch, past states can be asked for.

    Attributes:
        held: The store, and what snapshots hold of it.
        rebuilds: How often the store was built anew since it was opened.
    """

    def __init__(self, changelog: Changelog, path: str | os.PathLike[str], history_ms: int) -> None:
        self.changelog = changelog
        self.held = Held(VersionStore(path))
        self.rebuilds = 0
        self._history_ms = history_ms
        self._lock = threading.Lock()
        self._states: dict[str, Any] = {}
        self._tables: dict[int, TableEntries] = {}

    def poll(self) -> int:
        """Apply what the changelog has and the store lacks.

        Returns:
            How many records that were.

        Raises:
            ChangelogError: The changelog cannot be read, or is damaged.
            LocalStoreError: The store cannot be written.
        """
        with self._lock:
            header = self.changelog.header()
            newest = newest_sequence(self.changelog, header) if header is not None else None
            if header is None or newest is None:
                return 0
            extent = self._store.extent
            if extent is not None and extent.log_id == header.log_id and extent.newest <= newest:
                try:
                    return self._follow(header, extent.newest, newest)
                except HistoryCompacted:
                    reason = f"the changelog no longer has what came after batch {extent.newest}"
            elif extent is not None:
                reason = f"it followed the changelog {extent.log_id} to batch {extent.newest}"
            if extent is not None:
                _log.warning(
                    "the tables of operator %s in %s are built anew: %s", header.operator, self._store.path, reason
                )
                self.rebuilds += 1
            if not self._store.is_empty():
                self.held.replace(self._store.successor())
            return self._follow(header, 0, newest)

    def close(self) -> None:
        """Let go of the folder. Closing again does nothing."""
        with self._lock:
            self.held.close()

    @property
    def _store(self) -> VersionStore:
        return self.held.store

    def _follow(self, header: LogHeader, after: int, until: int) -> int:
        """Apply the commits after one up to another; as many records as they have."""
        readers = [self.changelog.reader(group) for group in range(header.parallelism)]
        commits = merge(*(reader.commits(after, until) for reader in readers), key=lambda found: found[0].sequence)
        markers: list[Commit | None] = [None] * header.parallelism
        waiting: list[Change] = []
        records = 0
        for commit, blocks in commits:
            if after and commit.snapshot and commit.sequence > after:
                raise HistoryCompacted(f"commit {commit.sequence} of key group {commit.group} is a snapshot")
            records += commit.records
            for changes in self._changes(commit, blocks):
                if len(waiting) >= _CHANGES:
                    self._store.write(commit.sequence, waiting)
                    waiting = []
                waiting += changes
            markers[commit.group] = commit
            level = [marker for marker in markers if marker is not None and marker.sequence == commit.sequence]
            if len(level) == header.parallelism:
                batch = _batch(level)
                self._store.apply(header.log_id, batch, waiting, self._oldest(batch))
                waiting = []
            elif waiting and after == 0:
                # Compaction has left key groups at different batches: what comes before the newest of them is no
                # state, and is not shown.
                self._store.write(commit.sequence, waiting)
                waiting = []
        return records

    def _changes(self, commit: Commit, blocks: Blocks) -> Iterator[list[Change]]:
        """The changes of a commit; rows of tables as entries."""
        where = f"commit {commit.sequence} of key group {commit.group} of a changelog"
        if commit.states != self._states:
            self._states, self._tables = commit.states, tables_of(commit.states, where)
        return (entries_of(block, self._tables, where) for block in blocks)

    def _oldest(self, newest: VersionedBatch) -> int:
        """The oldest commit that is kept when ``newest`` is the newest."""
        extent = self._store.extent
        if extent is None:
            return newest.commit
        oldest, limit = extent.oldest, newest.processing_time - self._history_ms
        last = self.held.least(extent.newest)
        while oldest < last and self._store.batch(oldest + 1).processing_time <= limit:
            oldest += 1
        return oldest


class FolderReader:
    """The store that another program keeps level, read.

    Args:
        path: Folder of the store.

    Attributes:
        held: The store, and what snapshots hold of it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self.held = Held(self._open())
        self._lock = threading.Lock()

    def _open(self) -> VersionReader:
        return VersionReader(self._path, tempfile.mkdtemp(prefix="keyed-reader-"))

    def poll(self) -> int:
        """Take in what was written since. Gives 0: applying is the other program's."""
        with self._lock:
            store = self.held.store
            assert isinstance(store, VersionReader)
            # A store that snapshots hold stays as it is: what they read may be removed later.
            if self.held.is_held() or not store.refresh():
                self.held.replace(self._open())
        return 0

    def close(self) -> None:
        """Let go of the folder. Closing again does nothing."""
        self.held.close()


def _batch(markers: list[Commit]) -> VersionedBatch:
    """What the markers of all key groups say of their batch."""
    return VersionedBatch(
        commit=markers[0].sequence,
        watermark=min(marker.watermark for marker in markers),
        processing_time=max(marker.processing_time for marker in markers),
        hashes=tuple(marker.hash for marker in markers),
        entries=sum(marker.entries for marker in markers),
        ended=all(marker.ended for marker in markers),
        states=markers[0].states,
    )
