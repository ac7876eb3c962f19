"""Ctrl-C and SIGTERM while this program waits for its query.

A signal is recorded, and handled between two calls into the JVM: an exception during a call would corrupt the
connection, and the query could not be stopped over it. The second signal ends the program at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs


class Stopped(SystemExit, KeyboardInterrupt):
    """Ctrl-C or SIGTERM has stopped the program. If unhandled, it ends the program without a traceback."""


@attrs.define
class Signals:
    """The received signals.

    Attributes:
        received: Number of the first signal.
    """

    received: int | None = None

    def note(self, number: int, _: object) -> None:
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
        # Python delivers signals to the main thread.
        yield Signals()
        return
    if _noting:
        yield _noting[-1]
        return
    signals = Signals()
    handlers: dict[int, Any] = {
        number: signal.signal(number, signals.note)
        for number in (signal.SIGINT, signal.SIGTERM)
        if _is_usual(number, signal.getsignal(number))
    }
    _noting.append(signals)
    try:
        yield signals
    finally:
        _noting.pop()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if signals.received is not None:
        raise signals.stopped()


def _is_usual(number: int, handler: Any) -> bool:
    """Return true if a handler is Python's default, or the one of a Spark session."""
    if number == signal.SIGTERM:
        return bool(handler == signal.SIG_DFL)
    return handler is signal.default_int_handler or getattr(handler, "__module__", "").startswith("pyspark.")
