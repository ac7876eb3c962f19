"""Shifted clocks of `time` and `datetime` for the user's own code.

A second run a few milliseconds after the first one is on the same day, usually in the same second, and before every
time-out. In the process of `keyed.testing.other_process` the user's code reads a clock that is more than a year ahead,
at another time of day, and advances by a minute at each read. A script that reads one is run again with the time of
its rows, and with one before them. Libraries read the machine's clock.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from typing import Any

#: Another year, month, day of the month and of the week, hour, minute and second.
_AHEAD = 401 * 86_400 + 5 * 3_600 + 17 * 60 + 23.457
_PER_LOOK = 61.7
#: Folders of libraries.
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")})


class MovedClocks:
    """The clocks of a process, which must not be used for anything else; moved before user code is imported.

    Attributes:
        dated: Number of reads of the time of day.
    """

    def __init__(self) -> None:
        self.dated = 0
        self._looks = 0
        self._ahead = _AHEAD
        self._now = time.time
        _move(self)

    @contextmanager
    def at(self, instant: float) -> Iterator[None]:
        """Make it this time of day at the next read, in seconds since the epoch."""
        self._ahead = instant - self._now() - _PER_LOOK * self._looks
        try:
            yield
        finally:
            self._ahead = _AHEAD

    def shift(self, *, elapsed: bool) -> float:
        """Count a read, and return the shift of the clock in seconds; ``elapsed`` for one without an epoch."""
        shift = (_AHEAD if elapsed else self._ahead) + _PER_LOOK * self._looks
        self._looks += 1
        self.dated += not elapsed
        return shift


def _move(clocks: MovedClocks) -> None:
    now, time_ns = time.time, time.time_ns

    def moved(*, elapsed: bool = False) -> float:
        """Return the shift of the clock for the caller's caller."""
        user = is_of_user(sys._getframe(2).f_globals)  # noqa: SLF001 - there is no other way to the caller
        return clocks.shift(elapsed=elapsed) if user else 0

    def reading(real: Callable[[], Any], units: Callable[[float], Any] = float) -> Callable[[], Any]:
        elapsed = real not in (now, time_ns)

        @wraps(real)
        def read() -> Any:
            return real() + units(moved(elapsed=elapsed))

        return read

    def shown(real: Callable[..., Any], number: int) -> Callable[..., Any]:
        """Return a function of the time that uses the moved clock if called with at most this many arguments."""

        @wraps(real)
        def show(*arguments: Any) -> Any:
            if len(arguments) > number:
                return real(*arguments)
            instant: Any = now() + moved()
            return real(*arguments, instant if number == 0 and real is not asctime else localtime(instant))

        return show

    localtime, asctime = time.localtime, time.asctime
    for name in ("time", "monotonic", "perf_counter"):
        setattr(time, name, reading(getattr(time, name)))
        setattr(time, f"{name}_ns", reading(getattr(time, f"{name}_ns"), lambda seconds: int(seconds * 1e9)))
    for name, name_and_position in (("localtime", 0), ("gmtime", 0), ("ctime", 0), ("asctime", 0), ("strftime", 1)):
        setattr(time, name, shown(getattr(time, name), name_and_position))

    def present(cls: type[datetime], tz: Any = None) -> datetime:
        return cls.fromtimestamp(now() + moved(), tz)

    def present_utc(cls: type[datetime]) -> datetime:
        return cls.fromtimestamp(now() + moved(), UTC).replace(tzinfo=None)

    # `date.today` and `datetime.today` call `time.time`; these two do not, and attributes of their class cannot be set.
    methods: Any = gc.get_referents(datetime.__dict__)[0]
    methods |= {"now": classmethod(present), "utcnow": classmethod(present_utc)}
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime))


def is_of_user(names: Mapping[str, Any]) -> bool:
    """Return true if code with these globals is neither that of a library nor part of keyed."""
    if str(names.get("__name__")).partition(".")[0] in ("keyed", "windows"):
        return False
    file = str(names.get("__file__") or names.get("__spec__") or "")
    return not file.startswith(LIBRARIES) and "frozen" not in file
