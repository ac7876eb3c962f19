"""Separation of Spark's output from the program's: its start-up lines, its log, the output of its Python workers.

A JVM and its workers write to the standard error of the program that starts the JVM. Inside of `to_file`, file
descriptor 2 is a log file, which a starting JVM inherits. Afterwards the program's standard error is restored. Text
that another thread of the program writes to it in these seconds also goes to the file.

The file ``log`` is in a `ScratchFolder`, which is removed when the program ends, or by a later program if it was
killed. A log that an error names is moved beside that folder, under its name with ``.log``. The three latest logs of
programs that have ended are kept for a week.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from keyed.stores.scratch import ScratchFolder

_OLD_SECONDS = 7 * 86_400.0
#: Number of logs of ended programs that are kept.
_KEPT = 3
#: Held while standard error is the log: a second thread would otherwise take the log for the program's own standard
#: error.
_redirecting = threading.Lock()
#: The folder of this program's log, if its JVM writes to one.
_folder: ScratchFolder | None = None


@contextmanager
def to_file() -> Iterator[None]:
    """Redirect the output of a JVM that starts inside of the context to a log file."""
    global _folder  # noqa: PLW0603 - a program has one JVM
    with _redirecting:
        if _folder is None:
            _folder = ScratchFolder("spark")
            atexit.register(_folder.close)
            _sweep(_folder.path.parent)
        # It exists already if this is the program's second JVM.
        named = _named(_folder)
        log = named if named.exists() else _folder.path / "log"
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        sys.stderr.flush()
        own = os.dup(2)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        try:
            yield
        except Exception as error:
            name_log(error)
            raise
        finally:
            sys.stderr.flush()
            os.dup2(own, 2)
            os.close(own)


def name_log(error: BaseException) -> None:
    """Add the path of Spark's log to an error. The log is kept then."""
    if _folder is None:
        return
    log, named = _folder.path / "log", _named(_folder)
    with suppress(FileNotFoundError):
        if log.stat().st_size:
            log.rename(named)
    if named.exists():
        error.add_note(f"Spark's log: {named}")


def _named(folder: ScratchFolder) -> Path:
    """Return the path of a log that an error has named."""
    return folder.path.with_suffix(".log")


def _sweep(parent: Path) -> None:
    """Delete logs of this user's ended programs except the latest."""
    files: list[tuple[float, Path]] = []
    for path in parent.glob("keyed-spark-*.log"):
        with suppress(OSError):
            status = path.lstat()
            # The folder exists while the program runs.
            if status.st_uid == os.getuid() and not path.with_suffix("").exists():
                files.append((status.st_mtime, path))
    for number, (changed, path) in enumerate(sorted(files, reverse=True)):
        if number >= _KEPT or changed < time.time() - _OLD_SECONDS:
            with suppress(OSError):
                path.unlink()


def _unlock() -> None:
    """Create a new lock in a forked process: a thread of the parent may have held the old one."""
    global _redirecting  # noqa: PLW0603 - see above
    _redirecting = threading.Lock()


os.register_at_fork(after_in_child=_unlock)
