"""q15, q16, q17: statistics of bids that are always up to date: continuous aggregates over a column for each filter."""

from __future__ import annotations

import pyarrow as pa

import keyed
from examples.nexmark.columns import BID, Columns, pc, text_of_time, with_columns
from examples.nexmark.events import Events
from keyed.windows import Count, CountDistinct, Max, Min, Sum, aggregate

#: The bids of a range of prices have their bidder in `bidder1` and so on; in those of the others it is null.
_RANGES = {"": (0, 2**63 - 1), "1": (0, 10_000), "2": (10_000, 1_000_000), "3": (1_000_000, 2**63 - 1)}
_DERIVED = ", ".join(f"bidder{n} bigint, auction{n} bigint" for n in "123")
_COUNTS = {f"rank{n}_bids" if n else "total_bids": Count(f"bidder{n}") for n in _RANGES}
_DISTINCT = {
    f"rank{n}_{of}s" if n else f"total_{of}s": CountDistinct(f"{of}{n}")
    for of in ("bidder", "auction")
    for n in _RANGES
}


def _by_range(bids: pa.Table) -> pa.Table:
    times = bids["dateTime"]
    bids = with_columns(bids, day=text_of_time(times, "%Y-%m-%d"), minute=text_of_time(times, "%H:%M"))
    for n, (least, end) in _RANGES.items():
        in_range = pc.and_(pc.greater_equal(bids["price"], least), pc.less(bids["price"], end))
        columns = {f"{of}{n}": pc.if_else(in_range, bids[of], None) for of in ("bidder", "auction")}
        bids = with_columns(bids, **columns) if n else bids
    return bids


def _bids(events: Events) -> keyed.Stream:
    derived = f"{BID}, channel string, dateTime timestamp_ntz, day string, minute string, {_DERIVED}"
    return events.bids("auction", "bidder", "price", "channel", derive=_by_range, derived=derived)


def q15(events: Events) -> keyed.Output:
    """Return the number of bids, bidders and auctions of each day, in total and by range of prices."""
    return aggregate(_bids(events).key_by("day"), {**_COUNTS, **_DISTINCT})


def q16(events: Events) -> keyed.Output:
    """Return the same of each channel and day, with the last minute seen."""
    return aggregate(_bids(events).key_by("channel", "day"), {"minute": Max("minute"), **_COUNTS, **_DISTINCT})


def q17(events: Events) -> keyed.Output:
    """Return the number of bids of each auction and day, and their least, greatest, average and total price."""

    def with_average(rows: pa.Table) -> pa.Table:
        return with_columns(rows, avg_price=pc.divide(rows["sum_price"], rows["total_bids"]))

    prices = {"min_price": Min("price"), "max_price": Max("price"), "sum_price": Sum("price")}
    totals = aggregate(_bids(events).key_by("auction", "day"), {**_COUNTS, **prices}, name="totals")
    counts = ", ".join(f"{name} bigint" for name in (*_COUNTS, "min_price", "max_price", "avg_price", "sum_price"))
    rows = totals.key_by("auction", "day")
    return rows.process(Columns(with_average), output=f"auction bigint, day string, {counts}", order="arrival")
