"""The naive top-N job: a count for each product, and a timer that emits it each hour and sets itself again.

Run it with ``python -m examples.naive_top_n``. It is short, and it counts a sale in the hour in which it is
processed, even if it is late or read again; and a product keeps its timer when it is no longer sold. `examples.top_n`
counts a sale in the hour of its event time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keyed
from examples.top_n.datasets import Sales
from keyed.windows import TopN

HOUR_MS = 3_600_000
COLUMNS = "hour bigint, item string, count bigint"


class HourlyCount(keyed.KeyedProcessFunction):
    """Counts the sales of a product, and emits the count at each full hour of the machine's clock."""

    count = keyed.ValueState(int)

    def process_element(self, sale: Any, ctx: keyed.Context) -> None:
        """Count a sale; the first one of a product sets the timer."""
        count = self.count.value()
        if count is None:
            self.set_timer(ctx)
        self.count.update((count or 0) + 1)

    def on_timer(self, timestamp: int, ctx: keyed.OnTimerContext) -> Iterator[tuple[int, str, int]]:
        """Emit the count of the hour, and begin the next one."""
        count = self.count.value() or 0
        if count:
            yield timestamp, ctx.get_current_key(), count
        self.count.update(0)
        self.set_timer(ctx)

    def set_timer(self, ctx: keyed.Context) -> None:
        """Set the timer to the next full hour."""
        timers = ctx.timer_service()
        now = timers.current_processing_time()
        timers.register_processing_time_timer(now - now % HOUR_MS + HOUR_MS)


def top_products(sales: Any) -> keyed.Output:
    """Define the chain: the ten best-selling products of each hour."""
    counts = keyed.stream(sales).key_by("item").process(HourlyCount(), output=COLUMNS)
    ranked = TopN(10, by="count", item="item", columns=COLUMNS, keys=("hour",))
    return counts.key_by("hour").process(ranked, output="hour bigint, rank bigint, item string, count bigint")


def main() -> None:
    """Print the ranking of the current hour."""
    (sales,) = (chunk.rows for chunk in Sales(rows=100_000, seed=1).chunks())
    for row in top_products(sales).run().values:
        print(row.rank, row.item, row.count)


if __name__ == "__main__":
    main()
