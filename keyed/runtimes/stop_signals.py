"""Ctrl-C and SIGTERM while a query runs: its runtime ends it, unless the program has handlers of its own."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn


@contextmanager
def handled_signals(handle: Callable[[int], object]) -> Iterator[None]:
    """Call a function at a stop signal, unless the program has its own handler, or this is not the main thread.

    Args:
        handle: Called with the number of the signal, between any two steps of the main thread.
    """
    before: dict[int, Any] = {}
    # Python delivers signals to the main thread.
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        before = {number: handler for number, handler in handlers.items() if _is_usual(number, handler)}
    for number in before:
        signal.signal(number, lambda number, _: handle(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave(number: int) -> NoReturn:
    """End the program with the default action of the signal."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def _is_usual(number: int, handler: Any) -> bool:
    """Return true if a handler is Python's default, or the one of a Spark session."""
    if number == signal.SIGTERM:
        return bool(handler == signal.SIG_DFL)
    return handler is signal.default_int_handler or getattr(handler, "__module__", "").startswith("pyspark.")
