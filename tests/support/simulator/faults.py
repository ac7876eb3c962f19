"""Faults of a simulation, drawn from its seed, and a disk on which any call may fail."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

_CALLS = ("open", "write", "fsync", "close", "link", "unlink", "mkdir", "stat", "fstat", "pread", "scandir")
_RANDOM = re.compile(r"\.[0-9a-f]{8,}(?=\.)")
_ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT)


class Died(Exception):
    """A worker died during its work."""


class Faults:
    """Decides which faults occur, and records them.

    Args:
        random: Source of randomness.
        script: The record.

    Attributes:
        resting: No faults occur while it is true.
        late: Writes that have not arrived yet.
    """

    def __init__(self, random: Random, script: list[str]) -> None:
        self.random = random
        self.script = script
        self.resting = True
        self.late: list[Callable[[], object]] = []

    def strikes(self, what: str, chance: float) -> bool:
        """Return true if a fault occurs now."""
        if self.resting or self.random.random() >= chance:
            return False
        self.script.append(f"    {what}")
        return True


class FaultyDisk:
    """The calls to the file system under a folder: any of them may fail, writes are torn, and links appear late.

    A power failure loses unsynced data: the end of a file's data, and names in folders.

    Args:
        root: The folder.
        faults: Decides which faults occur.
        power_fails: Called when the power fails; the caller of the disk ends then.
    """

    def __init__(self, root: Path, faults: Faults, power_fails: Callable[[], object]) -> None:
        self._root = str(root)
        self._faults = faults
        self._power_fails = power_fails
        #: Paths of open files by descriptor.
        self._open: dict[int, str] = {}
        #: Names of files with unsynced data by inode, and names that are not synced.
        self._data: dict[int, set[str]] = {}
        self._names: set[str] = set()
        self._copies = 0

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Replace the real disk."""
        with ExitStack() as stack:
            for name in _CALLS:
                stack.enter_context(patch.object(os, name, partial(self._called, name, getattr(os, name))))
            yield

    def _called(self, name: str, real: Any, *arguments: Any, **options: Any) -> Any:
        path = self._path(arguments[0])
        if path is None:
            return real(*arguments, **options)
        self._may_fail(name, path)
        own = getattr(self, f"_call_{name}", None)
        return real(*arguments, **options) if own is None else own(path, real, *arguments, **options)

    def _path(self, first: Any) -> str | None:
        """Return the path argument of a call, ``None`` if it is outside the folder."""
        if isinstance(first, int):
            return self._open.get(first)
        path = os.fspath(first)
        return path if isinstance(path, str) and path.startswith(self._root) else None

    def _described(self, call: str, path: str) -> str:
        # Random names do not help a reader, and differ between runs.
        return f"disk: {call} {_RANDOM.sub('', path[len(self._root) + 1 :])}"

    def _may_fail(self, name: str, path: str) -> None:
        faults = self._faults
        # Closing never fails, as when a process ends.
        if name == "close":
            return
        if faults.strikes(self._described(name, path) + " fails", 0.003):
            raise _error(faults.random.choice(_ERRORS))
        if faults.strikes(f"the power fails at {name}", 0.001):
            self._lose()

    def _lose(self) -> None:
        """Lose unsynced data, and die."""
        random, self._faults.resting = self._faults.random, True
        for name in sorted(self._names):
            if random.random() < 0.5:
                with suppress(FileNotFoundError):
                    Path(name).rename(f"{self._root}/.lost")
        for names in self._data.values():
            for name in sorted(names):
                with suppress(FileNotFoundError):
                    os.truncate(name, random.randint(0, Path(name).lstat().st_size))
                    break
        self._data.clear()
        self._names.clear()
        self._power_fails()
        raise Died

    def _call_open(self, path: str, real: Any, name: Any, flags: int, *more: Any, **options: Any) -> int:
        file: int = real(name, flags, *more, **options)
        self._open[file] = path
        if flags & os.O_EXCL:
            self._data[os.lstat(path).st_ino] = {path}
        return file

    def _call_write(self, path: str, real: Any, file: int, data: Any) -> int:
        faults = self._faults
        some = memoryview(data)[: faults.random.randint(1, len(data))] if len(data) else data
        if faults.strikes(self._described("write of", path) + f" takes {len(some)} bytes", 0.01):
            return int(real(file, some))
        if faults.strikes(self._described("write of", path) + " is torn off", 0.005):
            real(file, some)
            raise _error(errno.ENOSPC)
        return int(real(file, data))

    def _call_fsync(self, path: str, real: Any, file: int) -> None:
        real(file)
        self._data.pop(os.fstat(file).st_ino, None)
        self._names = {name for name in self._names if os.path.dirname(name) != path}  # noqa: PTH120 - text

    def _call_close(self, path: str, real: Any, file: int) -> None:
        del self._open[file]
        real(file)

    def _call_link(self, path: str, real: Any, source: Any, target: Any) -> None:
        faults, described = self._faults, self._described("link of", os.fspath(target))
        if faults.strikes(f"{described} appears late", 0.01):
            self._copies += 1
            copy = f"{self._root}/.late{self._copies}"
            real(source, copy)
            faults.late.append(lambda: self._linked(real, copy, target))
            raise _error(errno.EIO)
        self._linked(real, source, target)
        if faults.strikes(f"{described} has no answer", 0.01):
            raise _error(errno.EIO)

    def _linked(self, real: Any, source: Any, target: Any) -> None:
        real(source, target)
        name = os.fspath(target)
        self._names.add(name)
        names = self._data.get(os.lstat(name).st_ino)
        if names is not None:
            names.add(name)


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
