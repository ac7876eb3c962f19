"""`TableState`: a keyed table as the state of a `keyed.vectorized.VectorizedFunction`, in pyarrow's terms.

A declaration does not import pyarrow. The bound class, which does the work, lives in `keyed.engine`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Union

from keyed.base.arguments import shown
from keyed.base.extras import is_instance
from keyed.base.schemas import Schema, schema_of
from keyed.errors import StateDefinitionError
from keyed.job.state import BATCH_CALLS, State
from keyed.job.ttl import StateTtl, UpdateType

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

MergeHow = Literal["sum", "min", "max", "first", "last"]
Comparison = tuple[str, Literal["<", "<=", "==", ">=", ">"], Any]
Predicate: TypeAlias = Union[Comparison, Sequence[Comparison], "pc.Expression"]


class TableState(State):
    """A table with a row per key, stored and changed by whole columns.

    It belongs to the key group: operations take tables with rows of many keys, inside ``process_batch`` and
    ``on_watermark``. Write only rows of keys that came to the group. Returned rows have no order unless stated.

    Nulls are as in SQL: aggregates ignore them, a comparison with one is false. In key columns null and NaN are values
    equal to themselves, and −0.0 is 0.0. Given tables may have more columns, in any order. Types of a kind are
    converted (int32 to bigint, large_string to string), integers to timestamps as milliseconds; nothing else is.

    Args:
        schema: Columns and types: a DDL string, `StructType`, attrs class, dataclass or ``pyarrow.Schema``. A column
            added later is null in existing rows.
        key: Columns that identify a row, beginning with those of ``key_by`` in that order.
        name: Name in logs and checkpoints, by default the attribute's.
        ttl: Time to live of a row since its last write: a `StateTtl`, or its duration. In event time the given tables
            need `keyed.vectorized.TIMESTAMP_COLUMN`. Reads do not refresh.

    Raises:
        StateDefinitionError: The schema is invalid, or the key is not among its columns.
    """

    kind = "table"
    reading, writing = ".scan()", ".upsert(table)"
    _calls = BATCH_CALLS

    def __init__(
        self, schema: Any, *, key: str | Sequence[str], name: str | None = None, ttl: StateTtl | timedelta | None = None
    ) -> None:
        super().__init__(name, ttl)
        is_arrow = is_instance(schema, "pyarrow", "Schema")
        #: The columns: a `pyarrow.Schema`, or a `Schema`, which `keyed.arrow.write.arrow_schema` turns into one.
        self.schema: Schema | pa.Schema = schema if is_arrow else schema_of(schema)
        columns = [key] if isinstance(key, str) else key
        if not isinstance(columns, list | tuple) or not all(isinstance(column, str) for column in columns):
            raise StateDefinitionError(f"table state: key={shown(key)}: give the name of a column, or a list of names")
        self.key = tuple(columns)
        names = tuple(self.schema.names)
        if len(set(names)) != len(names):
            raise StateDefinitionError(f"table state: schema {schema!r} has a column twice; rename one")
        reserved = [column for column in names if column.startswith("__keyed_")]
        if reserved:
            raise StateDefinitionError(f"table state: columns like {reserved[0]!r} are reserved; rename it")
        missing = [column for column in self.key if column not in names]
        if missing or not self.key or len(set(self.key)) != len(self.key):
            raise StateDefinitionError(
                f"table state: key={key!r} must name one or more of its columns {', '.join(names)}, each once"
            )
        if self.ttl is not None and self.ttl.update is not UpdateType.ON_CREATE_AND_WRITE:
            raise StateDefinitionError("table state: rows are refreshed by writes only; use ON_CREATE_AND_WRITE")

    def _types(self) -> tuple[Any, ...]:
        return (", ".join(self.schema.names), self.key)

    def merge(self, delta: pa.Table, how: Mapping[str, MergeHow]) -> None:
        """Merge rows into the table: per key the stored row first, then those of ``delta`` in order.

        Args:
            delta: Rows with the key columns and those of ``how``; a key may repeat.
            how: For each other column ``"sum"``, ``"min"``, ``"max"`` (of booleans: all, any), ``"first"`` or
                ``"last"`` (nulls included). Floats are added from left to right.

        Raises:
            StateAccessError: A column is missing, or ``how`` does not fit it.
            TableOverflowError: A sum is out of the range of its column.
        """
        self._unbound()

    def upsert(self, table: pa.Table) -> None:
        """Write whole rows in place of those with the same keys; the last row of a key counts."""
        self._unbound()

    def delete(self, keys: pa.Table) -> None:
        """Remove the rows with these keys; other columns are ignored."""
        self._unbound()

    def take(self, predicate: Predicate) -> pa.Table:
        """Remove rows and return them.

        Args:
            predicate: ``(column, operator, value)``, or a list of those that must all hold, with ``< <= == >= >``; or
                a ``pyarrow.compute.Expression``. Comparisons of integers, dates and timestamps are ranges: other rows
                are not read, and the log has one record, not one per row. An integer for a timestamp is milliseconds;
                it may exceed 64 bits.
        """
        self._unbound()

    def lookup(self, keys: pa.Table) -> pa.Table:
        """Return the rows with these keys in their order; missing ones are skipped."""
        self._unbound()

    def scan(self, predicate: Predicate | None = None) -> pa.Table:
        """Return the rows that satisfy ``predicate`` (see `take`), or all."""
        self._unbound()

    def clear(self) -> None:
        """Remove all rows of the key group."""
        self._unbound()

    @property
    def num_rows(self) -> int:
        """Number of rows in this key group."""
        self._unbound()
