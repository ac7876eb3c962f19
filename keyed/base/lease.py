"""`Lease`: a lock on a file or folder, which a process holds until it ends; and temporary folders.

The lock ends with the process, even if it is killed. A forked child does not share it: it would keep the lock after its
parent was killed.

A temporary folder is removed with its process, or by a later one. The process that created it holds a lock on the file
``lock`` in it. A folder whose lock is free belongs to a killed program; the next process that creates a folder removes
it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

from keyed.base.closing import Closeable, closing_on_error

#: Errors of file systems that have no locks.
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.EBADF)


class Lease(Closeable):
    """An exclusive lock on an existing file or folder. It also excludes others in this process.

    Args:
        path: The file or folder.
        waits: True to wait for another holder.

    Raises:
        BlockingIOError: Another process, or another lease of this one, holds it.
        FileNotFoundError: There is no such file.
        OSError: It cannot be opened, or its file system has no locks.
    """

    def __init__(self, path: str | os.PathLike[str], *, waits: bool = False) -> None:
        flags = os.O_RDONLY if Path(path).is_dir() else os.O_RDWR
        self._descriptor = os.open(path, flags | os.O_CLOEXEC)
        _HELD.add(self)
        with closing_on_error(self):
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))

    @property
    def is_held(self) -> bool:
        """True if this process holds it."""
        return self._descriptor >= 0

    def close(self) -> None:
        """End it. Closing again does nothing."""
        if self._descriptor >= 0:
            # A process that is being forked may have the descriptor for another moment.
            with suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self.forget()

    def forget(self) -> None:
        """Close the descriptor. The lock stays with the process that this one was forked from."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


_HELD: WeakSet[Lease] = WeakSet()


def _forget_parent() -> None:
    for lease in list(_HELD):
        lease.forget()


os.register_at_fork(after_in_child=_forget_parent)


#: A folder without a lock is of a version without locks, or is being created.
_OLD_SECONDS = 24 * 60 * 60.0
#: Purposes of folders; they are part of the names.
_KINDS = ("local", "harness", "flush", "reader", "tables", "checkpoint", "spark", "java", "inspect", "migrate")
_PREFIXES = tuple(f"keyed-{kind}-" for kind in _KINDS)


class ScratchFolder(Closeable):
    """An empty folder for the caller.

    Args:
        kind: Its purpose.
        parent: Its parent; the folder for temporary files by default.

    Attributes:
        path: The folder.
    """

    def __init__(self, kind: str, parent: Path | None = None) -> None:
        assert kind in _KINDS
        parent = parent or Path(tempfile.gettempdir())
        _sweep(parent)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"keyed-{kind}-", dir=parent))
            with suppress(FileNotFoundError):
                (self.path / "lock").touch(mode=0o600)
                self._lease = Lease(self.path / "lock", waits=True)
                if (self.path / "lock").exists():
                    return
                self._lease.close()
            # Another program removed it just before it was locked.

    def close(self) -> None:
        """Remove it. Closing again, or in a forked process, does nothing."""
        if self._lease.is_held:
            shutil.rmtree(self.path, ignore_errors=True)
            self._lease.close()


def _sweep(parent: Path) -> None:
    """Remove the folders of killed programs of this user."""
    with suppress(OSError), os.scandir(parent) as entries:
        for folder in [each for each in entries if each.name.startswith(_PREFIXES)]:
            with suppress(OSError):
                if folder.stat(follow_symlinks=False).st_uid == os.getuid():
                    _remove_if_left(Path(folder))


def _remove_if_left(folder: Path) -> None:
    """Remove a folder whose program has ended. The lock is held until then: a program may be creating the folder.

    Raises:
        OSError: The program is running, or the folder cannot be removed.
    """
    try:
        lease = Lease(folder / "lock")
    except FileNotFoundError:
        if folder.stat().st_mtime < time.time() - _OLD_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
        return
    with lease:
        shutil.rmtree(folder, ignore_errors=True)
