"""What hardly anyone means, said once with the remedy while a query runs: the same on both runtimes."""

from __future__ import annotations

import logging
from collections.abc import Collection

from keyed.results import Progress
from keyed.streams import Source

_log = logging.getLogger(__name__)

#: 1990 and 2100, in seconds since the epoch.
_SECONDS = range(631_152_000, 4_102_444_800)
#: How many of a unit a second has, and how to get milliseconds.
_UNITS = {"seconds": (1, "* 1000"), "microseconds": (10**6, "// 1000"), "nanoseconds": (10**9, "// 1_000_000")}


class Hints:
    """Looks at the batches of one run.

    Args:
        source: Where its rows come from.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._units_told = source.timestamp is None
        self._dropped_told = source.timestamp is None or source.watermark_given

    def look(self, progress: Progress) -> None:
        """Look at a batch that was committed."""
        if not self._units_told:
            self._look_at_unit(progress.watermark + self._source.watermark.delay_ms + 1)
        if not self._dropped_told:
            self._look_at_dropped(progress)

    def _look_at_unit(self, highest: int) -> None:
        unit = unit_of(highest)
        if unit is not None:
            self._units_told = True
            _log.warning(
                "timestamp %r: %d looks like %s since the epoch, and is taken for milliseconds; give a function or "
                "column with the value %s",
                self._source.timestamp,
                highest,
                unit,
                _UNITS[unit][1],
            )

    def _look_at_dropped(self, progress: Progress) -> None:
        for name, counters in progress.metrics.items():
            if dropped := counters.get("rows_dropped", 0):
                self._dropped_told = True
                _log.warning(
                    "operator %r dropped %d rows as late: without a delay of the watermark each row is late that "
                    "comes in a later batch than one with a greater timestamp; give stream(..., watermark="
                    "keyed.bounded_out_of_orderness(...)), or allow lateness; keyed.ascending_timestamps() says that "
                    "it is meant",
                    name,
                    dropped,
                )
                return


def unit_of(timestamp: int) -> str | None:
    """Return the unit that an integer time plainly has, where that is not milliseconds."""
    return next((unit for unit, (many, _) in _UNITS.items() if timestamp // many in _SECONDS), None)


def tell_unread(operator: str, empty: Collection[str], unread: Collection[str]) -> None:
    """Say that side outputs with a sink got no rows, and others did: it is likely a name that is written wrongly.

    Args:
        operator: Name of the operator.
        empty: Side outputs that have a sink, and got no rows.
        unread: Side outputs that got rows, and have no sink.
    """
    if empty and unread:
        _log.warning(
            "operator %r: nothing went to the side output %s, and what went to %s has no sink; look at the names",
            operator,
            ", ".join(map(repr, sorted(empty))),
            ", ".join(map(repr, sorted(unread))),
        )
