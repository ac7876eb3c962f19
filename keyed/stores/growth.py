"""Growth of this process: its size, a bound, and free memory returned to the system."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Callable
from functools import lru_cache


class GrowthBound:
    """A bound on the growth of the process since the last reset.

    Args:
        least: Growth in bytes that is always allowed.
        share: Divisor: a growth by ``1 / share`` is allowed.
    """

    def __init__(self, least: int = 16 << 20, share: int = 8) -> None:
        self._least, self._share = least, share
        self.reset()

    def reset(self) -> None:
        """Count from the current size of the process."""
        size = resident_bytes()
        self._limit = size + max(self._least, size // self._share)

    @property
    def is_exceeded(self) -> bool:
        """True if the process has grown beyond the bound."""
        return resident_bytes() > self._limit

    def trim(self) -> None:
        """Return free memory to the system if the process has grown beyond the bound.

        RocksDB fills and frees write buffers and blocks in the threads of several arenas of glibc's ``malloc``, which
        keep what is free between blocks in use. A process that writes for hours grows by that, though nothing leaks.
        """
        if self.is_exceeded:
            return_free_memory()
            self.reset()


def resident_bytes() -> int:
    """Return the memory of this process, or its peak memory if the system does not report the current value."""
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
    """Return free memory of the C library to the system, if the library supports it."""
    trim = _trim()
    if trim is not None:
        trim(0)


@lru_cache(maxsize=1)
def _trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
