"""A local store on disk that several processes of a machine share: LMDB, one environment per key group.

Every process that serves a key group keeps the group's store open. All of them read it through the page cache, so each
sees what the others applied: nothing is opened or replayed when a group moves between processes.

The environment is in the subfolder ``keyed-store-lmdb-1-<machine>`` of the store's folder. The number is the version of
the format; the machine is named by a hash of its names, its last start and its namespace of processes. Its keys and
values are those of `keyed.stores.disk_store` and `keyed.stores.disk_tables`, with these additions:

    A                                       log rows of the batch that ran last: a frame of kind KROW, version 1, with
                                            the msgpack of [attempt, {row: record}]

A key of more than 479 bytes is stored as its first 479 bytes and the BLAKE2b of the whole key, 32 bytes; its value is
length of the key (u32 BE) | key | value. Each stored value begins with a checksum, 8 bytes: the XXH3 of the value, 64
bits, with that of the stored key as its seed. It is verified at each read.

- A reader has a snapshot of the store: `SharedStore.refresh` takes it at the start of a batch, `release` ends it.
- A writer compares the position with that of its snapshot, in the transaction that changes it. If another process has
  moved it, `apply` raises, and the engine starts again from the log.
- Nothing is synced. The operating system has what was committed, so a process that is killed loses nothing but its
  open transaction. After a crash of the machine the store has another name, and starts empty.
- The file grows with what the store holds and does not shrink; pages of removed entries are used again. The disk
  bounds it: a full one raises `LocalStoreError`, and the store is as before.
- While a process holds a snapshot, for example in a task that Spark has given up, removed pages are not used again. If
  the file has grown for this reason, `apply` moves the entries to a new one. That process has the old file until then.
- LMDB trusts its file: pages that are not its own end the process, or hide entries. So the store has a mark
  (`keyed.stores.store_mark`), which is compared with the file before anything is read or written: a file that something
  else has changed is never opened. After an abnormal end the content is compared with the log's counts.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_64_digest, xxh3_64_intdigest

from keyed.base.closing import closing_on_error
from keyed.base.ids import random_id
from keyed.base.private_files import make_files_private
from keyed.codec.frames import RecordFormat
from keyed.content.addresses import PLAIN
from keyed.content.blocks import Change, TableDelta
from keyed.errors import CorruptionError, KeyedError, LocalStoreError
from keyed.stores.database import OPEN, check_room, delete_folder, explained, is_refused, keep_for_ever
from keyed.stores.disk_store import DiskStore
from keyed.stores.store_mark import StoreMark

if TYPE_CHECKING:
    import lmdb

_SUBFOLDER = "keyed-store-lmdb-"
_FILE = "data.mdb"
_VERSION = 1
_ROWS = b"A"
_Rows = tuple[str, dict[int, bytes]]
_ROWS_RECORD: RecordFormat[_Rows] = RecordFormat(b"KROW", 1, _Rows)
#: The size of the map, which is address space, not memory; it doubles when it is full.
MAP_BYTES = 4 << 30
#: Processes that may have a snapshot at a time, and the size of the file with their table.
_READERS = 510
#: Bytes that a file may have beyond four times its live pages if an old snapshot keeps pages.
SLACK_BYTES = 16 << 20
_LOCK_BYTES = 64 * (_READERS + 2)
#: LMDB's locks do not hold within a process, nor does a forked child have those of its parent.
_OPEN_HERE = "already open in this process"
_SHORT = os.strerror(errno.EIO)
#: LMDB takes keys of 511 bytes.
_LONG = 479
_HASH = 32


@lru_cache(maxsize=1)
def _machine() -> tuple[str, str, str]:
    """Return names of this machine, of its boot, and of the PID namespace of this process."""
    names = os.uname().nodename.encode()
    with suppress(OSError):
        names += Path("/etc/machine-id").read_bytes()
    machine = blake2b(names, digest_size=8).hexdigest()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        # Without either, a process shares its stores with no other one.
        return machine, machine, random_id()
    return machine, boot[:16], "".join(filter(str.isdigit, namespace))


def _subfolder() -> str:
    return f"{_SUBFOLDER}{_VERSION}-{'-'.join(_machine())}"


class _Batch(dict[bytes, Any]):
    """Writes of one batch; ``None`` deletes."""

    def delete(self, key: bytes) -> None:
        self[key] = None


class LmdbDatabase:
    """An open LMDB environment with keys and values of bytes, with the methods of `keyed.stores.database.Database`.

    Args:
        path: Its folder.
        mark: The mark in the folder, of an attempt that has begun.

    Raises:
        LocalStoreError: It cannot be opened.
    """

    def __init__(self, path: Path, mark: StoreMark) -> None:
        self.path = path
        self._mark = mark
        self._open()

    def _open(self) -> None:
        import lmdb

        # Transactions without `buffers` return bytes.
        self._reading: Any = None
        self._writing: Any = None
        self._left = False
        try:
            _reserve(self.path / "lock.mdb")
            self._environment: lmdb.Environment = lmdb.open(
                str(self.path),
                map_size=MAP_BYTES,
                max_readers=_READERS,
                mode=0o600,
                sync=False,
                metasync=False,
                readahead=False,
                meminit=False,
            )
        except (lmdb.Error, OSError) as error:
            raise self.failed("cannot be opened", error) from error
        self._closed = False
        OPEN.add(self)
        with closing_on_error(self):
            try:
                self._identity = self._file()
                self._environment.reader_check()
                used = (self._environment.info()["last_pgno"] + 1) * self._environment.stat()["psize"]
                if (self.path / _FILE).stat().st_size < min(used, 2 * used):
                    raise LocalStoreError(f"{self.path} is damaged: its file was cut off")
                self._mark.written()
            except (lmdb.Error, OSError) as error:
                raise self.failed("cannot be opened", error) from error

    def _file(self) -> tuple[int, int] | None:
        try:
            status = (self.path / _FILE).stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def is_there(self) -> bool:
        """Return true if the environment is open, and its file is still the one that was opened."""
        return not self._closed and not self._left and self._file() == self._identity

    def failed(self, what: str, error: BaseException) -> KeyedError:
        """Return the exception for a vendor error; raise it from ``error``."""
        message = str(error)
        if _SHORT in message:
            # LMDB reports a write of which the disk takes only a part, because it is full, as this error.
            try:
                check_room(self.path.parent)
            except OSError as refused:
                message = str(refused)
        return LocalStoreError(f"{self.path} {what}: {explained(message)}")

    def snapshot(self) -> Any:
        """Return the transaction that reads: that of the writer, or a snapshot, which is taken if there is none."""
        transaction = self._writing or self._reading
        if transaction is None:
            transaction = self._reading = self._begin(write=False)
        return transaction

    def _begin(self, *, write: bool) -> lmdb.Transaction:
        import lmdb

        if self._closed or self._left:
            raise LocalStoreError(f"{self.path} is closed" + (" in a forked process" if self._left else ""))
        try:
            try:
                return self._environment.begin(write=write)
            except lmdb.MapResizedError:
                # Another process has made the map larger.
                self.release()
                self._environment.set_mapsize(0)
                return self._environment.begin(write=write)
        except lmdb.Error as error:
            raise self.failed("cannot be read" if not write else "cannot be written", error) from error

    def release(self) -> None:
        """End the snapshot: its pages may be used again."""
        reading, self._reading = self._reading, None
        if reading is not None and not self._left:
            reading.abort()

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key."""
        at = key if len(key) <= _LONG else _shortened(key)
        reading = self._writing or self._reading or self.snapshot()
        try:
            stored = reading.get(at)
        except Exception as error:
            raise self.failed("cannot be read", error) from error
        if stored is None:
            return None
        value: bytes = stored[8:]
        if xxh3_64_digest(value, xxh3_64_intdigest(at)) != stored[:8]:
            raise self._damaged()
        return value if at is key else self._split_stored(value)[1]

    def _damaged(self) -> LocalStoreError:
        return LocalStoreError(f"{self.path} is damaged: the checksum of an entry does not match")

    def look_up(self, key: Any) -> Any:
        """Return the value of a key, or the values of a list of keys."""
        return self.get(key) if isinstance(key, bytes) else [self.get(each) for each in key]

    def _split_stored(self, stored: bytes) -> tuple[bytes, bytes]:
        end = 4 + int.from_bytes(stored[:4], "big")
        return stored[4:end], stored[end:]

    def range(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over (key, value) from ``first`` to before ``end``, in order."""
        import lmdb

        try:
            with self.snapshot().cursor() as cursor:
                if cursor.set_range(first[:_LONG]):
                    yield from self._range(cursor, first, end)
        except lmdb.Error as error:
            raise self.failed("cannot be read", error) from error

    def _range(self, cursor: Any, first: bytes, end: bytes) -> Generator[tuple[bytes, bytes]]:
        # Long keys with the same beginning are adjacent, in the order of their hashes.
        together: list[tuple[bytes, bytes]] = []
        beginning = before = b""
        digest, seed = xxh3_64_digest, xxh3_64_intdigest
        for key, stored in cursor:
            value = stored[8:]
            if digest(value, seed(key)) != stored[:8] or key <= before:
                raise self._damaged()
            before = key
            if together and key[:_LONG] != beginning:
                yield from sorted(together)
                together = []
            if key[:_LONG] >= end:
                break
            if len(key) > _LONG:
                beginning = key[:_LONG]
                pair = self._split_stored(value)
                if first <= pair[0] < end:
                    together.append(pair)
            elif key >= first:
                yield key, value
        yield from sorted(together)

    @staticmethod
    def batch() -> _Batch:
        """Return an empty write batch."""
        return _Batch()

    def write(self, batch: _Batch) -> None:
        """Add a batch to the open transaction."""
        transaction = self._writing
        assert transaction is not None
        digest, seed = xxh3_64_digest, xxh3_64_intdigest
        puts = []
        for key in sorted(batch):
            value = batch[key]
            at = key
            if len(key) > _LONG:
                at = _shortened(key)
                if value is not None:
                    value = len(key).to_bytes(4, "big") + key + value
            if value is None:
                transaction.delete(at)
            else:
                puts.append((at, digest(value, seed(at)) + value))
        with transaction.cursor() as cursor:
            cursor.putmulti(puts)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write all batches of the block, or none.

        Raises:
            MapFull: The map was too small; it is larger now.
            LocalStoreError: The file cannot be written.
        """
        import lmdb

        self.release()
        writing = self._writing = self._begin(write=True)
        try:
            try:
                # No other process of keyed is writing now.
                self._mark.check()
                try:
                    yield
                    writing.commit()
                finally:
                    # A write that was refused has changed the file, too.
                    writing.abort()
                    self._mark.written()
            finally:
                self._writing = None
                writing.abort()
        except lmdb.MapFullError as error:
            self._grow()
            raise MapFull from error
        except lmdb.PanicError as error:
            self.close()
            raise self.failed("cannot be written", error) from error
        except lmdb.Error as error:
            raise self.failed("cannot be written", error) from error

    def _grow(self) -> None:
        import lmdb

        try:
            self._environment.set_mapsize(2 * self._environment.info()["map_size"])
        except (lmdb.Error, MemoryError) as error:
            raise self.failed("cannot be made larger", error) from error

    def clear_readers(self) -> bool:
        """End the snapshots of processes that were killed. Return true if another one makes the file grow."""
        import lmdb

        self.release()
        try:
            self._environment.reader_check()
            status, pages = self._environment.info(), self._environment.stat()
            live = pages["branch_pages"] + pages["leaf_pages"] + pages["overflow_pages"]
            if (status["last_pgno"] - 4 * live) * pages["psize"] <= SLACK_BYTES:
                return False
            oldest = [line.split()[2] for line in self._environment.readers().splitlines()[1:]]
        except lmdb.Error:
            return False
        return any(each != "-" and int(each) < status["last_txnid"] for each in oldest)

    def copy(self, folder: Path) -> None:
        """Copy the live pages to a new folder.

        Raises:
            LocalStoreError: They cannot be read or written.
        """
        import lmdb

        try:
            self._environment.copy(str(folder), compact=True)
        except lmdb.Error as error:
            raise self.failed("cannot be copied", error) from error

    def close(self) -> None:
        """Close it in this process. Closing again does nothing."""
        if self._closed or self._left:
            return
        self.release()
        self._closed = True
        OPEN.discard(self)
        self._environment.close()

    def leave(self) -> None:
        """Close it in a forked process without destroying the native objects, which belong to the parent."""
        self._left = True
        self._mark.leave()
        for native in (self._environment, self._reading, self._writing):
            keep_for_ever(native)
        self._reading = self._writing = None


class MapFull(Exception):
    """A transaction did not fit into the map, which is larger now."""


def _shortened(key: bytes) -> bytes:
    return key[:_LONG] + blake2b(key, digest_size=_HASH).digest()


def _reserve(path: Path) -> None:
    """Allocate the file of the readers: on a full disk, writing to a part without blocks would end the process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_size < _LOCK_BYTES:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, _LOCK_BYTES)
            else:
                os.truncate(descriptor, _LOCK_BYTES)
    finally:
        os.close(descriptor)


class LmdbStore(DiskStore):
    """A `SharedStore` in an LMDB environment. `open_lmdb_store` opens one in any condition of its folder.

    Args:
        path: Folder of the store; created if missing, with its parents.

    Raises:
        LocalStoreError: The folder is damaged or cannot be created. The message names it.
    """

    _database: LmdbDatabase

    def _connect(self) -> LmdbDatabase:
        folder = self.path / _subfolder()
        mark = self._mark = StoreMark(folder, _FILE)
        with closing_on_error(mark):
            mark.begin()
            return LmdbDatabase(folder, mark)

    def is_doubtful(self) -> bool:
        """See `SharedStore.is_doubtful`."""
        return self._mark.is_doubtful

    def check(self) -> None:
        """See `SharedStore.check`."""
        timed = 0
        for key, _ in self._database.range(b"E", b"F"):
            timed += key[1] != PLAIN
        for key, length in self._database.range(b"I", b"J"):
            stored = self._database.get(b"E" + key[10:])
            if stored is None or stored[:4] != length or stored[4:12] != key[2:10]:
                raise LocalStoreError(f"{self._database.path} is damaged: its index of times has an entry of its own")
            timed -= 1
        if timed:
            raise LocalStoreError(f"{self._database.path} is damaged: its index of times lacks entries")
        self._mark.is_doubtful = False

    def refresh(self) -> None:
        """See `SharedStore.refresh`."""
        if not self._database.is_there():
            self.close()
            self._open()
            return
        self._database.release()
        self._mark.begin()
        self._look()

    def _look(self) -> None:
        """Take a snapshot, and its position."""
        self._forget()
        position, self._floors = self._read_position()
        if position != self._position:
            # Another process has changed the store.
            self._position = position
            self._tables.clear()
            self._chunks = None

    def release(self) -> None:
        """See `SharedStore.release`."""
        self._database.release()
        self._mark.end()
        self._forget()
        self._tables.clear()

    def keep_rows(self, attempt: str, rows: dict[int, bytes]) -> None:
        """See `SharedStore.keep_rows`. A batch has run in the store."""
        self._mark.settle()
        batch = self._database.batch()
        batch[_ROWS] = _ROWS_RECORD.encode((attempt, rows))
        self._transact(lambda: self._database.write(batch))

    def kept_rows(self, attempt: str) -> dict[int, bytes] | None:
        """See `SharedStore.kept_rows`."""
        record = self._database.get(_ROWS)
        if record is None:
            return None
        try:
            by, rows = _ROWS_RECORD.decode(record, str(self._database.path))
        except CorruptionError as error:
            raise LocalStoreError(f"{self._database.path}: damaged rows: {error}") from error
        return rows if by == attempt else None

    def apply(self, log_id: str, row: int, changes: Iterable[Change], tables: Sequence[TableDelta] = ()) -> None:
        """See `LocalStore.apply`. When it raises, the store is as before."""
        known = changes if isinstance(changes, list) else list(changes)
        if self._database.clear_readers() and not self._mark.is_doubtful:
            self._renew()
        self._transact(lambda: self._apply(log_id, row, known, tables))

    def _apply(self, log_id: str, row: int, changes: list[Change], tables: Sequence[TableDelta]) -> None:
        self._check_position()
        super().apply(log_id, row, changes, tables)

    def _renew(self) -> None:
        """Move the entries to a new file, with the position of the snapshot."""
        folder, copy, position = self._database.path, self.path / f"copy-{random_id()}", self._position
        try:
            mark = StoreMark(copy, _FILE)
            self._database.copy(copy)
            make_files_private(copy)
            mark.written()
            mark.close()
            self.close()
            delete_folder(folder)
            copy.rename(folder)
        except OSError as error:
            raise LocalStoreError(f"{folder} cannot be copied: {explained(str(error))}") from error
        finally:
            shutil.rmtree(copy, ignore_errors=True)
        self._open()
        self._position = position

    def _transact(self, work: Callable[[], None]) -> None:
        """Do work in a transaction, and repeat it if the map was full."""
        position, floors = self._position, self._floors
        while True:
            try:
                with self._database.transaction():
                    work()
            except BaseException as error:
                self._position, self._floors = position, floors
                self._tables.clear()
                self._chunks = None
                if not isinstance(error, MapFull):
                    raise
            else:
                break
        # The snapshot of the rest of the batch is that of the change, or there is none.
        self._check_position()

    def _check_position(self) -> None:
        stored, _ = self._read_position()
        if stored != self._position:
            raise LocalStoreError(f"{self._database.path} was changed by another process while it was read")

    def reset(self) -> None:
        """See `LocalStore.reset`. Other processes that have the store open find that it has another file."""
        self.close()
        delete_folder(self.path / _subfolder())
        self._open()

    def close(self) -> None:
        """See `LocalStore.close`."""
        self._forget()
        self._tables.clear()
        self._database.close()
        self._mark.close()


def open_lmdb_store(path: str | os.PathLike[str]) -> LmdbStore:
    """Open the store in a folder that processes of this machine share, in any condition.

    A damaged store, or one in which two processes in a row ended, is deleted and starts empty. Stores of earlier boots
    of the machine, and of its containers that ended, are deleted; those of other machines are not.

    Args:
        path: Folder of the store; created if missing, with its parents.

    Raises:
        LocalStoreError: No store can be created there, or this process has it open.
    """
    path = Path(path)
    _delete_ended(path)
    try:
        return LmdbStore(path)
    except LocalStoreError as error:
        if is_refused(error) or _OPEN_HERE in str(error.__cause__):
            raise
    delete_folder(path / _subfolder())
    return LmdbStore(path)


def _delete_ended(path: Path) -> None:
    """Delete the stores of earlier boots of this machine and of other PID namespaces, unless they are open."""
    own, own_boot, own_namespace = _machine()
    for folder in path.glob(f"{_SUBFOLDER}*-*-*-*"):
        machine, boot, namespace = folder.name.split("-")[-3:]
        if (namespace != own_namespace) if boot == own_boot else (machine == own):
            with suppress(OSError), (folder / "lock.mdb").open("r+b") as lock:
                # LMDB holds this lock, which spans namespaces, while a store is open.
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
                shutil.rmtree(folder)
