"""A versioned store that follows a changelog, at the newest batch that all key groups have committed."""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from heapq import merge
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import attrs

from keyed.base.background import WorkEnded
from keyed.base.closing import closing_on_error
from keyed.changelog.commit_fold import FoldedCommit, difference, fold_groups
from keyed.changelog.model import Changelog, ChangelogReader, Commit, IdentifiedReader, LogHeader, batch_id
from keyed.content.addresses import broadcast_prefixes
from keyed.content.blocks import Change
from keyed.content.contents import LiveHash
from keyed.content.delta import deltas
from keyed.content.table_entries import TableEntries, entries_of, tables_of
from keyed.errors import (
    ChangelogDiverged,
    ChangelogError,
    CorruptionError,
    DefinitionError,
    HistoryCompacted,
    LocalStoreError,
    OperatorChanged,
    StateAccessError,
)
from keyed.recovery.cut import ancestors_of, newest_sequence, origin_of
from keyed.stores.database import is_interrupted, is_locked, is_refused
from keyed.stores.version_store import Extent, Part, VersionedBatch, VersionReader, VersionStore, is_store

_log = logging.getLogger(__name__)
#: Number of changes per write, from one commit or, while the store catches up, from several; and the weight of a
#: commit.
_CHANGES, _OF_COMMIT = 20_000, 20
#: Prefix of the folder of a state that is merged into the existing one.
_JOINED = "keyed-joined-"
_Entry = tuple[bytes, bytes, bytes]


class PinnedStore:
    """The store in use, and the commits of it and of earlier stores that snapshots have pinned.

    Attributes:
        store: The store.
        damage: Damage that a reader has found; empty without any.
        check: Raises the error that ended following, if there is one.
        is_stopping: Returns true if following has to end.
    """

    def __init__(self, store: VersionStore) -> None:
        self.store = store
        self.damage = ""
        self.check: Callable[[], object] = lambda: None
        self.is_stopping: Callable[[], bool] = lambda: False
        self._is_closed = False
        # The oldest commit of the store in use that may be pinned: older ones may be removed.
        self._floor = 0
        self._counts: dict[tuple[VersionStore, int], int] = {}
        self._lock = threading.Lock()

    def check_open(self) -> None:
        """Raise an error if the tables were closed, perhaps by another thread, or following has ended.

        Raises:
            StateAccessError: All stores were closed.
            Exception: The error that ended following.
        """
        self.check()
        if self._is_closed:
            raise StateAccessError("the tables are closed; use them within their with block, or open them again")

    def pin(self, store: VersionStore, commit: int) -> None:
        """Keep a store open, and its state as of a commit.

        Raises:
            StateAccessError: All stores were closed.
            HistoryCompacted: The state as of the commit may be removed already.
            LocalStoreError: Another store is in use.
        """
        with self._lock:
            self.check_open()
            if store is not self.store and not any(pinned is store for pinned, _ in self._counts):
                raise LocalStoreError(f"{store.path} was rebuilt; repeat the query")
            if store is self.store and commit < self._floor:
                raise HistoryCompacted(f"commit {commit} is older than the history that is kept")
            self._counts[store, commit] = self._counts.get((store, commit), 0) + 1

    def pin_history(self, store: VersionStore) -> int | None:
        """Keep all commits of a store that can be read now.

        Returns:
            The oldest one, for `unpin`; ``None`` if there is no commit, or the store removes older ones just now.
        """
        with self._lock:
            extent = store.extent
            if extent is None or (store is self.store and extent.oldest < self._floor):
                return None
            self._counts[store, extent.oldest] = self._counts.get((store, extent.oldest), 0) + 1
            return extent.oldest

    def unpin(self, store: VersionStore, commit: int) -> None:
        """Undo a `pin` or `pin_history`."""
        with self._lock:
            left = self._counts.pop((store, commit)) - 1
            if left:
                self._counts[store, commit] = left
            unused = store is not self.store and not any(pinned is store for pinned, _ in self._counts)
        if unused:
            store.close(delete=True)

    def refresh(self) -> bool:
        """Refresh a store that another program writes. Returns false while a snapshot has pinned it."""
        with self._lock:
            store = self.store
            assert isinstance(store, VersionReader)
            # The refreshed store may lack the state that a snapshot reads.
            return not any(pinned is store for pinned, _ in self._counts) and store.refresh()

    def retain_from(self, oldest: int) -> int:
        """Retain the state as of commits from this one on, or from the oldest that a snapshot has pinned.

        Returns:
            The oldest commit that is kept. Older ones cannot be pinned any more.
        """
        with self._lock:
            pinned = (commit for store, commit in self._counts if store is self.store)
            self._floor = max(self._floor, min(oldest, min(pinned, default=oldest)))
            return self._floor

    def report(self, store: VersionStore, error: LocalStoreError) -> None:
        """Record an error that a reader of a store got: a damaged store is rebuilt."""
        self.check_open()
        with self._lock:
            if store is self.store and not is_transient(error):
                self.damage = str(error)

    def replace(self, new: VersionStore) -> None:
        """Use another store from now on."""
        with self._lock:
            old, self.store, self.damage, self._floor = self.store, new, "", 0
            unused = not any(pinned is old for pinned, _ in self._counts)
        if unused:
            old.close(delete=True)

    def close(self) -> None:
        """Close all stores. Closing again does nothing."""
        with self._lock, ExitStack() as stack:
            self._is_closed = True
            for store in {self.store, *(pinned for pinned, _ in self._counts)}:
                stack.callback(store.close, delete=store is not self.store)


def is_transient(error: Exception) -> bool:
    """Return true if an error of a store may be transient, such as a full disk."""
    return is_refused(error) or is_locked(error) or is_interrupted(error)


@attrs.frozen
class Lag:
    """Lag of tables behind their changelogs. These are one batch behind the running job.

    Attributes:
        records: Records of the changelogs that are not applied, over all key groups.
        seconds: Processing time from the tables' batch to the newest one.
    """

    records: int
    seconds: float


class Follower:
    """Follows the changelog of one operator, and then those of the jobs that were restored from it.

    The store shows one committed batch of all key groups. It resumes from its position. If that is not possible, the
    differences from the changelog's state are applied, and a warning is logged. A damaged store is rebuilt. A changelog
    of another job or operator is refused.

    Args:
        operator: Name of the operator.
        changelog: The changelog. It need not be written yet.
        path: Folder of the store.
        history_ms: Processing time before the newest batch for which past states are kept.
        groups: The key groups to follow, in order; all if ``None``. Others are not read.

    Raises:
        DefinitionError: The folder has other key groups.
        LocalStoreError: It cannot be opened, or another program writes it.

    Attributes:
        pinned: The store, and the commits that snapshots hold.
        rebuilds: Number of rebuilds from the beginning of a changelog since the store was opened, because it could not
            resume.
        is_gone: True if the last poll did not find the changelog, or its commits, that an earlier one found.
    """

    def __init__(
        self,
        operator: str,
        changelog: Changelog,
        path: Path,
        history_ms: int,
        groups: tuple[int, ...] | None = None,
    ) -> None:
        self.operator = operator
        self.changelog = changelog
        self._groups = groups
        try:
            store = VersionStore(path)
        except LocalStoreError as error:
            if not is_locked(error):
                raise
            raise LocalStoreError(
                f"{path} is written by another program, or by open tables of this one; read it with "
                f"keyed.tables.read_tables({str(path.parent)!r}), or give another folder"
            ) from error
        with closing_on_error(store):
            _check_groups(store, groups)
            self._is_written = changelog.header() is not None
        self.pinned = PinnedStore(store)
        self.rebuilds = 0
        self.is_gone = False
        self._history_ms = history_ms
        self._lock = threading.Lock()
        self._states: dict[str, Any] = {}
        self._tables: dict[int, TableEntries] = {}
        self._log = _Log(changelog, groups)
        #: Separate readers for `lag`, which does not wait until commits are applied.
        self._lagging, self._lag_lock = _Log(changelog, groups), threading.Lock()
        self._reason = ""
        if store.damage:
            self._report_rebuild(store.damage)

    def poll(self) -> int:
        """Apply new commits of the changelog.

        Returns:
            The number of their records.

        Raises:
            ChangelogError: The changelog cannot be read, or is damaged.
            ChangelogDiverged: It is another changelog, and its job was not restored from the followed one.
            OperatorChanged: It belongs to another operator.
            DefinitionError: It has another number of key groups, and only some are followed.
            LocalStoreError: The store cannot be written, or its folder was deleted.
        """
        with self._lock:
            self.pinned.check_open()
            if not self._store.is_there():
                raise LocalStoreError(
                    f"{self._store.path} was deleted or replaced while these tables were open in it; close them and "
                    "open them again: they are rebuilt from the changelog"
                )
            with self._log.opened() as header:
                if header is None:
                    self._check_unwritten()
                    return 0
                return self._apply(header)

    def _check_unwritten(self) -> None:
        """Check that a changelog that is not there was not written before.

        Raises:
            ChangelogError: It was.
        """
        if not self._is_written:
            return
        self.is_gone = True
        extent = self._store.extent
        when = "before its first batch was applied" if extent is None else f"after batch {batch_id(extent.batch)}"
        raise ChangelogError(
            f"{self.changelog} of operator {self.operator!r} is gone: it was deleted or moved {when}, and the tables "
            "get no other batches; put it back, and they continue"
        )

    def _apply(self, header: LogHeader) -> int:
        """Apply the new commits of the changelog. Returns the number of their records."""
        if header.operator != self.operator:
            raise OperatorChanged(
                f"the changelog {self.changelog} belongs to operator {header.operator!r}, and the tables in "
                f"{self._store.path} to operator {self.operator!r}; give the changelog of {self.operator!r}, or "
                "another folder"
            )
        extent = self._store.extent
        if (
            self._groups is not None
            and header.parallelism != self._store.buckets
            and (extent is not None or self._groups[-1] >= header.parallelism)
        ):
            raise DefinitionError(
                f"the tables in {self._store.path} have key groups {shown_groups(self._groups)}"
                f"{f' of {self._store.buckets}' if extent is not None else ''}, and {self.changelog} has now "
                f"{header.parallelism} key groups; give another folder, with groups= of these"
            )
        known = extent.batch if extent is not None and extent.log_id == header.log_id else 0
        newest = newest_sequence(self._log.readers, known)
        if known and not newest:
            self._check_unwritten()
        self.is_gone = False
        if not newest or (newest == known and not self.pinned.damage):
            return 0
        self._is_written = True
        self._check_log(header)
        try:
            if self.pinned.damage:
                raise LocalStoreError(self.pinned.damage)
            if self._store.refuses:
                self._store.reopen()
            records = self._poll(header, newest)
        except LocalStoreError as error:
            if is_transient(error):
                raise
            self._report_rebuild(str(error))
        else:
            self._reason = ""
            return records
        # It replaces the current store once it has caught up; until then the current one is read.
        new = self._store.successor()
        try:
            new.buckets = header.parallelism
            records = self._follow(new, header, 0, newest)
        except BaseException:
            new.close(delete=True)
            raise
        self.pinned.replace(new)
        self._reason = ""
        return records

    @staticmethod
    def is_transient(error: Exception) -> bool:
        """Return true if an error of `poll` may be transient: the changelog cannot be reached, or the disk is full."""
        if isinstance(error, LocalStoreError):
            return is_transient(error)
        return isinstance(error, ChangelogError | OSError) and not isinstance(error, ChangelogDiverged)

    def lag(self) -> Lag:
        """Return the lag of the store behind the changelog.

        Raises:
            ChangelogError: The changelog cannot be read, or is damaged.
        """
        with self._lag_lock, self._lagging.opened() as header:
            if header is None:
                self._check_unwritten()
                return Lag(0, 0.0)
            extent = self._store.extent
            at = extent.batch if extent is not None and extent.log_id == header.log_id else 0
            lags = [_behind(reader, at) for reader in self._lagging.readers]
            behind = [each for each in lags if each is not None]
            if at and len(behind) < len(lags):
                self._check_unwritten()
        return Lag(
            sum(records for records, _ in behind), max((milliseconds for _, milliseconds in behind), default=0) / 1000
        )

    def close(self) -> None:
        """Release the folder and the changelog. Closing again does nothing."""
        with self._lock:
            self.pinned.close()
            self._log.close()
        with self._lag_lock:
            self._lagging.close()

    @property
    def _store(self) -> VersionStore:
        return self.pinned.store

    def _report_rebuild(self, reason: str) -> None:
        # If that fails, the next poll tries again, for the same reason.
        if reason != self._reason:
            self.rebuilds += 1
            _log.warning("the tables in %s are rebuilt: %s", self._store.path, reason)
        self._reason = reason

    def _check_log(self, header: LogHeader) -> None:
        """Check that a changelog is the followed one, or that of a job that was restored from it."""
        extent = self._store.extent
        if extent is None or extent.log_id == header.log_id:
            return
        followed = {era.log_id for era in extent.eras}
        if followed.isdisjoint([header.log_id, *ancestors_of(self.changelog)]):
            raise ChangelogDiverged(
                f"the tables in {self._store.path} follow the changelog {extent.log_id} of operator {self.operator!r}, "
                f"and {self.changelog} is now the changelog {header.log_id}, whose job was not restored from it; give "
                "the followed changelog, or another folder for the tables of the new one"
            )

    def _poll(self, header: LogHeader, newest: int) -> int:
        store = self._store
        store.undo()
        extent = store.extent
        if extent is None:
            store.buckets = header.parallelism
            return self._follow(store, header, 0, newest)
        if extent.log_id == header.log_id and extent.batch <= newest:
            try:
                return self._follow(store, header, extent.batch, newest)
            except HistoryCompacted:
                store.undo()
                why = f"the changelog no longer has the batches after batch {batch_id(extent.batch)}"
        else:
            why = f"it followed the changelog {extent.log_id} to batch {batch_id(extent.batch)}"
        return self._join(header, newest, why)

    def _join(self, header: LogHeader, newest: int, why: str) -> int:
        """Change the local state to the oldest state that the changelog still has, and continue from there."""
        store = self._store
        extent = store.extent
        assert extent is not None
        with tempfile.TemporaryDirectory(prefix=_JOINED, dir=store.path) as folder:
            joined = VersionStore(folder)
            try:
                joined.buckets = header.parallelism
                records = self._follow(joined, header, 0, newest, first=True)
                log_extent = joined.extent
                assert log_extent is not None
                log_id, cut = origin_of(self.changelog) or ("", 0)
                # The job was restored from a batch that the store has, and its first batch is the next one.
                follows = log_id == extent.log_id and log_extent.batch - 1 <= cut <= extent.batch
                if not follows:
                    self._report_rebuild(why)
                before, after = store.scan(b"", b"\xff", extent.newest), joined.scan(b"", b"\xff", log_extent.newest)
                changes = _differences(before, after)
                while len(waiting := list(islice(changes, _CHANGES))) == _CHANGES:
                    store.write(extent.newest + 1, [(None, waiting)])
                batch = attrs.evolve(joined.batch(log_extent.newest), commit=extent.newest + 1, follows=follows)
                store.apply([(batch, [(None, waiting)])], self._oldest(store, [batch]))
            finally:
                joined.close()
        return records + self._follow(store, header, batch.batch, newest)

    def _follow(self, store: VersionStore, header: LogHeader, after: int, until: int, *, first: bool = False) -> int:
        """Apply the commits after one up to another, or the first that all groups have. Returns the number of records.

        Raises:
            HistoryCompacted: The changelog does not have all of them.
        """
        groups = range(header.parallelism) if self._groups is None else self._groups
        readers = dict(zip(groups, self._log.readers, strict=True))
        # The first commit of a group has its whole state. After compaction it is another one in each group.
        hashes = {group: LiveHash() for group in groups} if store.extent is None else {}
        level: list[tuple[VersionedBatch, list[Part]]] = []
        waiting: list[Part] = []
        records = size = 0
        number = 1 if store.extent is None else store.extent.newest + 1
        same = header.parallelism % store.buckets == 0

        def show() -> None:
            shown, level[:] = level[:], []
            if shown:
                store.apply(shown, self._oldest(store, [batch for batch, _ in shown]))

        try:
            for each in fold_groups(readers, header.log_id, after, until):
                commit = each.commit
                if after and commit.snapshot:
                    raise HistoryCompacted(f"{each.place} is a snapshot")
                records += commit.records
                for changes in self._changes(each, hashes.pop(commit.group, None)):
                    if size >= _CHANGES:
                        show()
                        store.write(number, waiting)
                        waiting, size = [], 0
                    # A share may lack the group to whose bucket the key of broadcast states belongs.
                    is_apart = self._groups is not None and broadcast_prefixes(commit.states)
                    waiting.append((commit.group % store.buckets if same and not is_apart else None, changes))
                    size += len(changes)
                if not each.markers:
                    continue
                level.append((_batch(number, header.log_id, each.markers, self._groups), waiting))
                waiting, number = [], number + 1
                size += _OF_COMMIT
                if size >= _CHANGES or store.extent is None:
                    show()
                    size = 0
                if first:
                    break
                if self.pinned.is_stopping():
                    raise WorkEnded
        finally:
            # Commits before an unreadable one are written too.
            show()
        return records

    def _changes(self, folded: FoldedCommit, live: LiveHash | None) -> Iterator[list[Change]]:
        """Yield the changes of a commit; rows of tables as entries.

        Args:
            folded: The commit.
            live: Receives the content, if it is the whole state of its key group, which is compared with the marker.
        """
        commit, where = folded.commit, f"{folded.place} of a changelog"
        if commit.states != self._states:
            self._states, self._tables = commit.states, tables_of(commit.states, where)
        for block in folded.blocks:
            if live is not None:
                for delta in deltas((block,), commit.states, where):
                    live.add(delta)
            yield entries_of(block, self._tables, where)
        if live is not None and (problem := difference(live, commit.entries, commit.hash)):
            raise CorruptionError(problem, where=where)

    def _oldest(self, store: VersionStore, batches: list[VersionedBatch]) -> int:
        """Return the oldest commit that is kept when batches are written."""
        extent, newest = store.extent, batches[-1]
        if extent is None:
            return newest.commit
        oldest, limit = extent.oldest, newest.processing_time - self._history_ms
        last = newest.commit - 1
        new = {batch.commit: batch for batch in batches}
        while oldest < last and (new.get(oldest + 1) or store.batch(oldest + 1)).processing_time <= limit:
            oldest += 1
        return self.pinned.retain_from(oldest) if store is self._store else oldest


class _Log:
    """A changelog, and readers of its key groups that stay open between polls. One thread at a time uses it.

    Args:
        changelog: The changelog. It need not be written yet.
        groups: The key groups; all if ``None``.

    Attributes:
        readers: Its readers.
    """

    def __init__(self, changelog: Changelog, groups: tuple[int, ...] | None) -> None:
        self._changelog = changelog
        self._groups = groups
        self.readers: list[ChangelogReader] = []
        self._header: LogHeader | None = None
        self._failed = False

    @contextmanager
    def opened(self) -> Iterator[LogHeader | None]:
        """Return its current identity, ``None`` if it does not exist.

        A reader that has it cheaply is used, unless the previous use of the context ended with an error.

        Raises:
            ChangelogError: It cannot be read.
        """
        try:
            header = None
            first = self.readers[0] if self.readers and not self._failed else None
            if isinstance(first, IdentifiedReader):
                header = first.header()
            if header is None:
                header = self._changelog.header()
            if header is not None and header != self._header:
                groups = range(header.parallelism) if self._groups is None else self._groups
                self.readers = [self._changelog.reader(group) for group in groups if group < header.parallelism]
                self._header = header
            self._failed = False
            yield header
        except BaseException:
            self._failed = True
            raise

    def close(self) -> None:
        """Drop the readers and their connections."""
        self.readers, self._header = [], None


class FolderReader:
    """Reads the store of another program.

    Args:
        path: Folder of the store.

    Attributes:
        pinned: The store, and the commits that snapshots hold.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.pinned = PinnedStore(VersionReader(path))
        self._lock = threading.Lock()

    def poll(self) -> int:
        """Refresh the store. Returns 0, because the other program applies records."""
        with self._lock:
            self.pinned.check_open()
            if not self.pinned.refresh():
                new = VersionReader(self._path)
                if _is_behind(new.extent, self.pinned.store.extent):
                    # It is being rebuilt: until it has caught up, the previous store is read.
                    new.close()
                else:
                    self.pinned.replace(new)
        return 0

    def is_transient(self, error: Exception) -> bool:
        """Return true if an error of `poll` may be transient, while the other program replaces files."""
        return isinstance(error, LocalStoreError | OSError) and is_store(self._path)

    def close(self) -> None:
        """Release the folder. Closing again does nothing."""
        with self._lock:
            self.pinned.close()


def _is_behind(new: Extent | None, old: Extent | None) -> bool:
    if new is None or old is None:
        return old is not None
    return new.log_id == old.log_id and new.batch < old.batch


def shown_groups(groups: Iterable[int]) -> str:
    """Return key groups as text, such as ``0-3, 7``."""
    ranges: list[list[int]] = []
    for group in sorted(groups):
        if ranges and ranges[-1][1] == group - 1:
            ranges[-1][1] = group
        else:
            ranges.append([group, group])
    return ", ".join(f"{first}-{last}" if first < last else str(first) for first, last in ranges)


def _check_groups(store: VersionStore, groups: tuple[int, ...] | None) -> None:
    """Check that a store has the key groups that are to be followed.

    Raises:
        DefinitionError: It has others.
    """
    extent = store.extent
    if extent is None:
        return
    try:
        stored = store.batch(extent.newest).groups
    except LocalStoreError:
        # It is rebuilt.
        return
    if stored != groups:
        has = "all key groups" if stored is None else f"key groups {shown_groups(stored)}"
        text = "all" if groups is None else shown_groups(groups)
        raise DefinitionError(
            f"groups=: the tables in {store.path} have {has} of operator {store.path.name!r}, and not {text}; give "
            "another folder"
        )


def _batch(number: int, log_id: str, markers: Sequence[Commit], groups: tuple[int, ...] | None) -> VersionedBatch:
    """Return a batch from the commit markers of the key groups that are followed."""
    return VersionedBatch(
        commit=number,
        batch=markers[0].sequence,
        log_id=log_id,
        watermark=min(marker.watermark for marker in markers),
        processing_time=max(marker.processing_time for marker in markers),
        hashes=tuple(marker.hash for marker in markers),
        entries=sum(marker.entries for marker in markers),
        ended=all(marker.ended for marker in markers),
        states=markers[0].states,
        key_columns=markers[0].key_columns,
        groups=groups,
    )


def _differences(old: Iterator[_Entry], new: Iterator[_Entry]) -> Iterator[Change]:
    """Yield the changes from one state to another, in the order of addresses."""
    merged = merge(((entry, False) for entry in old), ((entry, True) for entry in new), key=_address_of)
    for _, (*before, (entry, is_new)) in groupby(merged, _address_of):
        if not is_new:
            yield entry[0], entry[1], None
        elif (entry, False) not in before:
            yield entry


def _address_of(tagged: tuple[_Entry, bool]) -> bytes:
    return tagged[0][0] + tagged[0][1]


def _behind(reader: ChangelogReader, at: int) -> tuple[int, int] | None:
    """Return the records after a sequence, and the milliseconds of processing time from it to the newest commit.

    Returns:
        ``None`` if there is no commit.
    """
    last = reader.last()
    if last is None:
        return None
    if last.sequence <= at:
        return 0, 0
    try:
        markers = [commit for commit, _ in reader.commits(max(at - 1, 0), last.sequence)]
    except HistoryCompacted:
        markers = [commit for commit, _ in reader.commits(0, last.sequence)]
    missing = sum(commit.records for commit in markers if commit.sequence > at)
    return missing, last.processing_time - markers[0].processing_time
