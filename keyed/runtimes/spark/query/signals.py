"""Ctrl-C and SIGTERM while this program waits for its query.

A signal is recorded, and handled between two calls into the JVM: an exception during a call would corrupt the
connection, and the query could not be stopped over it. The second signal ends the program at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import attrs

from keyed.runtimes.stop_signals import handled_signals


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
