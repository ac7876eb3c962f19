"""Settings of the process of a local run.

SIGTERM and Ctrl-C end it after the running batch, with its changelogs flushed.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

_DEFAULTS: dict[int, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}


class Interrupted(BaseException):
    """Interrupts the wait for a source."""


@contextmanager
def watched(on_signal: Callable[[int], object]) -> Iterator[None]:
    """Call a function at a stop signal, unless the program has its own handler, or this is not the main thread.

    Args:
        on_signal: Called with the number of the signal, between any two steps of the main thread.
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
    """End the program with the default action of the signal."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)
