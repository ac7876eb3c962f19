"""The lease on a checkpoint, which only one query of this machine can hold.

Spark detects two drivers on one checkpoint when both log the same batch. At that point the one that ends may have
replaced state files that the other one uses, and the next run finds a damaged checkpoint. A query of `run` or `start`
therefore takes the lease first, and others are refused before they have written anything.

The lease is a lock on the file ``keyed-lease`` in the checkpoint, which holds the process id of its holder. The system
releases the lock when the process ends, also after a kill. Within a process, a query that has ended hands it over.

The JVM writes the state, and may outlive a killed program: it ends when its standard input is closed, and a process
that the program has forked keeps that open. The JVM therefore locks the file ``keyed-lease-jvm`` itself, which holds
its process id, and the next query waits for a JVM that is ending.

The lease exists on file systems of this machine, and on network file systems that have locks. A checkpoint that only
Spark reaches has none, because object stores have no locks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from keyed.base.lease import NO_LOCKS, Lease
from keyed.base.private_files import file_mode
from keyed.errors import CheckpointError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAME = "keyed-lease"
_JVM_NAME = "keyed-lease-jvm"
#: Seconds that a query waits for the end of a killed program's JVM, and seconds between two checks.
_PATIENCE, _POLL = 30.0, 0.1
#: Seconds that the holder of a new lock may take to write its process id.
_WRITES = 2.0
#: Maximal number of digits of a process id.
_DIGITS = 20


class CheckpointLease:
    """A held lease on a checkpoint.

    Args:
        folder: The checkpoint, an existing folder.
        is_over: Returns true if another query of this process may take it over, because this one has ended without
            releasing it.
        session: The session whose JVM also holds it.

    Raises:
        CheckpointError: Another query holds it, or the folder cannot be written.
    """

    def __init__(self, folder: Path, is_over: Callable[[], bool], session: SparkSession | None = None) -> None:
        self.is_over = is_over
        self._jvm_file: Any = None
        self._key = os.path.realpath(folder)
        with _guard:
            before = _held.get(self._key)
            if before is not None and before.is_over():
                before.release()
            self._lock = _locked(folder)
            _held[self._key] = self
        if session is not None:
            try:
                self._jvm_file = _locked_by_jvm(folder, session)
            except BaseException:
                self.release()
                raise

    def release(self) -> None:
        """Release the checkpoint for other queries. Releasing it again does nothing."""
        with _guard:
            if _held.get(self._key) is self:
                del _held[self._key]
            jvm_file, self._jvm_file = self._jvm_file, None
            if jvm_file is not None:
                # A JVM that has ended has released its lock.
                with suppress(Exception):
                    jvm_file.close()
            if self._lock is not None:
                self._lock.close()


#: The leases of this process, by the checkpoint's real path.
_held: dict[str, CheckpointLease] = {}
_guard = RLock()


def _locked(folder: Path) -> Lease | None:
    """Return the lock; ``None`` if the file system has no locks, so that only Spark's own check applies."""
    path = folder / _NAME
    try:
        path.touch(mode=file_mode(folder))
        lock = Lease(path)
    except BlockingIOError:
        holder = _holder(path)
        raise CheckpointError(
            f"the checkpoint {folder} is in use by another run{f', of process {holder}' if holder else ''}; stop that "
            "run, or choose another folder"
        ) from None
    except OSError as error:
        if error.errno in NO_LOCKS:
            return None
        raise CheckpointError(f"the checkpoint {folder} cannot be written: {error.strerror or error}") from error
    with suppress(OSError):
        path.write_text(f"{os.getpid()}\n")
    return lock


def _holder(path: Path) -> str:
    """Return the id of the process that holds a lock; a holder writes it after it has locked the file."""
    until = time.monotonic() + _WRITES
    while not (holder := path.read_text(errors="replace")[:_DIGITS].strip()) and time.monotonic() < until:
        time.sleep(_POLL)
    return holder


def _locked_by_jvm(folder: Path, session: SparkSession) -> Any:
    """Return the file that the JVM of a session has locked; ``None`` if it cannot lock files.

    Raises:
        CheckpointError: Another JVM holds the lock, and does not end.
    """
    from py4j.protocol import Py4JError

    path = folder / _JVM_NAME
    until = time.monotonic() + _PATIENCE
    try:
        path.touch(mode=file_mode(folder))
        jvm: Any = session._jvm  # noqa: SLF001 - only the JVM itself can hold its lock
        file = jvm.java.io.RandomAccessFile(os.fspath(path), "rw")
        while file.getChannel().tryLock() is None:
            if time.monotonic() >= until:
                file.close()
                holder = path.read_text(errors="replace")[:_DIGITS].strip()
                raise CheckpointError(
                    f"the checkpoint {folder} is in use by process {holder}, the JVM of a run whose program was "
                    "killed; end that process, or choose another folder"
                )
            time.sleep(_POLL)
        path.write_text(f"{jvm.java.lang.ProcessHandle.current().pid()}\n")
    except (Py4JError, OSError):
        # A file system without locks, or managed Spark, which may allow only some methods.
        return None
    return file


def _forget() -> None:
    """Forget the leases of a forked process's parent, which keeps the locks."""
    global _guard  # noqa: PLW0603 - a thread of the parent may have held it
    _guard = RLock()
    _held.clear()


os.register_at_fork(after_in_child=_forget)
