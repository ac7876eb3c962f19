"""Watermark alignment: sources that are ahead of their group are not read until the others have caught up.

As in Flink, a source is held back while its watermark is more than the drift ahead of the least in its group. Sources
that have ended or are idle do not count. A source is read batch by batch, so it may be a batch further ahead. The
watermark of a source is known from its first rows in this run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from keyed.base.durations import MIN_TIMESTAMP
from keyed.job.graph import Source


@attrs.define(eq=False)
class _Aligned:
    source: Source
    watermark: int = MIN_TIMESTAMP
    last_ms: int = 0
    ended: bool = False


class Alignment:
    """Decides which sources of a query are read.

    Args:
        sources: The sources, in order.
        now: Processing time, milliseconds.
    """

    def __init__(self, sources: Sequence[Source], now: Callable[[], int]) -> None:
        self._sources = {
            number: _Aligned(source, last_ms=now())
            for number, source in enumerate(sources)
            if source.watermark.alignment_group is not None
        }
        self._now = now

    def holds(self, number: int) -> bool:
        """Return true if a source has to wait for others."""
        mine = self._sources.get(number)
        if mine is None or mine.watermark == MIN_TIMESTAMP:
            return False
        name, drift_ms = mine.source.watermark.alignment_group, mine.source.watermark.max_drift_ms
        group = [each for each in self._sources.values() if each.source.watermark.alignment_group == name]
        least = min((each.watermark for each in group if not self._is_silent(each)), default=mine.watermark)
        is_held = mine.watermark > least + (drift_ms or 0)
        if is_held:
            # A source that is not read does not count as silent.
            mine.last_ms = self._now()
        return is_held

    def took(self, number: int, highest: int | None, *, ended: bool) -> None:
        """Record the rows read from a source: its highest timestamp, ``None`` if there was none."""
        mine = self._sources.get(number)
        if mine is None:
            return
        mine.ended = ended
        if highest is not None:
            mine.watermark = max(mine.watermark, highest - mine.source.watermark.delay_ms - 1)
            mine.last_ms = self._now()

    def _is_silent(self, each: _Aligned) -> bool:
        idleness = each.source.watermark.idleness_ms
        return each.ended or (idleness is not None and self._now() - each.last_ms >= idleness)
