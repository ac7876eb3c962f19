"""q4, q6, q9: the winning bid of each auction, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

import keyed
from examples.nexmark.columns import Columns, array, milliseconds, pc, with_columns
from examples.nexmark.events import Events
from keyed.vectorized import BatchContext, TableState, VectorizedCoFunction
from keyed.windows import Sum, aggregate

_ITEM = (
    "id bigint, itemName string, description string, initialBid bigint, reserve bigint, dateTime timestamp_ntz, "
    "expires timestamp_ntz, seller bigint, category bigint, extra string"
)
_BID = "auction bigint, bidder bigint, price bigint, bid_dateTime timestamp_ntz, bid_extra string"
_NAMES = {name: [column.split()[0] for column in ddl.split(", ")] for name, ddl in (("item", _ITEM), ("bid", _BID))}


class WinningBids(VectorizedCoFunction):
    """Emits auctions with their highest bid within their time, of equal prices the earliest, whenever it changes.

    `last_price` is the price that was emitted before, null in the first row of an auction.
    """

    auctions = TableState(f"{_ITEM}, {_BID}, until_ms bigint", key="id")
    early = TableState(f"id bigint, {_BID}, time_ms bigint", key=("id", "time_ms", "price"))  # before their auction

    def process_batches(self, first: pa.Table | None, second: pa.Table | None, ctx: BatchContext) -> None:
        """Compare the bids with the highest ones so far."""
        bids = self.early.scan(("id", "<", -1))
        if first is not None:
            opened = first.select(_NAMES["item"])
            empty = {name: pa.nulls(first.num_rows, bids.schema.field(name).type) for name in _NAMES["bid"]}
            self.auctions.upsert(with_columns(opened, **empty, until_ms=milliseconds(opened["expires"])))
            bids = self.early.take(pc.field("id").isin(opened["id"].combine_chunks()))
        if second is not None:
            columns = ["auction", "auction", "bidder", "price", "dateTime", "extra"]
            renamed = second.select(columns).rename_columns(["id", *_NAMES["bid"]])
            renamed = with_columns(renamed, time_ms=milliseconds(renamed["bid_dateTime"]))
            bids = pa.concat_tables([bids, renamed.cast(bids.schema)])
        bids = bids.take(_order(bids["auction"], bids["price"], bids["bid_dateTime"]))
        items = self.auctions.lookup(pa.table({"id": pc.unique(bids["auction"])}))
        place = pc.index_in(bids["auction"], items["id"].combine_chunks())
        early = bids.filter(pc.is_null(place))
        self.early.merge(early, dict.fromkeys(["auction", "bidder", "bid_dateTime", "bid_extra"], "first"))
        items = items.take(pc.drop_null(place))
        found = with_columns(
            items,
            last_price=items["price"],
            last_time=items["bid_dateTime"],
            **{name: bids.filter(pc.is_valid(place))[name] for name in _NAMES["bid"]},
        )
        time = pc.field("bid_dateTime")
        is_higher = (pc.field("price") > pc.field("last_price")) | pc.is_null(pc.field("last_price"))
        is_earlier = (pc.field("price") == pc.field("last_price")) & (time < pc.field("last_time"))
        found = found.filter((time >= pc.field("dateTime")) & (time <= pc.field("expires")) & (is_higher | is_earlier))
        _, firsts = np.unique(found["id"].to_numpy(), return_index=True)
        won = found.take(array(firsts))
        self.auctions.upsert(won.select([*_NAMES["item"], *_NAMES["bid"], "until_ms"]))
        ctx.emit(won)

    def on_watermark(self, watermark: int, ctx: BatchContext) -> None:
        """Remove results that no later event can change."""
        self.auctions.take(("until_ms", "<=", watermark))
        self.early.take(("time_ms", "<=", watermark))


def _order(auctions: Any, prices: Any, times: Any) -> Any:
    """Return the places of bids, those of an auction from the highest on; of equal prices the earliest first."""
    return array(np.lexsort((times.to_numpy(), -prices.to_numpy(), auctions.to_numpy())))


def _winners(events: Events, output: str) -> keyed.Output:
    auctions = events.auctions(*_NAMES["item"])
    both = auctions.connect(events.bids("auction", "bidder", "price", "extra")).key_by("id", "auction")
    return both.process(WinningBids(), output=output, name="winners")


def q9(events: Events) -> keyed.Output:
    """Return each auction with its winning bid."""
    return _winners(events, f"{_ITEM}, {_BID}")


def q4(events: Events) -> keyed.Output:
    """Return the average price of the winning bids of each category."""

    def differences(won: pa.Table) -> pa.Table:
        is_new = pc.is_null(won["last_price"]).cast(pa.int64())
        return with_columns(won, price=pc.subtract(won["price"], pc.fill_null(won["last_price"], 0)), auctions=is_new)

    def averages(totals: pa.Table) -> pa.Table:
        return with_columns(totals, id=totals["category"], final=pc.divide(totals["total"], totals["auctions"]))

    won = _winners(events, "id bigint, category bigint, price bigint, last_price bigint").key_by("id")
    changes = won.process(Columns(differences), "category bigint, price bigint, auctions bigint", name="changes")
    sums = {"total": Sum("price"), "auctions": Sum("auctions")}
    totals = aggregate(changes.key_by("category"), sums, name="totals").key_by("category")
    return totals.process(Columns(averages), "id bigint, final bigint", name="averages", order="arrival")


class LastPrices(keyed.KeyedProcessFunction):
    """Emits the average price of each auction of a seller and the ten before it, in order of their winning bids."""

    won = keyed.MapState(int, tuple[int, int])  # time and price of the winning bid of each auction
    averages = keyed.MapState(int, int)

    def process_element(self, value: Any, ctx: keyed.Context) -> None:
        """Keep a winning bid."""
        self.won.put(value.id, (value.time, value.price))

    def on_batch_end(self, ctx: keyed.Context) -> Iterator[tuple[int, int, int]]:
        """Emit the averages that have changed."""
        in_order = sorted((time, id_, price) for id_, (time, price) in self.won.items())
        for number, (_, id_, _) in enumerate(in_order):
            prices = [price for *_, price in in_order[max(0, number - 10) : number + 1]]
            average = sum(prices) // len(prices)
            if self.averages.get(id_) != average:
                self.averages.put(id_, average)
                yield ctx.get_current_key(), id_, average


def q6(events: Events) -> keyed.Output:
    """Return the average price of the winning bids of each auction and the ten before it of its seller."""

    def timed(won: pa.Table) -> pa.Table:
        return with_columns(won, time=milliseconds(won["bid_dateTime"]))

    won = _winners(events, "id bigint, seller bigint, price bigint, bid_dateTime timestamp_ntz").key_by("id")
    prices = won.process(Columns(timed), "id bigint, seller bigint, price bigint, time bigint", name="prices")
    by_seller = prices.key_by("seller")
    return by_seller.process(
        LastPrices(), "seller bigint, id bigint, avg_price bigint", name="averages", order="arrival"
    )
