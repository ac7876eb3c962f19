"""Reports of a run for the program's user: its progress in the local runtime, and warnings on both runtimes.

Progress is a log line every few seconds, and a moving line on a terminal. Warnings come once per query, about likely
mistakes and their remedies.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TextIO

from keyed.base.arguments import clock_text
from keyed.job.explanation import waited_inputs
from keyed.job.functions import combines
from keyed.job.graph import BoundOutput, Port, Stage
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


#: 1990 and 2100, in seconds since the epoch.
_SECONDS = range(631_152_000, 4_102_444_800)
#: Units per second, and the conversion to milliseconds.
_UNITS = {"seconds": (1, "* 1000"), "microseconds": (10**6, "// 1000"), "nanoseconds": (10**9, "// 1_000_000")}
#: An input that holds the watermark is named after so many batches with rows and so many milliseconds, or at the end of
#: the input.
_HELD_BATCHES, _HELD_MS = 5, 10_000


class UsageWarnings:
    """Checks the batches of one run.

    Args:
        last: Last stage of the run.
        outputs: Its outputs that have a sink.
    """

    def __init__(self, last: Stage, outputs: Iterable[BoundOutput]) -> None:
        sources = last.sources
        self._source = source = sources[0]
        self._read: dict[str, set[str]] = defaultdict(set)
        for bound in outputs:
            if bound.output.tag is not None:
                self._read[bound.output.stage.name].add(bound.output.tag.name)
        for each in (each for stage in last.chain for each in stage.inputs):
            if isinstance(each.origin, Port) and each.origin.tag is not None:
                self._read[each.origin.stage.name].add(each.origin.tag.name)
        self._emitted: dict[str, set[str]] = defaultdict(set)
        self._last = last
        #: The holding input of each operator whose watermark is held, since which processing time, and the batches.
        self._held: dict[str, tuple[int, int, int]] = {}
        self._holders_warned: set[tuple[str, int]] = set()
        self._units_warned = source.time is None
        self._dropped_warned = source.time is None or all(each.watermark_given for each in sources)

    def look(self, progress: Progress, highest: int | None, holders: Mapping[str, int | None]) -> None:
        """Check a committed batch.

        Args:
            progress: The batch.
            highest: The highest timestamp of its rows, ``None`` if it has none.
            holders: The input that held the watermark of each operator, as `keyed.engine.batch.Advance` has it.
        """
        if not self._units_warned and highest is not None and (note := unit_warning(highest)):
            self._units_warned = True
            _log.warning("timestamp %r is read as milliseconds%s", self._source.timestamp, note)
        if not self._dropped_warned:
            self._look_at_dropped(progress)
        for operator, holder in holders.items():
            before = self._held.pop(operator, None)
            if holder is not None:
                since = progress.processing_time if before is None or before[0] != holder else before[1]
                self._held[operator] = holder, since, progress.metrics[operator]["batches_held"]
                if progress.processing_time - since >= _HELD_MS:
                    self._name_holder(operator)

    def emitted(self, operator: str, side_outputs: Iterable[str]) -> None:
        """Record the side outputs to which an operator has emitted."""
        self._emitted[operator].update(side_outputs)

    def end(self, *, of_input: bool) -> None:
        """Warn about a side output with a sink that got no rows while another one did: its name is likely misspelt.

        Args:
            of_input: True if the sources have ended: rows that wait for an input are then reported at once.
        """
        for operator in self._held if of_input else ():
            self._name_holder(operator)
        for operator, read in self._read.items():
            emitted = self._emitted[operator]
            if (empty := read - emitted) and (unread := emitted - read):
                _log.warning(
                    "operator %r: the side output %s got no rows, and %s, which did, has no sink; check the names",
                    operator,
                    _listed(empty),
                    _listed(unread),
                )

    def _name_holder(self, operator: str) -> None:
        """Warn about the input that holds the watermark of an operator, once each."""
        holder, _, batches = self._held[operator]
        stage = next(each for each in self._last.chain if each.name == operator)
        read = stage.source_inputs.get(holder)
        has_limit = read is not None and read.source.watermark.idleness_ms is not None
        if has_limit or batches < _HELD_BATCHES or (operator, holder) in self._holders_warned:
            return
        self._holders_warned.add((operator, holder))
        _log.warning(
            "operator %r waits for %s: it has held the watermark for %d batches, and rows, windows and timers of the "
            "other inputs wait; if it may be silent, give its stream watermark=....with_idleness(...); batches_held "
            "counts further batches",
            operator,
            waited_inputs(self._last, stage).get(holder, "one of its inputs"),
            batches,
        )

    def _look_at_dropped(self, progress: Progress) -> None:
        combining = {stage.name for stage in self._last.chain if combines(stage.function)}
        for name, counters in progress.metrics.items():
            dropped = counters.get("rows_dropped", 0)
            if name not in combining:
                # A function may also drop rows that are not late. Combined rows have no times that could be counted.
                dropped = min(dropped, counters.get("rows_late", 0))
            if dropped:
                self._dropped_warned = True
                _log.warning(
                    "operator %r dropped %d rows as late: without a watermark delay, each row is late that comes in "
                    "a later batch than a row with a greater timestamp; give stream(..., "
                    "watermark=keyed.bounded_out_of_orderness(...)), or allow lateness; "
                    "a delay of 0 declares it as intended",
                    name,
                    dropped,
                )
                return


def unit_warning(timestamp: int) -> str:
    """Return a note on the unit of an integer time that is clearly not milliseconds; empty if it may be."""
    for unit, (many, remedy) in _UNITS.items():
        if timestamp // many in _SECONDS:
            return f": {timestamp} looks like {unit} since the epoch; give a function or column with the value {remedy}"
    return ""


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, sorted(names)))
