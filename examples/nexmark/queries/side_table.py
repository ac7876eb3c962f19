"""q13: a look-up in a bounded side table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

import keyed
from examples.nexmark.columns import BID, Columns, with_columns
from examples.nexmark.events import Events
from examples.nexmark.generator import SIDE_ROWS
from keyed.joins import lookup_join


def q13(events: Events) -> keyed.Output:
    """Return the bids with the value of the side table for their auction modulo 10,000."""
    table = events.side_input()

    def keyed_by_auction(bids: pa.Table) -> pa.Table:
        return with_columns(bids, key=pa.array(bids["auction"].to_numpy() % SIDE_ROWS))

    def values(keys: Sequence[int]) -> dict[int, Any]:
        return {key: (table[key],) for key in keys if key in table}

    derived = f"{BID}, dateTime timestamp_ntz, key bigint"
    bids = events.bids("auction", "bidder", "price", derive=keyed_by_auction, derived=derived)
    joined = lookup_join(bids.key_by("key"), values, "value string", how="inner")
    output = f"{BID}, dateTime timestamp_ntz, value string"
    return joined.key_by("key", chain=False).process(Columns(lambda rows: rows), output=output, order="arrival")
