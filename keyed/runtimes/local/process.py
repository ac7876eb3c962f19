"""What a local run does to the process that it is in.

SIGTERM and Ctrl-C end it after the batch that is running, with its changelogs flushed; and Python's cyclic garbage
collector runs between batches.
"""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn, Self

_DEFAULTS: dict[int, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}


class Interrupted(BaseException):
    """Breaks off the wait for a source."""


@contextmanager
def watched(on_signal: Callable[[int], object]) -> Iterator[None]:
    """Call a function when the program is asked to stop, unless it sees to that itself, or this is another thread.

    Args:
        on_signal: Gets the number of the signal. It runs between any two steps of the main thread.
    """
    mine = []
    if threading.current_thread() is threading.main_thread():
        mine = [number for number, default in _DEFAULTS.items() if signal.getsignal(number) == default]
    for number in mine:
        signal.signal(number, lambda number, _: on_signal(number))
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, _DEFAULTS[number])


def leave(number: int) -> NoReturn:
    """End the program as the signal does by itself."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


#: All objects are looked at when this many times as long has passed as it took the last time: 2 % of the time at most.
_TIMES = 50
#: CPU-seconds before the first time. A shorter run pays nothing for what the program held before it.
_FIRST = 0.5


class Collector:
    """Switches the automatic collector off, and collects between batches instead. Afterwards it is as it was before.

    Rows are freed by reference counts; looking for cycles among a million of them costs a third of the run. What lived
    before the first collection of all objects is not looked at again: it is mostly modules.
    """

    def __enter__(self) -> Self:
        self._was_on = gc.isenabled()
        gc.disable()
        self._is_first, self._has_frozen = True, False
        self._next = time.process_time() + _FIRST
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._has_frozen:
            gc.unfreeze()
        if self._was_on:
            gc.enable()

    def collect(self) -> None:
        """Collect what the last batch left, and now and then all there is. Called between batches."""
        started = time.process_time()
        if started < self._next:
            gc.collect(0)
            return
        gc.collect()
        if self._is_first:  # the next one, after the next batch, takes as long as those after it
            self._is_first = False
            self._has_frozen = gc.get_freeze_count() == 0
            if self._has_frozen:
                gc.freeze()
            return
        ended = time.process_time()
        self._next = ended + _TIMES * (ended - started)
