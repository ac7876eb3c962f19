"""Ctrl-C and SIGTERM while a query runs: its runtime ends it, unless the program has handlers of its own.

On Spark a signal is recorded, and handled between two calls into the JVM: an exception during a call would corrupt the
connection, and the query could not be stopped over it. The second signal ends the program at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import attrs


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


class Stopped(SystemExit, KeyboardInterrupt):
    """Ctrl-C or SIGTERM has stopped the program. If unhandled, it ends the program without a traceback."""


@attrs.define
class Signals:
    """The received signals.

    Attributes:
        received: Number of the first signal.
    """

    received: int | None = None

    def note(self, number: int) -> None:
        """Record a signal."""
        if self.received is not None:
            raise Stopped(128 + number)
        self.received = number

    def stopped(self) -> Stopped:
        """Return the exception to raise after all work is done."""
        assert self.received is not None
        return Stopped(128 + self.received)


_noting: list[Signals] = []


@contextmanager
def noted_signals() -> Iterator[Signals]:
    """Record signals, if the program has no handlers of its own.

    Raises:
        Stopped: At the end, if one was received.
    """
    if threading.current_thread() is not threading.main_thread():
        yield Signals()
        return
    if _noting:
        yield _noting[-1]
        return
    signals = Signals()
    _noting.append(signals)
    try:
        with handled_signals(signals.note):
            yield signals
    finally:
        _noting.pop()
    if signals.received is not None:
        raise signals.stopped()
