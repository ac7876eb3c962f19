"""Settings of Python's cyclic garbage collector while batches run: rarer than by default, bounded in objects and bytes.

By default Python looks for cycles after every 700 new objects. In a batch of many rows nearly all of them are alive,
and scanning them repeatedly costs a third of the run. Reference counts free rows anyway.

Two bounds apply instead, also within a batch:

- **Objects.** The automatic collector runs after `_YOUNG` objects that were not freed. Its older generations follow as
  Python's do, so cyclic garbage is at most a few times that number of objects, plus a quarter of the live objects.
- **Bytes.** A cycle may hold a large buffer, so a few objects may take much memory. When the process has grown by a
  quarter, and by at least 64 MiB, since the last time, all generations are collected, and the C library returns
  free memory to the system.

In Spark's Python workers, long-lived objects are excluded from the collector besides.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from threading import Lock
from typing import Any, Self

from keyed.engine.batch import Chunk
from keyed.stores.growth import GrowthBound, return_free_memory

#: Number of new objects before the young generation is collected, and of such collections before an older one is.
_YOUNG, _OLDER = 200_000, 5
#: Growth of the process, in bytes, before all generations are collected.
_STEP_BYTES = 64 << 20
#: Number of rows between two checks of the size of the process.
_ROWS = 1000


class _Thresholds:
    """The thresholds of the collector, which concurrent queries of a process share."""

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
        """Restore the program's thresholds if this is the last query."""
        with self._lock:
            if self._users:
                self._users -= 1
                if not self._users:
                    gc.set_threshold(*self._before)

    def forget_parent(self) -> None:
        """Restore the program's thresholds in a forked process: the queries run in its parent."""
        self._lock = Lock()
        if self._users:
            self._users = 0
            gc.set_threshold(*self._before)


_THRESHOLDS = _Thresholds()
os.register_at_fork(after_in_child=_THRESHOLDS.forget_parent)


class Collector:
    """Applies the two bounds to the collector inside of the context, and restores its thresholds afterwards.

    If the program has disabled the collector, it stays disabled, and only the bound in bytes applies.
    """

    def __enter__(self) -> Self:
        _THRESHOLDS.raise_()
        self._growth = GrowthBound(_STEP_BYTES, share=4)
        return self

    def __exit__(self, *_: object) -> None:
        _THRESHOLDS.restore()

    def collect(self) -> None:
        """Collect all garbage if the process has grown."""
        if self._growth.is_exceeded:
            gc.collect()
            return_free_memory()
            self._growth.reset()

    def within(self, chunks: Callable[[], Iterable[Chunk]]) -> Callable[[], Iterator[Chunk]]:
        """Return the same rows in smaller chunks, between which the size of the process is checked."""

        def smaller() -> Iterator[Chunk]:
            for keys, timestamps, elements, sides in chunks():
                rest: Iterator[Any] = iter(elements)
                for start in range(0, len(keys), _ROWS):
                    part = slice(start, start + _ROWS)
                    times, of_sides = timestamps and timestamps[part], sides and sides[part]
                    self.collect()
                    yield keys[part], times, islice(rest, _ROWS), of_sides

        return smaller


def freeze_modules() -> None:
    """Exclude long-lived objects of this process from Python's cyclic garbage collector.

    After each task Spark's worker runs the collector over all objects, and nearly all of them belong to modules: with
    pandas that is 30 ms of CPU per task. This function is called at the end of tasks, and acts if modules were imported
    since the last call.
    """
    _freeze(len(sys.modules))


@lru_cache(maxsize=1)
def _freeze(_modules: int) -> None:
    # Existing garbage would otherwise never be freed.
    gc.collect()
    gc.freeze()
