"""The function of ``docs/how-to/when-rows-are-too-slow.md``, by rows and by columns, word for word: a test says so."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

import keyed

COLUMNS = "user_id string, minute bigint, count bigint, amount bigint"


class MinuteByRows(keyed.KeyedProcessFunction):
    total = keyed.ValueState(tuple[int, int], default=(0, 0))

    def process_element(self, value, ctx):
        minute = ctx.timestamp() // 60_000 * 60_000
        total = self.total.namespace(minute)
        count, amount = total.value()
        total.update((count + 1, amount + value.amount))
        ctx.timer_service().register_event_time_timer(minute + 59_999)

    def on_timer(self, timestamp, ctx):
        minute = timestamp - 59_999
        total = self.total.namespace(minute)
        yield (ctx.get_current_key(), minute, *total.value())
        total.clear()


class MinuteByColumns(keyed.vectorized.VectorizedFunction):
    totals = keyed.vectorized.TableState(COLUMNS, key=("user_id", "minute"))

    def process_batch(self, table, ctx):
        times = table[keyed.vectorized.TIMESTAMP_COLUMN].to_numpy()
        ones = np.ones(table.num_rows, dtype="int64")
        keys = {"user_id": table["user_id"], "minute": times // 60_000 * 60_000}
        rows = pa.table(keys | {"count": ones, "amount": table["amount"]})
        self.totals.merge(rows, {"count": "sum", "amount": "sum"})

    def on_watermark(self, watermark, ctx):
        ctx.emit(self.totals.take(("minute", "<=", watermark - 59_999)))
