"""The quote that was valid at each trade: an as-of join, checked with ``pandas.merge_asof``.

python -m examples.quotes_of_trades
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

import keyed
from keyed.joins import AsOfJoin

#: Maximal age of a quote, in milliseconds.
TOLERANCE = 5_000


def market(seed: int, number: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return trades and quotes, each by time, with distinct times."""
    chance = np.random.default_rng(seed)

    def rows(column: str, least: int, greatest: int) -> pd.DataFrame:
        return pd.DataFrame(
            {
                "symbol": chance.choice(["KO", "PEP", "MCD"], number),
                "time": np.sort(chance.choice(number * 1000, number, replace=False)),
                column: chance.integers(least, greatest, number),
            }
        )

    return rows("size", 1, 100), rows("price", 9_000, 11_000)


def priced(trade: Any, quote: Any) -> tuple[str, int, int, int | None]:
    """Return the row of a trade and its quote."""
    return trade.symbol, trade.time, trade.size, None if quote is None else quote.price


def valued(trades: Any, quotes: Any) -> keyed.Output:
    """Return the job."""
    columns = "symbol string, time bigint, size bigint, price bigint"
    return (
        keyed.stream(trades, timestamp="time")
        .connect(keyed.stream(quotes, timestamp="time"))
        .key_by("symbol")
        .process(AsOfJoin(priced, tolerance=TOLERANCE), output=columns, name="valued")
    )


def main() -> None:
    """Run the job, and compare it with pandas."""
    trades, quotes = market(seed=1, number=1_000)
    found = {(row.symbol, row.time): row.price for row in valued(trades, quotes).run(rows_per_batch=100).values}
    merged = pd.merge_asof(trades, quotes, on="time", by="symbol", tolerance=TOLERANCE)
    prices = [None if pd.isna(price) else int(price) for price in merged["price"]]
    if found != dict(zip(zip(merged["symbol"], merged["time"], strict=True), prices, strict=True)):
        raise SystemExit("the join differs from pandas.merge_asof")
    with_quote = sum(price is not None for price in found.values())
    print(f"{len(found)} trades, {with_quote} with a quote; pandas.merge_asof agrees")


if __name__ == "__main__":
    main()
