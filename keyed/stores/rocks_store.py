"""A local store on disk: RocksDB through rocksdict, one database per key group.

The database is in the subfolder ``keyed-store-1`` of the store's folder: the name identifies the owner and the format,
so only a damaged folder of this name is ever deleted. `keyed.stores.disk_store` has its keys and values.

There is no write-ahead log: applied changes are in files when `close` returns. A process that is killed before loses
the last calls of `apply`, each as a whole; `position` shows which, because it is written in the same batch. Memory is
bounded as described in `keyed.stores.database`.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from itertools import count
from pathlib import Path

from keyed.errors import LocalStoreError
from keyed.stores.database import Database, delete_folder, is_locked, is_refused
from keyed.stores.disk_store import DiskStore

_SUBFOLDER = "keyed-store-1"


class RocksStore(DiskStore):
    """A `LocalStore` in its own RocksDB, for state larger than memory.

    `open_rocks_store` opens one in any condition of its folder.

    Args:
        path: Folder of the store; created if missing, with its parents.
        temporary: True if `close` deletes the folder.

    Raises:
        LocalStoreError: The folder is damaged, in use or cannot be created. The message names it.
    """

    def __init__(self, path: str | os.PathLike[str], *, temporary: bool = False) -> None:
        self._temporary = temporary
        super().__init__(path)

    def _connect(self) -> Database:
        return Database(self.path / _SUBFOLDER, LocalStoreError, wal=False)

    def reset(self) -> None:
        """See `LocalStore.reset`."""
        self._close()
        delete_folder(self.path / _SUBFOLDER)
        self._open()

    def close(self) -> None:
        """See `LocalStore.close`. Never fails: an unwritten store is behind the log when reopened."""
        self._close()
        if self._temporary:
            shutil.rmtree(self.path, ignore_errors=True)

    def _close(self) -> None:
        try:
            self._database.close()
        except LocalStoreError:
            return
        finally:
            self._forget()


def open_rocks_store(path: str | os.PathLike[str]) -> RocksStore:
    """Open the local store in a folder, in any condition.

    A damaged store is deleted and starts empty. A store that is open elsewhere, for example in another attempt of the
    same task, is not touched: the result is an empty store in a folder beside it, named ``<folder>-<process
    id>-<number>``, which is deleted when it is closed.

    Args:
        path: Folder of the store; created if missing, with its parents.

    Returns:
        A store with the position at which it was closed, or an empty one.

    Raises:
        LocalStoreError: No store can be created there.
    """
    path = Path(path)
    try:
        return RocksStore(path)
    except LocalStoreError as error:
        if is_locked(error):
            return _open_beside(path)
        if is_refused(error):
            raise
    delete_folder(path / _SUBFOLDER)
    return RocksStore(path)


def _open_beside(path: Path) -> RocksStore:
    """Open an empty store in a new folder beside one that is in use."""
    _sweep(path)
    for number in count():
        folder = path.with_name(f"{path.name}-{os.getpid()}-{number}")
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue
        except OSError as error:
            raise LocalStoreError(f"{folder} cannot be created: {error}") from error
        return RocksStore(folder, temporary=True)
    raise AssertionError


def _sweep(path: Path) -> None:
    """Delete the folders that `_open_beside` created in processes that ended before they closed them."""
    name = re.compile(re.escape(path.name) + r"-(\d+)-\d+")
    for folder in path.parent.iterdir():
        match = name.fullmatch(folder.name)
        # Our own folders must not be touched: locks do not hold within a process, and closing a lock file ends them.
        if not match or int(match[1]) == os.getpid():
            continue
        try:
            with (folder / _SUBFOLDER / "LOCK").open("r+b") as lock:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
        except OSError:
            continue
