"""The values that a query collects, as an Arrow table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from keyed.arrow.write import table_of_values
from keyed.job.graph import BoundOutput

if TYPE_CHECKING:
    import pyarrow as pa


def tabled(outputs: Iterable[BoundOutput]) -> Callable[[Sequence[Any]], pa.Table]:
    """Return a function that converts the collected values of a query to a table.

    The columns are the declared ones of the collected output; several outputs have no common columns.
    """
    collected = [bound.output for bound in outputs if bound.sink.collected is not None]
    return partial(table_of_values, schema=collected[0].schema if len(collected) == 1 else None)
