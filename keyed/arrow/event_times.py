"""Event time: columns of it as milliseconds, and the order of rows by it. Loads pyarrow and numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyed.errors import DefinitionError


def event_times(column: Any, name: str) -> Any:
    """Return a column of timestamps or integers as int64 milliseconds since the epoch.

    Raises:
        DefinitionError: The column has another type, or numbers that are not whole.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    rule = "give timestamps, or integers in milliseconds since the epoch"
    try:
        if pa.types.is_timestamp(array.type):
            return whole_milliseconds(array)
        if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
            # pandas makes an integer column with gaps one of floats.
            return array.cast(pa.int64())
    except pa.ArrowException as error:
        raise DefinitionError(f"timestamp column {name!r} holds no times in range ({error}); {rule}") from error
    raise DefinitionError(f"timestamp column {name!r} has type {array.type}; {rule}")


def whole_milliseconds(array: Any) -> Any:
    """Return timestamps as int64 milliseconds, rounded down as by Spark's unix_millis, also before the epoch.

    Raises:
        ArrowInvalid: One has more milliseconds than an int64 holds.
    """
    units = array.view(pa.int64())
    per_ms = {"s": 0, "ms": 1, "us": 1_000, "ns": 1_000_000}[array.type.unit]
    if per_ms <= 1:
        return units if per_ms else pc.multiply_checked(units, 1000)
    floored = np.floor_divide(units.fill_null(0).to_numpy(), per_ms)
    return pa.array(floored, mask=units.is_null().to_numpy(zero_copy_only=False) if units.null_count else None)


def time_order(times: Any) -> Any:
    """Return the order in which rows with these times run, stable by arrival; ``None`` if they are in it.

    Args:
        times: A time of each row, as a numpy array.
    """
    if not bool((times[1:] < times[:-1]).any()):
        return None
    return np.argsort(times, kind="stable")


def highest_by_partition(partitions: Any, times: Any) -> dict[str, int]:
    """Return the highest time of each partition by its name; null is a partition too.

    Args:
        partitions: The partition of each row.
        times: The time of each row in milliseconds; rows without one are ignored.
    """
    grouped = pa.table({"name": partitions, "time": times}).group_by("name").aggregate([("time", "max")])
    pairs = zip(grouped.column("name").to_pylist(), grouped.column("time_max").to_pylist(), strict=True)
    return {str(name): time for name, time in pairs if time is not None}
