"""A function over whole columns without state, and the columns of bids that many queries emit."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute

from keyed.vectorized import BatchContext, VectorizedFunction

#: Without types: the stubs refuse plain numbers and expressions that Arrow accepts.
pc: Any = pyarrow.compute

BID = "auction bigint, bidder bigint, price bigint"
WHOLE_BID = f"{BID}, channel string, url string, dateTime timestamp_ntz, extra string"
_EUROS = pa.scalar(Decimal("0.908"), pa.decimal128(3, 3))


class Columns(VectorizedFunction):
    """Emits the columns that a function returns.

    Args:
        function: Returns the columns of the output for the columns of a batch.
    """

    def __init__(self, function: Callable[[pa.Table], pa.Table]) -> None:
        self.function = function

    def process_batch(self, table: pa.Table, ctx: BatchContext) -> None:
        """Emit the columns of a batch."""
        ctx.emit(self.function(table))


def array(values: Any, type: pa.DataType | None = None, **options: Any) -> Any:
    """Return values as an Arrow array; for the stubs every numpy array is one of booleans."""
    return pa.array(values, type, **options)


def with_columns(table: pa.Table, **columns: Any) -> pa.Table:
    """Return a table with columns added or replaced."""
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        table = table.append_column(name, values) if place < 0 else table.set_column(place, name, values)
    return table


def euros(prices: Any) -> Any:
    """Return prices in euros, with three places."""
    return pc.multiply(pc.cast(prices, pa.decimal128(19, 0)), _EUROS)


def text_of_time(times: Any, form: str) -> Any:
    """Return times as text, in the form of C's ``strftime``."""
    return pc.strftime(pc.cast(times, pa.timestamp("s"), safe=False), form)


def milliseconds(times: Any) -> Any:
    """Return times in milliseconds since the epoch."""
    return times.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
