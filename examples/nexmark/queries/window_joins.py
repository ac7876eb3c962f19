"""q7, q8: joins with and within tumbling windows of 10 seconds."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

import keyed
from examples.nexmark.columns import with_columns
from examples.nexmark.events import Events
from keyed.joins import IntervalJoin, Select, WindowCoGroup
from keyed.windows import Max, TumblingEventTimeWindows

_SIZE = timedelta(seconds=10)
_MS = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - the times of events have no zone


def q7(events: Events) -> keyed.Output:
    """Return the bids with the highest price of each window.

    That price has the window's last millisecond as its time. A bid at the end of a window counts for it and the next.
    """

    def of_site(bids: pa.Table) -> pa.Table:
        return with_columns(bids, site=pa.nulls(bids.num_rows, pa.int64()).fill_null(0))

    prices = events.bids("price", derive=of_site, derived="price bigint, dateTime timestamp_ntz, site bigint")
    highest_prices = prices.key_by("site").window(TumblingEventTimeWindows.of(_SIZE)).aggregate(price=Max("price"))
    both = highest_prices.connect(events.bids("auction", "price", "bidder", "extra")).key_by("price")
    output = "auction bigint, price bigint, bidder bigint, dateTime timestamp_ntz, extra string"
    highest = Select(right=("auction", "price", "bidder", "dateTime", "extra"))
    return both.process(IntervalJoin(highest, lower=_MS - _SIZE, upper=_MS), output=output)


def q8(events: Events) -> keyed.Output:
    """Return the people who registered and opened an auction in the same window."""

    def sellers(start: int, _: int, people: list[Any], auctions: list[Any]) -> list[tuple[Any, ...]]:
        time = _EPOCH + start * _MS
        return [(*person, time) for person in {(each.id, each.name) for each in people}] if auctions else []

    both = events.people("id", "name").connect(events.auctions("seller")).key_by("id", "seller")
    return both.process(WindowCoGroup(sellers, size=_SIZE), output="id bigint, name string, stime timestamp_ntz")
