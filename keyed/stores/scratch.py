"""Folders under the temporary one, which go with whoever made them, or with a later program.

Whoever made one holds a lock on the file ``lock`` in it while it lives. A folder whose lock is free is of a program
that was killed, and whoever makes the next one removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

#: A folder without a lock is of a version that had none, or is being made.
_OLD_SECONDS = 24 * 60 * 60.0
#: What folders are made for; it is in their names.
_KINDS = ("local", "harness", "flush", "reader", "tables")


class ScratchFolder:
    """An empty folder of the caller's own.

    Args:
        kind: What it is for.

    Attributes:
        path: The folder.
    """

    def __init__(self, kind: str) -> None:
        assert kind in _KINDS
        _sweep(Path(tempfile.gettempdir()))
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"keyed-{kind}-"))
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if (self.path / "lock").exists():
                return
            # Another program has swept it just before it was locked.
            os.close(self._lock)

    def close(self) -> None:
        """Remove it. Closing again does nothing."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _sweep(parent: Path) -> None:
    """Remove what programs of this user that were killed have left."""
    for kind in _KINDS:
        for folder in parent.glob(f"keyed-{kind}-*"):
            with suppress(OSError):
                if folder.lstat().st_uid == os.getuid() and _is_left(folder):
                    shutil.rmtree(folder, ignore_errors=True)


def _is_left(folder: Path) -> bool:
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return folder.stat().st_mtime < time.time() - _OLD_SECONDS
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
