"""Keeps Spark's own output apart from the program's: its start-up lines, its log, what its Python workers print.

A JVM writes to the standard error of the program that starts it, and its workers do too. While `to_file` is in force,
file descriptor 2 is a log file, and a JVM that starts meanwhile inherits it. Afterwards the program has its own
standard error back. What another thread of the program writes to it in these seconds is in the file as well.

The file is in the folder for temporary files. It is deleted when the program ends, unless an error has named it; those
that killed programs have left go after a week.
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "keyed-spark-"
_OLD_SECONDS = 7 * 86_400.0
#: Where the JVM of this program writes to, if it is a file.
_file: Path | None = None
_named = False


@contextmanager
def to_file() -> Iterator[None]:
    """Let a JVM that starts meanwhile write to a log file."""
    global _file  # noqa: PLW0603 - a program has one JVM
    if _file is None:
        _sweep(Path(tempfile.gettempdir()))
        descriptor, path = tempfile.mkstemp(prefix=_PREFIX, suffix=".log")
        _file = Path(path)
        atexit.register(_delete)
    else:
        # After the JVM before has ended.
        descriptor = os.open(_file, os.O_WRONLY | os.O_APPEND)
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
    """Let an error say where Spark's log is, which is kept then."""
    global _named  # noqa: PLW0603 - as above
    if _file is not None and _file.exists() and _file.stat().st_size:
        _named = True
        error.add_note(f"Spark's log: {_file}")


def _sweep(folder: Path) -> None:
    """Delete the logs of this user that are old."""
    for path in folder.glob(f"{_PREFIX}*.log"):
        with suppress(OSError):
            found = path.lstat()
            if found.st_uid == os.getuid() and found.st_mtime < time.time() - _OLD_SECONDS:
                path.unlink()


def _delete() -> None:
    if _file is not None and not _named:
        _file.unlink(missing_ok=True)
