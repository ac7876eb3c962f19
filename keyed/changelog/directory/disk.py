"""File operations of the directory log, and the translation of their errors.

A file is written under a temporary name, synced, and then *published*: linked under its final name, which fails if that
name is taken, on NFS too. A file under its final name is therefore complete and never replaced, and of two writers that
race for a name one loses. The folder is synced before a publication counts. A *staged* file is written and synced, and
may be published by another process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from keyed.base.ids import random_id
from keyed.base.private_files import file_mode, make_private
from keyed.errors import ChangelogError

_LEFTOVER = ".tmp"
_STAGED = ".staged"
#: Longer than any write takes: older temporary files were left by writers that died.
_LEFTOVER_SECONDS = 24 * 60 * 60.0
_REMEDIES = {
    errno.ENOSPC: "free space, compact the log or raise the limit; committed data is safe",
    errno.EDQUOT: "free space, compact the log or raise the quota; committed data is safe",
    errno.EROFS: "mount the file system writable",
    errno.EACCES: "give this process access to the folder",
    errno.ENOLCK: "use a file system with locks",
    errno.EPERM: "use a file system with hard links, and give this process access to the folder",
    errno.ENOTSUP: "use a file system with hard links",
    errno.EIO: "check the disk",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ESTALE: "another machine has removed it, as compaction does; read again",
}


@contextmanager
def _translated_errors(action: str, path: Path) -> Iterator[None]:
    """Translate errors of the operating system into errors with the operation, the file and the remedy."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "check the folder and the file system")
        raise ChangelogError(f"{path} cannot be {action}: {error.strerror or error}; {remedy}") from error


class OpenFile:
    """A file that is open for reading. It stays readable when its name is removed.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: It does not exist.
        ChangelogError: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        missing: FileNotFoundError | None = None
        with _translated_errors("opened", path):
            try:
                self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError as error:
                missing = error
        if missing is not None:
            raise missing
        with _translated_errors("opened", path):
            try:
                self.size = os.fstat(self._file).st_size
            except OSError:
                os.close(self._file)
                raise

    def read(self, offset: int, size: int) -> bytes:
        """Return the bytes from ``offset`` on; fewer than ``size`` only at the end of the file."""
        parts = []
        while size > 0:
            with _translated_errors(f"read at byte {offset}", self.path):
                part = os.pread(self._file, size, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return b"".join(parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Its descriptor may be reused for another file.
        file, self._file = self._file, -1
        with suppress(OSError):
            os.close(file)


def read_file(path: Path) -> bytes | None:
    """Return the content of a small file, or ``None`` if there is none.

    Raises:
        ChangelogError: It cannot be read.
    """
    try:
        with OpenFile(path) as file:
            return file.read(0, file.size)
    except FileNotFoundError:
        return None


def make_folder(path: Path, *, group: bool = False) -> None:
    """Create a folder with its parents durably, even if an earlier creator died before the sync.

    Args:
        path: The folder.
        group: Let the group read its content.

    Raises:
        ChangelogError: It cannot be created.
    """
    with _translated_errors("created", path):
        missing = make_private(path, group=group)
    for folder in missing or [path]:
        sync_folder(folder.parent)


def publish(path: Path, chunks: Iterable[bytes]) -> bool:
    """Write a file, unless one of this name exists.

    Args:
        path: The file.
        chunks: Its content. An error of the iteration propagates, and nothing is published.

    Returns:
        True if it was written. Either way a complete file of this name exists, durably.

    Raises:
        ChangelogError: It cannot be written. Unless only the last step failed, no file of this name exists.
    """
    temporary = path.with_name(f".{path.name}.{random_id()}{_LEFTOVER}")
    try:
        _write_new(temporary, chunks, path)
        with _translated_errors("written", path):
            published = _link(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()
    sync_folder(path.parent)
    return published


def stage(path: Path, attempt: str, chunks: Iterable[bytes]) -> None:
    """Write a file that may be published under a name later, perhaps by another process.

    Args:
        path: The name.
        attempt: Identity of the staged file. Others may be staged for the same name.
        chunks: Its content.

    Raises:
        ChangelogError: It cannot be written. Nothing is staged then.
    """
    try:
        _write_new(_staged(path, attempt), chunks, path)
    except BaseException:
        unstage(path, attempt)
        raise


def publish_staged(path: Path, attempt: str) -> bool:
    """Publish a staged file under its name.

    Returns:
        True if it was published. If not, another file of this name exists, or this attempt is not staged.

    Raises:
        ChangelogError: It cannot be published.
    """
    staged = _staged(path, attempt)
    with _translated_errors("written", path):
        try:
            published = _link(staged, path)
        except FileNotFoundError:
            return False
    # The staged file is removed last: while it exists, the name may not be durable.
    sync_folder(path.parent)
    unstage(path, attempt)
    return published


def is_staged(path: Path, attempt: str) -> bool:
    """Return true if an attempt is staged for a name.

    Raises:
        ChangelogError: The folder cannot be read.
    """
    return exists(_staged(path, attempt))


def unstage(path: Path, attempt: str) -> None:
    """Remove the staged files of a name."""
    with suppress(OSError):
        _staged(path, attempt).unlink()


def _staged(path: Path, attempt: str) -> Path:
    return path.with_name(f".{path.name}.{attempt}{_STAGED}{_LEFTOVER}")


def _write_new(temporary: Path, chunks: Iterable[bytes], path: Path) -> None:
    """Write and sync a file that is to be published as ``path``."""
    with _translated_errors("written", path):
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with _translated_errors("written", path):
            os.fchmod(file, file_mode(path.parent))
        # Outside of the translation of errors: errors of the chunks propagate unchanged.
        for chunk in chunks:
            with _translated_errors("written", path):
                _write(file, chunk)
        with _translated_errors("written", path):
            os.fsync(file)
    finally:
        with _translated_errors("written", path):
            os.close(file)


def _write(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        count = os.write(file, rest)
        if not count:
            raise OSError(errno.EIO, "nothing was written")
        rest = rest[count:]


def _link(temporary: Path, path: Path) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        # Over NFS the reply to a successful link may be lost, and the retry finds the name taken.
        return temporary.samefile(path)
    return True


def sync_folder(path: Path) -> None:
    """Sync a folder, so that its list of files is durable.

    Raises:
        ChangelogError: The disk fails.
    """
    with _translated_errors("synced", path):
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def exists(path: Path) -> bool:
    """Return true if a file of this name exists.

    Raises:
        ChangelogError: The folder cannot be read.
    """
    with _translated_errors("read", path), suppress(FileNotFoundError):
        path.stat()
        return True
    return False


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the files of a folder with their sizes; empty if there is no such folder.

    Raises:
        ChangelogError: It cannot be read.
    """
    sizes = {}
    with _translated_errors("read", folder), suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                sizes[entry.name] = entry.stat().st_size
    return sizes


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Hold a lock, which ends with its process.

    Args:
        path: The file of the lock; created if missing, and never removed.
        wait: Wait while another process holds it.

    Returns:
        True if it is held.

    Raises:
        ChangelogError: The file system has no locks.
    """
    with _translated_errors("locked", path):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        held = True
        with _translated_errors("locked", path):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                held = False
        yield held
    finally:
        # The lock is released even if closing the file fails.
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
        with suppress(OSError):
            os.close(file)


def remove(paths: Iterable[Path]) -> None:
    """Remove files; missing ones are ignored.

    Raises:
        ChangelogError: One cannot be removed.
    """
    for path in paths:
        with _translated_errors("removed", path):
            path.unlink(missing_ok=True)


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Remove incomplete files of dead writers, and all staged files: valid ones are written again."""
    for name in names:
        if name.endswith(_LEFTOVER):
            with suppress(OSError):
                old = (folder / name).stat().st_mtime < time.time() - _LEFTOVER_SECONDS
                if old or name.endswith(_STAGED + _LEFTOVER):
                    (folder / name).unlink()
