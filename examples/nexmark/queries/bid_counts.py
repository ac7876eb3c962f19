"""q5, q11, q12: bids counted in hopping, session and processing-time windows."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa

import keyed
from examples.nexmark.columns import Columns, pc, with_columns
from examples.nexmark.events import Events
from keyed.vectorized import TIMESTAMP_COLUMN, BatchContext, TableState, VectorizedFunction
from keyed.windows import (
    Count,
    EventTimeSessionWindows,
    HoppingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowedStream,
)

_SIZE = timedelta(seconds=10)


class Hottest(VectorizedFunction):
    """Emits the auctions with the most bids of each window, once the window is complete."""

    counts = TableState("window_end bigint, auction bigint, num bigint, time bigint", key=("window_end", "auction"))

    def process_batch(self, table: pa.Table, ctx: BatchContext) -> None:
        """Keep the counts: those of a window have its last millisecond as their time."""
        self.counts.upsert(table.append_column("time", table[TIMESTAMP_COLUMN]))

    def on_watermark(self, watermark: int, ctx: BatchContext) -> None:
        """Emit the windows that have ended."""
        counts = self.counts.take(("time", "<=", watermark))
        most = counts.group_by("window_end").aggregate([("num", "max")])
        counts = counts.join(most, "window_end")
        ctx.emit(counts.filter(pc.equal(counts["num"], counts["num_max"])))


def q5(events: Events) -> keyed.Output:
    """Return the auctions with the most bids of each window of 10 s, every 2 s."""
    windows = HoppingEventTimeWindows.of(_SIZE, timedelta(seconds=2))
    counts = events.bids("auction").key_by("auction").window(windows).aggregate({"num": Count()}, name="bids")
    return counts.key_by("window_end").process(Hottest(), output="auction bigint, num bigint", name="hottest")


def q11(events: Events) -> keyed.Output:
    """Return the number of bids of each bidder and session, which ends after 10 s without a bid."""
    return _counted(events.bids("bidder").key_by("bidder").window(EventTimeSessionWindows.with_gap(_SIZE)))


def q12(events: Events) -> keyed.Output:
    """Return the number of bids of each bidder in windows of 10 s of processing time."""
    return _counted(events.bids("bidder").key_by("bidder").window(TumblingProcessingTimeWindows.of(_SIZE)))


def _counted(windows: WindowedStream) -> keyed.Output:
    def named(counts: pa.Table) -> pa.Table:
        start, end = (counts[name].cast(pa.timestamp("ms")) for name in ("window_start", "window_end"))
        return with_columns(counts, starttime=start, endtime=end)

    counts = windows.aggregate({"bid_count": Count()}, name="counts")
    output = "bidder bigint, bid_count bigint, starttime timestamp_ntz, endtime timestamp_ntz"
    return counts.key_by("bidder").process(Columns(named), output=output, order="arrival", name="named")
