"""The two keyed functions of the job: count per item and window, then rank the items of each window.

A tumbling window by hand is a value per window and an event-time timer at the window's last millisecond. A window is
``[start, end)``; its timer is set to ``end - 1``, because at a watermark of ``end - 1`` no row before ``end`` is
missing.

Counts and rankings are kept for a while, so that they can be queried while the job runs: the page shows the states
`history` and `ranking`, as state tables.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs

from keyed import Context, KeyedProcessFunction, ListState, MapState, OnTimerContext, OutputTag, StateTtl, ValueState

#: Rows whose window has fired; they have the columns of the input, ``item`` and ``event_time``.
LATE = OutputTag("late")
#: Rows without an item or a time, which are counted as ``rows_bad``.
BAD = OutputTag("bad")

#: How long results can be queried, in processing time.
_KEPT = StateTtl(days=30)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@attrs.frozen
class WindowCount:
    """The number of rows of an item in a window."""

    window_start: datetime
    window_end: datetime
    item: str
    count: int


@attrs.frozen
class Ranked:
    """The rank of an item in a window, from 1."""

    window_start: datetime
    window_end: datetime
    rank: int
    item: str
    count: int


class CountByItem(KeyedProcessFunction):
    """Counts the rows of each item in tumbling windows; emits a `WindowCount` when a window ends.

    Rows are out of order, so several windows of an item are open at once: each has its count in a namespace of its
    own. A row whose window has fired goes to `LATE`.

    Args:
        window_ms: Length of a window.
    """

    count = ValueState(int, default=0)
    history = MapState(datetime, int, ttl=_KEPT)  # the windows that have ended, by their start

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms

    def process_element(self, value: Any, ctx: Context) -> None:
        """Count a row in its window."""
        timestamp = ctx.timestamp()
        assert timestamp is not None  # the stream has event time
        last = timestamp - timestamp % self.window_ms + self.window_ms - 1
        timers = ctx.timer_service()
        if last <= timers.current_watermark():
            ctx.output(LATE, value)
            return
        count = self.count.namespace(last)
        count.update(count.value() + 1)
        timers.register_event_time_timer(last)  # registering it again has no effect

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[WindowCount]:
        """Emit the count of the window that ends now, and clear it."""
        count = self.count.namespace(timestamp)
        start, end = _time(timestamp + 1 - self.window_ms), _time(timestamp + 1)
        yield WindowCount(start, end, ctx.get_current_key(), count.value())
        self.history.put(start, count.value())
        count.clear()


class RankPerWindow(KeyedProcessFunction):
    """Collects the counts of a window (the key is its start and end); emits the ``n`` highest when it has all.

    A count has the timestamp of the timer that emitted it, the window's last millisecond. The watermark of this
    operator passes it only after that of every task of the operator before: then no count is missing.

    Args:
        n: Number of items per window; items with equal counts are ordered by name.
    """

    counts = MapState(str, int)
    ranking = ListState(Ranked, ttl=_KEPT)

    def __init__(self, n: int) -> None:
        self.n = n

    def process_element(self, value: Any, ctx: Context) -> None:
        """Store an item's count."""
        timestamp = ctx.timestamp()
        assert timestamp is not None
        self.counts.put(value.item, value.count)
        ctx.timer_service().register_event_time_timer(timestamp)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Ranked]:
        """Emit the ranking, and clear the counts."""
        start, end = ctx.get_current_key()
        highest = heapq.nsmallest(self.n, self.counts.items(), key=lambda entry: (-entry[1], entry[0]))
        ranking = [Ranked(start, end, rank, item, count) for rank, (item, count) in enumerate(highest, start=1)]
        self.ranking.update(ranking)
        self.counts.clear()
        yield from ranking


def _time(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)
