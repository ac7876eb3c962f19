"""q10: all bids as files, in a folder for each day and in it one for each minute. The sink makes the folders."""

from __future__ import annotations

import pyarrow as pa

import keyed
from examples.nexmark.columns import BID, Columns, text_of_time, with_columns
from examples.nexmark.events import Events


def q10(events: Events) -> keyed.Output:
    """Return every bid with its day and minute."""

    def dated(bids: pa.Table) -> pa.Table:
        times = bids["dateTime"]
        return with_columns(bids, dt=text_of_time(times, "%Y-%m-%d"), hm=text_of_time(times, "%H:%M"))

    bids = events.bids("auction", "bidder", "price", "extra").key_by("auction")
    output = f"{BID}, dateTime timestamp_ntz, extra string, dt string, hm string"
    return bids.process(Columns(dated), output=output, order="arrival")
