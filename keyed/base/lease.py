"""`Lease`: a lock on a file or folder, which a process holds until it ends.

The lock ends with the process, even if it is killed. A forked child does not share it: it would keep the lock after its
parent was killed.
"""

from __future__ import annotations

import errno
import fcntl
import os
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
