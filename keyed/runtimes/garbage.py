"""Python's cyclic garbage collector while batches run: rarer than by default, and bounded in objects and in bytes.

By default Python looks for cycles after every 700 new objects. In a batch of many rows nearly all of those are alive,
and looking at them again and again costs a third of the run. Reference counts free rows anyway.

Two bounds hold instead, also within a batch:

- **Objects.** The automatic collector runs after `_YOUNG` objects that were not freed. Its older generations follow as
  Python's do, so cyclic garbage is a few times that number of objects at most, plus a quarter of the objects that live.
- **Bytes.** A cycle may hold a large buffer, so a few objects may be much memory. When the process has grown by a
  quarter, and by `_STEP_BYTES` at least, since the last time, all generations are collected, and the C library returns
  what is free to the system.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from threading import Lock
from types import TracebackType
from typing import Any, Self

from keyed.engine.batch import Chunk

#: New objects before the young generation is collected; and how often that is before an older one is.
_YOUNG, _OLDER = 200_000, 5
#: Growth of the process in bytes before everything is collected.
_STEP_BYTES = 64 << 20
#: Rows between two looks at the size of the process.
_ROWS = 1000


class _Thresholds:
    """The thresholds of the collector, which queries of a process that run at one time change together."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = 0
        self._before = gc.get_threshold()

    def raise_(self) -> None:
        with self._lock:
            if not self._users:
                self._before = gc.get_threshold()
                gc.set_threshold(_YOUNG, _OLDER, _OLDER)
            self._users += 1

    def restore(self) -> None:
        """Restore what the program had when the first came, if this is the last."""
        with self._lock:
            self._users -= 1
            if not self._users:
                gc.set_threshold(*self._before)


_THRESHOLDS = _Thresholds()


class Collector:
    """Keeps the collector to the two bounds while it is entered. Afterwards its thresholds are as they were before.

    A program that has switched the collector off keeps it so; only the bound in bytes holds then.
    """

    def __enter__(self) -> Self:
        _THRESHOLDS.raise_()
        self._set_limit()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _THRESHOLDS.restore()

    def collect(self) -> None:
        """Collect all garbage if the process has grown."""
        if resident_bytes() > self._limit:
            gc.collect()
            return_free_memory()
            self._set_limit()

    def within(self, chunks: Callable[[], Iterable[Chunk]]) -> Callable[[], Iterator[Chunk]]:
        """Return the same rows in smaller chunks; between these the process is looked at."""

        def smaller() -> Iterator[Chunk]:
            for keys, timestamps, elements, sides in chunks():
                rest: Iterator[Any] = iter(elements)
                for start in range(0, len(keys), _ROWS):
                    part = slice(start, start + _ROWS)
                    times, of_sides = timestamps and timestamps[part], sides and sides[part]
                    self.collect()
                    yield keys[part], times, islice(rest, _ROWS), of_sides

        return smaller

    def _set_limit(self) -> None:
        size = resident_bytes()
        self._limit = size + max(_STEP_BYTES, size // 4)


def resident_bytes() -> int:
    """Return the memory that this process has; where the system does not report it, the most that it has had."""
    try:
        statistics = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak << 10
    try:
        return int(os.read(statistics, 256).split()[1]) * resource.getpagesize()
    finally:
        os.close(statistics)


def return_free_memory() -> None:
    """Return what the C library holds for later use to the system, where the library can."""
    trim = _trim()
    if trim is not None:
        trim(0)


@lru_cache(maxsize=1)
def _trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
