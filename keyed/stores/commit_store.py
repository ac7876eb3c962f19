"""The committed state of a job that runs in-process: the logs of its key groups and its own records.

A commit store does for a local run what Spark's state store and checkpoint do for a query on Spark: all key groups of
all operators write their log rows and meta records to it, the runner writes the source's position and the batch id, and
`commit` makes all of it durable atomically. Writes are buffered: reads see them, and `rollback` or a crash drops them.

`CommitStore` is on disk, in the subfolder ``keyed-commits-1`` of its folder: one RocksDB with a write-ahead log that is
synced at each commit. Its keys, where "group" is the operator's name | "/" | group (u32 BE):

    F                       format: a frame of kind KCMT, version 1, with an empty payload
    J | name                job record
    M | group               meta record
    R | group | row (u64)   log row

`MemoryCommitStore` is in dictionaries; its snapshot is a frame of kind KCMS, version 1, whose payload is the msgpack of
[{key: record} for J and M as above, {group: {row: record}}]. Records are stored unchanged; their writers frame them.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from struct import Struct
from typing import TypeVar

from keyed.base.lease import Lease
from keyed.base.private_files import folder_path, make_private
from keyed.codec.frames import RecordFormat, frame, unframe
from keyed.engine.group_log import GroupLog
from keyed.errors import CheckpointError, CorruptionError, KeyedError
from keyed.stores.database import Database, is_locked

COMMITS_FOLDER = "keyed-commits-1"
"""The folder by which a checkpoint of the local runtime is recognized."""

_FORMAT = b"F"
_FRAME, _VERSION = b"KCMT", 1
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_GROUP = Struct(">I")
_ROW = Struct(">Q")
_Snapshot = tuple[dict[bytes, bytes], dict[bytes, dict[int, bytes]]]
_SNAPSHOT: RecordFormat[_Snapshot] = RecordFormat(b"KCMS", 1, _Snapshot)
_Key = TypeVar("_Key")


def _checked(name: str, parameter: str) -> bytes:
    if not _NAME.fullmatch(name):
        raise CheckpointError(f"{parameter}={name!r} is not 1 to 128 of the characters A-Z, a-z, 0-9, _ and -")
    return name.encode()


class BufferedCommits(ABC):
    """Base of the commit stores: names, the buffer of uncommitted records, and reads through it."""

    def __init__(self) -> None:
        self.rollback()

    def rollback(self) -> None:
        """Drop the writes since the last commit."""
        self.records: dict[bytes, bytes | None] = {}
        self.rows: dict[bytes, dict[int, bytes | None]] = {}

    @abstractmethod
    def committed(self, key: bytes) -> bytes | None:
        """Return the committed value of a key."""

    @abstractmethod
    def committed_rows(self, group: bytes, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Yield the committed rows of a group from ``first`` to ``last``, in order."""

    @abstractmethod
    def make_durable(self) -> None:
        """Write ``records`` and ``rows``, all or nothing."""

    def close(self) -> None:
        """Release the resources of the store and drop uncommitted writes. Closing again does nothing."""
        self.rollback()

    @abstractmethod
    def forget(self, name: str) -> None:
        """Remove a job record, outside of commits. After a failure of the machine it may be there again."""

    def commit(self) -> None:
        """Make all writes since the last commit durable, or none of them if it raises."""
        if self.records or self.rows:
            self.make_durable()
            self.rollback()

    def group_log(self, operator: str, group: int) -> GroupLog:
        """Return the log of one key group of an operator.

        Args:
            operator: Name of the operator.
            group: Index of the key group.

        Raises:
            CheckpointError: The name is not 1 to 128 letters, digits, ``_`` and ``-``.
        """
        return _BufferedLog(self, _checked(operator, "operator") + b"/" + _GROUP.pack(group))

    def read(self, name: str) -> bytes | None:
        """Read the last written value of a job record, or ``None``. Its name has the form of an operator's."""
        return self.get(b"J" + _checked(name, "name"))

    def write(self, name: str, value: bytes) -> None:
        """Write a job record."""
        self.records[b"J" + _checked(name, "name")] = value

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key of the layout above, through the buffer."""
        return self.records[key] if key in self.records else self.committed(key)


class _BufferedLog(GroupLog):
    """The `GroupLog` of one key group in a commit store."""

    def __init__(self, store: BufferedCommits, group: bytes) -> None:
        self._store = store
        self._group = group

    def read_meta(self) -> bytes | None:
        return self._store.get(b"M" + self._group)

    def write_meta(self, meta: bytes) -> None:
        self._store.records[b"M" + self._group] = meta

    def append(self, row: int, record: bytes) -> None:
        self._store.rows.setdefault(self._group, {})[row] = record

    def drop(self, row: int) -> None:
        self._store.rows.setdefault(self._group, {})[row] = None

    def read(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        buffer = dict(self._store.rows.get(self._group, {}))
        written = sorted((row for row in buffer if first <= row <= last), reverse=True)
        for row, record in self._store.committed_rows(self._group, first, last):
            while written and written[-1] < row:
                yield from self._written(buffer, written.pop())
            if row not in buffer:
                yield row, record
        for row in reversed(written):
            yield from self._written(buffer, row)

    @staticmethod
    def _written(buffer: dict[int, bytes | None], row: int) -> Iterator[tuple[int, bytes]]:
        record = buffer[row]
        if record is not None:
            yield row, record


class CommitStore(BufferedCommits):
    """Commits on disk.

    After a crash the store has the state of the last `commit` that returned, or of the one that was running. A store is
    open in one process at a time.

    Args:
        path: Folder of the store; created if missing, with its parents.
        group_access: True if the group may read the folders that are created.

    Raises:
        CheckpointError: The folder is in use or a checkpoint of Spark, cannot be created, or was written in an unknown
            format.
        CorruptionError: The content of the folder is damaged. Reads and commits raise it too.
    """

    def __init__(self, path: str | os.PathLike[str], *, group_access: bool = False) -> None:
        super().__init__()
        self.path = Path(folder_path(path, "checkpoint"))
        folder = self.path / COMMITS_FOLDER
        if (self.path / "offsets").is_dir() and not folder.is_dir():
            raise CheckpointError(
                f"the checkpoint {self.path} was written by Spark, and the local runtime cannot continue from it; give "
                "checkpoint= a new folder, and restore_from= the changelog of the query on Spark to take over its state"
            )
        with ExitStack() as stack:
            self._lease(folder, stack, group_access=group_access)
            try:
                self._database = Database(folder, self._failure, wal=True, sync=True, blobs=True, group=group_access)
            except KeyedError as error:
                if is_locked(error):
                    raise self._in_use() from error
                raise
            stack.callback(self._database.close)
            self._check_format()
            self._closing = stack.pop_all()

    def _lease(self, folder: Path, stack: ExitStack, *, group_access: bool) -> None:
        """Lock the folder before it is read: RocksDB acquires its own lock only after it has renamed files."""
        try:
            make_private(folder, group=group_access)
            stack.enter_context(Lease(folder))
        except BlockingIOError as error:
            raise self._in_use() from error
        except OSError:
            # The folder cannot be created, which the database reports; or its file system has no locks on folders.
            return

    def _in_use(self) -> CheckpointError:
        return CheckpointError(
            f"the checkpoint {self.path} is in use by another run; stop that one, or choose another folder"
        )

    def _failure(self, message: str) -> KeyedError:
        folder = str(self.path / COMMITS_FOLDER)
        if "Corruption: " in message or "No such file" in message:
            return CorruptionError(f"the checkpoint {message.removeprefix(folder).strip()}", where=folder)
        return CheckpointError(f"{message}; give the path of a folder" if "cannot be created" in message else message)

    def _check_format(self) -> None:
        record = self.committed(_FORMAT)
        if record is not None:
            unframe(_FRAME, record, where=str(self._database.path), version=_VERSION)
            return
        for _ in self._database.range(b"", b"\xff"):
            raise CorruptionError("there are records but not their format", where=str(self._database.path))
        self.records[_FORMAT] = frame(_FRAME, _VERSION, b"")
        self.commit()

    def committed(self, key: bytes) -> bytes | None:
        value: bytes | None = self._database.look_up(key)
        return value

    def committed_rows(self, group: bytes, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        head = b"R" + group
        start = len(head)
        if last >= max(first, 0):
            rows = self._database.range(head + _ROW.pack(max(first, 0)), head + _ROW.pack(last) + b"\x00")
            for key, record in rows:
                yield _ROW.unpack_from(key, start)[0], record

    def make_durable(self) -> None:
        batch = self._database.batch()
        changes = list(self.records.items())
        for group, rows in self.rows.items():
            changes += [(b"R" + group + _ROW.pack(row), record) for row, record in rows.items()]
        for key, value in changes:
            if value is None:
                batch.delete(key)
            else:
                batch[key] = value
        self._database.write(batch)

    def forget(self, name: str) -> None:
        batch = self._database.batch()
        batch.delete(b"J" + _checked(name, "name"))
        self._database.write(batch, synced=False)

    def close(self) -> None:
        super().close()
        self._closing.close()


def is_in_use(path: str | os.PathLike[str]) -> bool:
    """Return true if a run is using the store in a folder."""
    try:
        Lease(Path(path, COMMITS_FOLDER)).close()
    except BlockingIOError:
        return True
    except OSError:
        # Opening it reports the reason.
        return False
    return False


class MemoryCommitStore(BufferedCommits):
    """Commits in dictionaries: for tests, and for runs without a checkpoint folder."""

    def __init__(self) -> None:
        super().__init__()
        self._records: dict[bytes, bytes] = {}
        self._rows: dict[bytes, dict[int, bytes]] = {}

    def committed(self, key: bytes) -> bytes | None:
        return self._records.get(key)

    def committed_rows(self, group: bytes, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        rows = self._rows.get(group, {})
        numbers = range(first, last + 1)
        for row in numbers if len(numbers) <= len(rows) else sorted(row for row in rows if row in numbers):
            if row in rows:
                yield row, rows[row]

    def make_durable(self) -> None:
        _merge(self._records, self.records)
        for group, rows in self.rows.items():
            _merge(self._rows.setdefault(group, {}), rows)

    def forget(self, name: str) -> None:
        self._records.pop(b"J" + _checked(name, "name"), None)

    def snapshot(self) -> bytes:
        """Return the whole committed content as one record."""
        return _SNAPSHOT.encode((self._records, self._rows))

    def restore(self, snapshot: bytes) -> None:
        """Replace the whole content, including uncommitted writes, by a snapshot.

        Raises:
            CorruptionError: The snapshot is damaged or of an unknown version.
        """
        self._records, self._rows = _SNAPSHOT.decode(snapshot, "snapshot")
        self.rollback()


def _merge(committed: dict[_Key, bytes], changes: dict[_Key, bytes | None]) -> None:
    for key, value in changes.items():
        if value is None:
            committed.pop(key, None)
        else:
            committed[key] = value
