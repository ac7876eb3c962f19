"""Columns of the vectorized window operators: input, state table, and rows of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from keyed.errors import TimestampError
from keyed.vectorized import TIMESTAMP_COLUMN, BatchContext
from keyed.windows.definition import Definition
from keyed.windows.general import no_timestamp
from keyed.windows.vectorized.accumulators import Parts
from keyed.windows.vectorized.fold import Fold, fold_of
from keyed.windows.vectorized.row_groups import array_of, integers, pc, plain_column
from keyed.windows.vectorized.slices import MOST_TIME

#: The range of Python's datetimes, in milliseconds.
_FIRST_YEAR, _LAST_YEAR = -62_135_596_800_000, 253_402_300_799_999


@attrs.frozen(eq=False)
class Tables:
    """Columns of one operator.

    Attributes:
        definition: The operator.
        fold: Its accumulators.
    """

    definition: Definition
    fold: Fold

    @classmethod
    def of(cls, definition: Definition) -> Tables:
        """Make the tables of a definition that can take this path."""
        return cls(definition, fold_of(definition.named, definition.known_columns))

    def needed(self, table: Any) -> Any:
        """Return the columns that are needed to reduce rows; all columns if late rows are an output."""
        if self.definition.late_tag is not None:
            return table
        read: set[Any] = {*self.definition.key_names, TIMESTAMP_COLUMN}
        for aggregate in self.definition.aggregates:
            read |= {getattr(aggregate, "column", None), getattr(aggregate, "by", None)}
        return table.select([name for name in table.column_names if name in read])

    def keys(self, table: Any) -> list[Any]:
        """Return the key columns."""
        return [plain_column(table.column(name)) for name in self.definition.key_names]

    def parts(self, table: Any) -> Parts:
        """Return the columns of the accumulators."""
        return self.fold.stored(table)

    def state(self, keys: Sequence[Any], columns: Mapping[str, Any], parts: Parts) -> Any:
        """Return rows for the state table.

        Args:
            keys: The key columns.
            columns: The other columns except the accumulators.
            parts: The accumulators.
        """
        names = [*self.definition.key_names, *columns, *(name for name, _ in self.fold.columns)]
        return pa.table([*keys, *map(pa.array, columns.values()), *parts], names=names)

    def times(self, table: Any) -> Any:
        """Return the timestamps of rows.

        Raises:
            DefinitionError: A row has none.
            TimestampError: One is out of the range of this path.
        """
        times = integers(timestamps(table, needed=True))
        if len(times) and not -MOST_TIME <= times.min() <= times.max() <= MOST_TIME:
            raise TimestampError(
                f"a timestamp is more than 2^62 ms from 1970 ({times.min()} to {times.max()}): windows over whole "
                'columns do not support it; use .path("row")'
            )
        return times

    def optional_times(self, table: Any) -> Any:
        """Return the timestamps of rows if windows do not need them; ``None`` if any is missing."""
        times = timestamps(table, needed=False)
        return None if times is None or times.null_count else integers(times)

    def emit(self, ctx: BatchContext, keys: Sequence[Any], starts: Any, ends: Any, parts: Parts) -> None:
        """Emit the results of windows.

        Args:
            ctx: Receives the results.
            keys: Their key columns.
            starts: Their starts.
            ends: Their ends.
            parts: Their accumulators.
        """
        if not len(starts):
            return
        bounds = [_instants(times) if self.definition.timestamps else pa.array(times) for times in (starts, ends)]
        columns = [*keys, *bounds, *self.fold.results(parts), pa.array(ends - 1)]
        ctx.emit(pa.table(columns, names=[*self.definition.row_names, TIMESTAMP_COLUMN]))

    def divert(self, ctx: BatchContext, late: Any) -> None:
        """Route late rows to the side output, or count them as dropped."""
        if not late.num_rows:
            return
        if self.definition.late_tag is not None:
            ctx.output(self.definition.late_tag, late)
        else:
            ctx.drop(late.num_rows)


def timestamps(table: Any, *, needed: bool) -> Any:
    """Return the column of timestamps; ``None`` if there is none.

    Raises:
        DefinitionError: They are needed, and a row has none.
    """
    times = array_of(table.column(TIMESTAMP_COLUMN)) if TIMESTAMP_COLUMN in table.column_names else None
    if needed and (times is None or times.null_count):
        at = 0 if times is None else pc.index(times.is_null(), True).as_py()
        raise no_timestamp(table.slice(at, 1).to_pylist()[0])
    return times


def _instants(times: Any) -> Any:
    """Return milliseconds as timestamps; null outside of Python's range, as on the row path."""
    beyond = (times < _FIRST_YEAR) | (times > _LAST_YEAR)
    micros = np.where(beyond, 0, times) * 1000
    return pa.array(micros, pa.int64(), mask=beyond).cast(pa.timestamp("us", "UTC"))
