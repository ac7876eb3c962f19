"""The simplest top-N job: the ten best-selling products of each hour of processing time.

Run it with ``python -m examples.naive_top_n``. It is short, and it counts a sale in the hour in which it is
processed, even if it is late or read again. `examples.top_n` counts it in the hour of its event time.
"""

from __future__ import annotations

import keyed
from examples.top_n.datasets import Sales
from keyed.windows import Count, TopN, TumblingProcessingTimeWindows

HOUR_MS = 3_600_000


def main() -> None:
    """Print the ranking of the current hour."""
    (sales,) = (chunk.rows for chunk in Sales(rows=100_000, seed=1).chunks())
    hours = keyed.stream(sales).key_by("item").window(TumblingProcessingTimeWindows.of(HOUR_MS))
    columns = "item string, window_start timestamp, window_end timestamp, count bigint"
    counts = hours.aggregate({"count": Count()}, output=columns)
    best = counts.key_by("window_start", "window_end").process(TopN(10, by="count", item="item", columns=columns))
    for row in best.run().values:
        print(row.rank, row.item, row.count)


if __name__ == "__main__":
    main()
