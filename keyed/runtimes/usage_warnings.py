"""Warns once per query about likely mistakes and how to fix them, on both runtimes."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable

from keyed.graph import BoundOutput, Port, Stage
from keyed.results import Progress

_log = logging.getLogger(__name__)

#: 1990 and 2100, in seconds since the epoch.
_SECONDS = range(631_152_000, 4_102_444_800)
#: How many of a unit a second has, and how to get milliseconds.
_UNITS = {"seconds": (1, "* 1000"), "microseconds": (10**6, "// 1000"), "nanoseconds": (10**9, "// 1_000_000")}


class UsageWarnings:
    """Looks at the batches of one run.

    Args:
        last: Its last stage.
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
        self._units_told = source.time is None
        self._dropped_told = source.time is None or all(each.watermark_given for each in sources)

    def look(self, progress: Progress, highest: int | None) -> None:
        """Look at a batch that was committed.

        Args:
            progress: The batch.
            highest: The highest timestamp of its rows, ``None`` if it has none.
        """
        if not self._units_told and highest is not None and (said := unit_warning(highest)):
            self._units_told = True
            _log.warning("timestamp %r is taken for milliseconds%s", self._source.timestamp, said)
        if not self._dropped_told:
            self._look_at_dropped(progress)

    def emitted(self, operator: str, side_outputs: Iterable[str]) -> None:
        """Record the side outputs to which an operator has emitted."""
        self._emitted[operator].update(side_outputs)

    def end(self) -> None:
        """Say where a side output with a sink got no rows, and others did: it is likely a name written wrongly."""
        for operator, read in self._read.items():
            emitted = self._emitted[operator]
            if (empty := read - emitted) and (unread := emitted - read):
                _log.warning(
                    "operator %r: nothing went to the side output %s, and what went to %s has no sink; look at the "
                    "names",
                    operator,
                    _listed(empty),
                    _listed(unread),
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


def unit_warning(timestamp: int) -> str:
    """Say which unit an integer time plainly has, where that is not milliseconds; empty where it may be."""
    for unit, (many, remedy) in _UNITS.items():
        if timestamp // many in _SECONDS:
            return f": {timestamp} looks like {unit} since the epoch; give a function or column with the value {remedy}"
    return ""


def _listed(names: Collection[str]) -> str:
    return ", ".join(map(repr, sorted(names)))
