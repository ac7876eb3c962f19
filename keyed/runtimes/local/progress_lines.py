"""The progress of a run for the program's user: a log line every few seconds, and a moving line on a terminal."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO

from keyed.base.arguments import clock_text
from keyed.job.results import Progress

_log = logging.getLogger(__name__)
#: Seconds between two log lines, and between two states of the moving line.
_LOGGED, _MOVED = 5.0, 0.5
_ERASE = "\r\x1b[K"


class ProgressLines:
    """Reports a run as it goes on.

    Args:
        name: Name of the last operator.
        terminal: The terminal for the moving line; ``None`` for none.
        clock: Returns seconds.
    """

    def __init__(
        self, name: str, terminal: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._terminal = terminal
        self._clock = clock
        self._rows = self._batches = 0
        self._watermark: int | None = None
        now = clock()
        #: When the next line is due, and when the last one came, with its rows.
        self._next_logged, self._logged = now + _LOGGED, (now, 0)
        self._next_moved, self._moved = now + _MOVED, (now, 0)
        self._is_shown = False

    def add(self, progress: Progress) -> None:
        """Add a committed batch."""
        self._rows += progress.rows
        self._batches += 1
        self._watermark = progress.watermark
        self.look()

    def look(self) -> None:
        """Write the lines that are due."""
        now = self._clock()
        if now >= self._next_logged:
            _log.info("%r: %s", self._name, self._text(now, self._logged))
            self._next_logged, self._logged = now + _LOGGED, (now, self._rows)
        if self._terminal is not None and now >= self._next_moved:
            # With the cursor at its start, other output replaces the line.
            self._terminal.write(f"{_ERASE}{self._text(now, self._moved)}\r")
            self._terminal.flush()
            self._is_shown = True
            self._next_moved, self._moved = now + _MOVED, (now, self._rows)

    def close(self) -> None:
        """Erase the moving line."""
        if self._terminal is not None and self._is_shown:
            self._is_shown = False
            self._terminal.write(_ERASE)
            self._terminal.flush()

    def _text(self, now: float, before: tuple[float, int]) -> str:
        since, rows = before
        rate = (self._rows - rows) / max(now - since, 1e-9)
        text = f"{self._rows:,} rows in {self._batches:,} batches, {rate:,.0f} rows/s"
        return text if self._watermark is None else f"{text}, watermark {clock_text(self._watermark)}"


def terminal_of(*, prints: bool) -> TextIO | None:
    """Return the terminal for a moving line: that of stderr, unless other output is expected there.

    Args:
        prints: True if the run calls functions of the user that may print rows.
    """
    if not _is_terminal(sys.stderr) or (prints and _is_terminal(sys.stdout)):
        return None
    # The log lines are enough.
    return None if _log.isEnabledFor(logging.INFO) else sys.stderr


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        # It is closed.
        return False
