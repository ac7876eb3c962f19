"""RocksDB through rocksdict's raw mode, with workarounds for its defects.

Defects found with rocksdict 0.3.29, with their workarounds:

- Opening an existing database uses the given options only if they are passed for the column family ``default`` as
  well; otherwise bloom filters and the shared block cache are silently switched off.
- ``Rdict.items()`` stops at a damaged block as if it were the end. `Database.range` uses a raw iterator and checks its
  status at the end.
- An iterator keeps the database open, and its lock held, after ``close()``. `Database.close` ends them first.
- ``ReadOptions.set_iterate_lower_bound`` sets the upper bound: `Database.range` stops by itself at the lower one.
- ``WriteOptions.disable_wal`` and ``sync`` are properties; the type stubs are wrong.
- A forked process that closes or drops a database, even at its exit, crashes or waits forever for threads that only the
  parent has. `Database.leave` ends its use there without destroying the native objects.
- RocksDB 9.8 loops forever on a manifest or write-ahead log that ends in a record of a type which only recycled files
  have. `Database` never recycles files and refuses such a file before RocksDB reads it.

Memory is bounded for the whole process, for any number of databases: one block cache, which index and filter blocks
share, and one budget for write buffers.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import attrs

from keyed.base.private_files import make_files_private, make_private
from keyed.errors import KeyedError, LocalStoreError

if TYPE_CHECKING:
    from rocksdict import Cache, Options, WriteBatch, WriteBufferManager

#: Block cache of the process, with index and filter blocks.
CACHE_BYTES = 64 << 20
#: Memory of all write buffers of the process; the fullest one is flushed when they exceed it.
WRITE_BUFFERS_BYTES = 128 << 20
#: A database's write buffer is flushed to a file when it has this size.
WRITE_BUFFER_BYTES = 32 << 20
#: Files that a database keeps open.
OPEN_FILES = 64

# Manifests and write-ahead logs are blocks of 32 KiB with records: checksum (4 bytes) | length (u16 LE) | type (u8).
_BLOCK = 32 << 10
_RECORD = Struct("<4xHB")
#: Zero (nothing follows), full, first, middle and last.
_RECORD_TYPES = range(5)


#: Free space that a file system has after a refused write if the write may succeed now.
_ROOM = 4 << 20
_AGAIN = "Writer has previous error"
_FULL = "No space left on device"
#: Cause and remedy of an error, by the operating system's message.
_CAUSES = {
    _FULL: "the disk is full: free space, committed data is safe",
    "Disk quota exceeded": "the disk quota is used up: free space, committed data is safe",
    "Read-only file system": "the file system is read-only: mount it writable, or choose another folder",
    "Not a directory": "a file is in place of the folder: choose another folder",
    "File exists": "a file is in place of the folder: choose another folder",
    "Permission denied": "this process may not write there: give it access, or choose another folder",
}


@lru_cache(maxsize=1)
def _shared() -> tuple[Cache, WriteBufferManager]:
    from rocksdict import Cache, WriteBufferManager

    # An LRU cache would have shards of 1 MiB; a filter larger than its shard would be read again at each look-up.
    return Cache.new_hyper_clock_cache(CACHE_BYTES, 0), WriteBufferManager(WRITE_BUFFERS_BYTES, False)


def _options(*, blobs: bool) -> Options:
    from rocksdict import (
        BlockBasedOptions,
        DBCompactionStyle,
        DBCompressionType,
        DBRecoveryMode,
        Options,
        UniversalCompactOptions,
    )

    cache, write_buffers = _shared()
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_bloom_filter(10, False)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_write_buffer_manager(write_buffers)
    # Each close leaves a small file. Universal compaction merges files of similar size, so a small batch does not
    # rewrite a large state, and a merge ends before the concurrent batch.
    universal = UniversalCompactOptions()
    universal.size_ratio = 10
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_universal_compaction_options(universal)
    options.set_level_zero_file_num_compaction_trigger(6)
    # New files are soon read and rewritten; most of the data is in the last level and stays there.
    options.set_compression_type(DBCompressionType.none())
    options.set_bottommost_compression_type(DBCompressionType.lz4())
    # A record cut off at the end of the log was never acknowledged; any other defect is corruption.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    # Opening and closing are frequent: no statistics, one small manifest, one log file.
    options.set_max_open_files(OPEN_FILES)
    options.set_max_file_opening_threads(1)
    options.set_skip_stats_update_on_db_open(True)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_keep_log_file_num(1)
    options.set_manifest_preallocation_size(4096)
    if blobs:
        # Large values are written once, and not rewritten by each compaction of their keys.
        options.set_enable_blob_files(True)
        options.set_min_blob_size(16 << 10)
        options.set_enable_blob_gc(True)
    return options


def _check_records(path: Path) -> None:
    """Raise `ValueError` if a manifest or write-ahead log has a record of a type that keyed never writes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        at = 0
        while at + _RECORD.size <= size:
            if _BLOCK - at % _BLOCK < _RECORD.size:
                at += _BLOCK - at % _BLOCK
                continue
            file.seek(at)
            length, kind = _RECORD.unpack(file.read(_RECORD.size))
            if kind not in _RECORD_TYPES:
                raise ValueError(f"Corruption: unknown record type {kind} in {path.name} at byte {at}")
            if kind == 0:
                return
            at += _RECORD.size + length


class _Interrupted(Exception):
    """The database was closed while it was read."""


def is_interrupted(error: BaseException) -> bool:
    """Return true if `Database` raised ``error`` because it was closed or reopened; no data is damaged."""
    return isinstance(error.__cause__, _Interrupted)


def is_refused(error: BaseException) -> bool:
    """Return true if `Database` raised ``error`` because the file system refuses writes; no data is damaged."""
    return any(text in str(error.__cause__) for text in _CAUSES)


def explained(message: str) -> str:
    """Return a message of the file system with its cause and remedy, if they are known."""
    return next((f"{cause} ({message})" for text, cause in _CAUSES.items() if text in message), message)


def check_room(folder: Path) -> None:
    """Write a few MiB to a temporary file.

    Raises:
        OSError: The file system refuses it.
    """
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        file.write(b"\0" * _ROOM)
        # A write that the disk takes in part only is no error, but the next one is.
        file.write(b"\0")


def is_locked(error: BaseException) -> bool:
    """Return true if `Database` raised ``error`` because the database is open elsewhere, in this process or another."""
    return "/LOCK: " in str(error.__cause__)


def successor(prefix: bytes) -> bytes:
    """Return the first key after all keys that start with ``prefix``, which has a byte below FF."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,))


@attrs.define(eq=False, repr=False, slots=False)
class Database:
    """An open RocksDB with keys and values of bytes. Every checksum is verified when a block is read.

    Args:
        path: Its folder; created if missing, with its parents.
        failure: Creates the exception to raise, from a message that names the path.
        wal: True if writes go to a write-ahead log. Without it they are in files when `close` returns, and a process
            that is killed before loses writes from the end, never from the middle.
        sync: True if a write is on disk when `write` returns.
        blobs: True if large values are kept in separate files.
        group: True if the group may read it, if it is created.
        reader: A separate folder, which makes this a reader of a database that another program has open: it shows the
            files and the write-ahead log as of its opening or last refresh.

    Attributes:
        get: ``get(key) -> bytes | None``, or for a list of keys a list of those. Raises vendor errors: pass them to
            `failed`.

    Raises:
        KeyedError: The result of ``failure``; `is_locked` is true if the folder is in use.
    """

    path: Path
    _failure: Callable[[str], KeyedError]
    _wal: bool = attrs.field(kw_only=True)
    _sync: bool = attrs.field(default=False, kw_only=True)
    _blobs: bool = attrs.field(default=False, kw_only=True)
    _group: bool = attrs.field(default=False, kw_only=True)
    _reader: Path | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        from rocksdict import WriteOptions

        path, reader = self.path, self._reader
        self._lock = threading.Lock()
        self._cursors: WeakSet[Generator[tuple[bytes, bytes]]] = WeakSet()
        self._write_options = WriteOptions()
        self._write_options.sync = self._sync
        self._unsynced = WriteOptions()
        self._write_options.disable_wal = not self._wal  # type: ignore[method-assign,assignment]
        try:
            if reader is None:
                make_private(path, group=self._group)
            make_files_private(reader or path)
        except OSError as error:
            raise self._failure(f"{path} cannot be created: {error}") from error
        self._open()

    def _open(self) -> None:
        from rocksdict import AccessType, Rdict

        self._first_error = ""
        #: True if RocksDB refuses all writes, because one failed.
        self.refuses = False
        try:
            options = _options(blobs=self._blobs)
            arguments, families = str(self.path), {"default": options}
            if self._reader is None:
                for file in (*self.path.glob("MANIFEST-*"), *self.path.glob("*.log")):
                    _check_records(file)
                self._rocks = Rdict(arguments, options, column_families=families)
                self._identity = self._lock_file()
            else:
                # All files are opened at once and stay open: the writer may delete them.
                options.set_max_open_files(-1)
                secondary = AccessType.secondary(str(self._reader))
                self._rocks = Rdict(arguments, options, column_families=families, access_type=secondary)
        except Exception as error:
            raise self.failed("cannot be opened", error) from error
        self._opening = object()
        self._closed = False
        self.get: Callable[..., Any] = self._rocks.get
        OPEN.add(self)

    def reopen(self) -> None:
        """Reopen it when the file system accepts writes again: RocksDB refuses all writes after a failed one.

        Look-ups wait until then; ranges that are being read end with an error (see `is_interrupted`).

        Raises:
            KeyedError: The file system still refuses writes. The database can be read as before, unless opening it
                failed.
        """
        try:
            check_room(self.path.parent)
        except OSError as error:
            raise self.failed("cannot be written", error) from error
        with self._lock:
            self.get = self._get_later
            try:
                self._close()
                self._open()
            except BaseException:
                self.get = self._refuse
                self.refuses = True
                raise

    def _get_later(self, *keys: Any) -> Any:
        with self._lock:
            return self.get(*keys)

    def is_there(self) -> bool:
        """Return true if the folder of a writable database is still the one that was opened."""
        return self._lock_file() == self._identity

    def _lock_file(self) -> tuple[int, int, int] | None:
        # RocksDB creates it when it opens a database, and does not change it later.
        try:
            status = (self.path / "LOCK").stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino, status.st_mtime_ns

    def failed(self, what: str, error: BaseException) -> KeyedError:
        """Return the exception for a vendor error; raise it from ``error``."""
        message = str(error)
        if _AGAIN in message:
            # After a failed write RocksDB's errors only say that a write failed.
            message = self._first_error or (_FULL if not os.statvfs(self.path).f_bavail else message)
        self._first_error = self._first_error or message
        return self._failure(f"{self.path} {what}: {explained(message)}")

    def look_up(self, key: Any) -> Any:
        """Return the result of `get`, with vendor errors converted by `failed`."""
        opening = self._opening
        try:
            return self.get(key)
        except KeyedError:
            raise
        except Exception as error:
            if self._closed or self._opening is not opening:
                raise self._failure(f"{self.path} was closed while it was read") from _Interrupted
            raise self.failed("cannot be read", error) from error

    @staticmethod
    def batch() -> WriteBatch:
        """Return an empty write batch."""
        from rocksdict import WriteBatch

        return WriteBatch(raw_mode=True)

    def write(self, batch: WriteBatch, *, synced: bool = True) -> None:
        """Write a batch, all of it or nothing.

        Args:
            batch: The batch.
            synced: False if a failure of the machine may undo the write although ``sync`` was given.
        """
        try:
            self._rocks.write(batch, self._write_options if synced else self._unsynced)
        except Exception as error:
            self.refuses = True
            raise self.failed("cannot be written", error) from error

    def _refuse(self, *_: object) -> Any:
        raise self._failure(f"{self.path} is closed") from _Interrupted

    def refresh(self) -> None:
        """Show the writer's changes since the last refresh (for a reader)."""
        try:
            self._rocks.try_catch_up_with_primary()
        except Exception as error:
            raise self.failed("cannot be read", error) from error

    def range(self, first: bytes, end: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over (key, value) from ``first`` to before ``end``, as they are when the iteration starts.

        Args:
            first: The least key.
            end: The key before which the range ends.
            reverse: True if the greatest key comes first.
        """
        with self._lock:
            opening = self._opening
            cursor = self._range(first, end, opening, reverse=reverse)
            self._cursors.add(cursor)
        return self._read_all(cursor, opening)

    def _read_all(self, cursor: Generator[tuple[bytes, bytes]], opening: object) -> Iterator[tuple[bytes, bytes]]:
        yield from cursor
        if self._closed or self._opening is not opening:
            # Another thread has ended the cursor, and there may have been more.
            raise self._failure(f"{self.path} was closed while it was read") from _Interrupted

    def _range(self, first: bytes, end: bytes, opening: object, *, reverse: bool) -> Generator[tuple[bytes, bytes]]:
        from rocksdict import ReadOptions

        cursor: Any = None
        valid = key = value = step = cursor
        try:
            options = ReadOptions()
            options.set_iterate_upper_bound(end)
            with self._lock:
                if self._closed or self._opening is not opening:
                    return
                cursor = self._rocks.iter(options)
            if reverse:
                cursor.seek_to_last()
            else:
                cursor.seek(first)
            valid, key, value = cursor.valid, cursor.key, cursor.value
            step = cursor.prev if reverse else cursor.next
            while valid() and not self._closed and self._opening is opening:
                at = key()
                if at < first:
                    break
                yield at, value()
                step()
            cursor.status()
        except Exception as error:
            raise self.failed("cannot be read", error) from error
        finally:
            # An error that is raised here keeps this frame, which would keep the database open.
            cursor = valid = key = value = step = None

    def close(self) -> None:
        """Flush buffered writes to files and release the folder. Closing again does nothing."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for cursor in list(self._cursors):
            # An iterator in use by another thread ends at that thread's next step.
            with suppress(ValueError):
                cursor.close()
        try:
            self._rocks.close()
        except Exception as error:
            # The refused write raised an error, and the others are in the write-ahead log; or the folder was deleted.
            if not self._wal or not (self.refuses or (self._reader is None and not self.is_there())):
                raise self.failed("cannot be closed", error) from error
        finally:
            OPEN.discard(self)
            del self._rocks
            with suppress(OSError):
                make_files_private(self._reader or self.path)
            if self.get != self._get_later:
                self.get = self._refuse

    def leave(self) -> None:
        """Close it in a forked process without destroying the native objects, which belong to the parent."""
        self._lock = threading.Lock()
        if not self._closed:
            self._closed = True
            self.get = self._refuse
            for native in (self._rocks, *self._cursors):
                keep_for_ever(native)


#: The databases that this process has open, of every kind: a forked one leaves them.
OPEN: WeakSet[Any] = WeakSet()


def keep_for_ever(native: object) -> None:
    """Keep an object beyond the end of the interpreter, which drops the objects of modules."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))


def _leave_all() -> None:
    for database in list(OPEN):
        database.leave()
    OPEN.clear()
    if _shared.cache_info().currsize:
        # A thread of the parent may have been using them.
        keep_for_ever(_shared())
        _shared.cache_clear()


os.register_at_fork(after_in_child=_leave_all)


def delete_folder(folder: Path) -> None:
    """Delete the folder of a store, if it exists.

    Raises:
        LocalStoreError: It cannot be deleted.
    """
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise LocalStoreError(f"{folder} is damaged and cannot be deleted: {error}") from error
