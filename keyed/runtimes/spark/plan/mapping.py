"""DataFrames whose rows Python functions convert as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from keyed.runtimes.spark.session.ship import SourceArchive, shipped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_Function = Callable[[Iterator[Any]], Iterator[Any]]


def map_in_arrow(frame: DataFrame, function: _Function, schema: str, archive: SourceArchive | None) -> DataFrame:
    """Return a DataFrame of the results of a function of Arrow batches.

    Args:
        frame: The rows. Their columns may have any names.
        function: The function.
        schema: Columns of the results, as Spark DDL.
        archive: Source code that workers need, over Spark Connect.
    """
    names = frame.columns
    if any(character in name for name in names for character in "`."):
        # Spark 4.0 parses the names of the columns that it passes to the function.
        frame = frame.toDF(*(f"column_{number}" for number in range(len(names))))
        function = _with_names(function, names)
    return frame.mapInArrow(shipped(archive, function), schema)


def _with_names(function: _Function, names: Sequence[str]) -> _Function:
    """Return a function of batches whose columns get their names back."""

    def named(batches: Iterator[Any]) -> Iterator[Any]:
        yield from function(batch.rename_columns(names) for batch in batches)

    return named
