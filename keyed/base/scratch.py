"""Temporary folders, which are removed with their process, or by a later one.

The process that created a folder holds a lock on the file ``lock`` in it. A folder whose lock is free belongs to a
killed program; the next process that creates a folder removes it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from keyed.base.closing import Closeable
from keyed.base.lease import Lease

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
