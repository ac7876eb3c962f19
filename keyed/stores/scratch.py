"""A folder for local stores that are wanted for a while, which goes with who made it, or with the next one.

While it is used there is a lock on the file ``lock`` in it. A folder whose lock is free is of a process that was
killed, and the next process that makes one removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "keyed-local-"
#: A folder without a lock is of a version that had none, or is being made.
_OLD_SECONDS = 24 * 60 * 60.0


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder of one's own."""
    _sweep(Path(tempfile.gettempdir()))
    folder, lock = _made()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _made() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / "lock").exists():
            return folder, lock
        # Another process has swept it just before it was locked.
        os.close(lock)


def _sweep(parent: Path) -> None:
    """Remove what processes of this user that were killed have left."""
    for folder in parent.glob(f"{_PREFIX}*"):
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
