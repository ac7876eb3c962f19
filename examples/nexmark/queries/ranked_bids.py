"""q18, q19: the last bids, and the highest ones, of what is still going on."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

import keyed
from examples.nexmark.columns import WHOLE_BID, array, with_columns
from examples.nexmark.events import Events
from keyed.vectorized import BatchContext, TableState, VectorizedFunction
from keyed.windows import Latest, aggregate

_COLUMNS = ("auction", "bidder", "price", "channel", "url", "dateTime", "extra")
_N = 10


def q18(events: Events) -> keyed.Output:
    """Return the last bid of each bidder for each auction."""
    latest = {name: Latest(name, by_time=True) for name in _COLUMNS[2:]}
    return aggregate(events.bids(*_COLUMNS).key_by("auction", "bidder"), latest)


class HighestBids(VectorizedFunction):
    """Keeps the highest bids of each auction, and emits those whose rank is new. Of equal prices the earliest wins."""

    highest = TableState(f"{WHOLE_BID}, rank_number bigint", key=("auction", "rank_number"))

    def process_batch(self, table: pa.Table, ctx: BatchContext) -> None:
        """Rank the new bids among the kept ones."""
        auctions = np.unique(table["auction"].to_numpy())
        ranks = np.tile(np.arange(1, _N + 1), len(auctions))
        kept = self.highest.lookup(pa.table({"auction": array(np.repeat(auctions, _N)), "rank_number": array(ranks)}))
        new = with_columns(table.select(list(_COLUMNS)), rank_number=array(np.zeros(table.num_rows, np.int64)))
        rows = pa.concat_tables([kept, new.cast(kept.schema)])
        auction, price, time = (rows[name].to_numpy() for name in ("auction", "price", "dateTime"))
        order = np.lexsort((time, -price, auction))  # stable: kept ones first
        rows, auction = rows.take(array(order)), auction[order]
        rank = np.arange(len(auction)) - np.searchsorted(auction, auction) + 1
        is_changed = (rank <= _N) & (rank != rows["rank_number"].to_numpy())
        changed = with_columns(rows, rank_number=array(rank)).filter(array(is_changed))
        self.highest.upsert(changed)
        ctx.emit(changed)


def q19(events: Events) -> keyed.Output:
    """Return the ten highest bids of each auction with their rank."""
    return events.bids(*_COLUMNS).key_by("auction").process(HighestBids(), f"{WHOLE_BID}, rank_number bigint")
