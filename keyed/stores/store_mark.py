"""The mark of an LMDB store: it shows whether a process ended abnormally in the store, and who wrote its file last.

The file ``keyed-mark`` in the folder of the database is a frame (`keyed.codec.frames`) of kind KMRK, version 1, with

    unended (u8) | inode (u64) | size (u64) | modification (u64) | change (u64)

- Unended is the number of consecutive attempts to work in the store that did not end: their processes were killed, or
  crashed. After one the content is checked before it is used; after two the store is rebuilt without being opened, so a
  damaged file that ends processes does so twice at most.
- The rest is the status of the database's file after the last write of keyed, times in nanoseconds; zeros before it. A
  file with another status was changed by something else, or by a process that ended before it could set the
  mark, and the store is rebuilt. The modification time is set after each write, to a time that a write of another
  program within the same tick of the clock does not give.

While a process works in the store it locks the mark, so that its attempt is not taken for one that ended.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import SystemRandom
from struct import Struct

from keyed.base.private_files import make_private
from keyed.codec.frames import FRAME_OVERHEAD, frame, unframe
from keyed.errors import CorruptionError, LocalStoreError
from keyed.stores.database import explained

_NAME = "keyed-mark"
_FRAME, _VERSION = b"KMRK", 1
_MARK = Struct(">B4Q")
_SIZE = FRAME_OVERHEAD + _MARK.size
_Status = tuple[int, int, int, int]
_NO_FILE: _Status = (0, 0, 0, 0)
#: Times are set to a millisecond and random nanoseconds.
_MILLISECOND = 1_000_000
#: Number of abnormal ends after which a store is rebuilt.
_ENDS = 2
_random = SystemRandom()


class StoreMark:
    """The mark of one store, in the process that has it open.

    Args:
        folder: The folder of the database; created if missing, with its parents.
        file: Name of the database's file.

    Attributes:
        is_doubtful: True if an attempt did not end: the content is to be checked.

    Raises:
        LocalStoreError: The mark cannot be created.
    """

    def __init__(self, folder: Path, file: str) -> None:
        self._folder = folder
        self._file = folder / file
        self._watched = -1
        self._unended = 0
        self._status = _NO_FILE
        self._works = self._counts = False
        self.is_doubtful = False
        with self._translated("created"):
            make_private(folder)
            self._mark = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def begin(self) -> None:
        """Begin an attempt to work in the store. Beginning again does nothing.

        Raises:
            LocalStoreError: The store must be rebuilt.
        """
        if self._works:
            return
        try:
            fcntl.flock(self._mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._counts = True
        except OSError:
            # Another process works in the store, which is no abnormal end; or the file system has no locks.
            self._counts = False
        try:
            self._read()
            self.check()
            if self._counts:
                if self._unended >= _ENDS:
                    raise LocalStoreError(f"{self._folder}: {_ENDS} processes in a row ended while they worked in it")
                self.is_doubtful = self.is_doubtful or self._unended > 0
                self._write(self._unended + 1)
        except BaseException:
            self._unlock()
            raise
        self._works = True

    def check(self) -> None:
        """Check that keyed wrote the watched file last.

        Raises:
            LocalStoreError: Something else has changed it.
        """
        if self._read_status() == self._status:
            return
        # Another process of keyed may have written it.
        self._read()
        if self._read_status() != self._status:
            raise LocalStoreError(f"{self._folder} is damaged: something else has changed {self._file.name}")

    @contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        """Translate errors of the operating system."""
        try:
            yield
        except OSError as error:
            raise LocalStoreError(f"{self._folder} cannot be {action}: {explained(str(error))}") from error

    def written(self) -> None:
        """Record that keyed has written the watched file."""
        with self._translated("written"):
            if self._watched < 0:
                self._watched = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC)
            now = time.time_ns() // _MILLISECOND * _MILLISECOND + _random.randrange(_MILLISECOND)
            os.utime(self._watched, ns=(now, now))
            self._status = self._read_status()
        self._write(self._unended)

    def settle(self) -> None:
        """Record that a batch has run in the store in this attempt: earlier ends count no longer."""
        if self._counts and self._unended > 1:
            self._write(1)

    def end(self) -> None:
        """End the attempt. Ending again does nothing."""
        if self._works:
            self._works = False
            if self._counts:
                with suppress(LocalStoreError):
                    self._read()
                    self._write(int(self.is_doubtful))
            self._unlock()

    def close(self) -> None:
        """End the attempt, and release the files. Closing again does nothing."""
        self.end()
        self.leave()

    def leave(self) -> None:
        """Release the files without an end of the attempt, which is the parent's in a forked process."""
        self._works = False
        for each in (self._mark, self._watched):
            if each >= 0:
                os.close(each)
        self._mark = self._watched = -1

    def _unlock(self) -> None:
        if self._counts:
            self._counts = False
            with suppress(OSError):
                fcntl.flock(self._mark, fcntl.LOCK_UN)

    def _read_status(self) -> _Status:
        try:
            status = os.fstat(self._watched) if self._watched >= 0 else self._file.stat()
        except FileNotFoundError:
            return _NO_FILE
        except OSError as error:
            raise LocalStoreError(f"{self._folder} cannot be read: {error}") from error
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def _read(self) -> None:
        try:
            record = os.pread(self._mark, _SIZE + 1, 0)
            if record:
                payload = unframe(_FRAME, record, where=str(self._folder / _NAME), version=_VERSION)
                self._unended, *status = _MARK.unpack(payload)
                self._status = (status[0], status[1], status[2], status[3])
        except (OSError, CorruptionError) as error:
            raise LocalStoreError(f"{self._folder} is damaged: {error}") from error

    def _write(self, unended: int) -> None:
        self._unended = unended
        with self._translated("written"):
            os.pwrite(self._mark, frame(_FRAME, _VERSION, _MARK.pack(unended, *self._status)), 0)
