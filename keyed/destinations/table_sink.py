"""Tables of a lakehouse as sinks, of any format, in both runtimes: columns are compared, and keys have one row.

A table records the last batch of each query: the id of the query with the id of the batch, in the same commit as the
rows.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import attrs

from keyed.base.arguments import names, shown, text
from keyed.base.schemas import Schema, of_arrow
from keyed.destinations.sink import Owner, Sink, SinkWriter, SparkSide
from keyed.errors import DefinitionError, KeyedError, SinkError

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)
TableMode = Literal["append", "upsert"]
_T = TypeVar("_T")
#: Number of attempts at a commit that other writers of the table overtake.
ATTEMPTS = 10


def _key(columns: Any) -> tuple[str, ...]:
    return names(columns, "key")


def option_names(options: Mapping[str, str]) -> str:
    """Return the names of options, whose values are never shown."""
    return "{" + ", ".join(options) + "}"


@attrs.frozen(kw_only=True, eq=False)
class TableSink(Sink):
    """A table of a lakehouse: the parameters that all formats have.

    Attributes:
        mode: ``"append"`` adds the rows; ``"upsert"`` replaces the rows with the same key.
        key: The columns of the key, for ``"upsert"``.
        deleted: The column that is true in a row that deletes its key, for ``"upsert"``. The table does not have it.
    """

    mode: TableMode = "append"
    key: tuple[str, ...] = attrs.field(default=(), converter=_key)
    deleted: str | None = None

    makes_files = True
    rereads = True

    def __attrs_post_init__(self) -> None:
        if self.mode not in ("append", "upsert"):
            raise DefinitionError(f"{self!r}: mode={shown(self.mode)} must be 'append' or 'upsert'")
        if (self.mode == "upsert") != bool(self.key) or (self.deleted is not None and self.mode != "upsert"):
            raise DefinitionError(
                f'{self!r}: mode="upsert" needs key=, the columns whose values name a row; "append" takes neither key= '
                "nor deleted="
            )
        if self.deleted is not None:
            text(self.deleted, f"{self!r}: deleted", "the name of a column")
        if self.deleted in self.key:
            raise DefinitionError(f"{self!r}: deleted= takes the name of a column that is not one of the key")

    @property
    def place(self) -> str:
        """The table, as users name it."""
        raise NotImplementedError(f"{type(self).__name__} does not define place")

    @property
    def clash(self) -> str:
        """See `Sink`."""
        return (
            f"two outputs go to the table {self.place!r}, and the batches of one would be taken for those of "
            "the other; give each output a table of its own"
        )

    def check(self, schema: Schema | None, spark: SparkSide | None) -> None:
        """See `Sink`."""
        if spark is None:
            return
        if spark.is_remote:
            raise DefinitionError(
                f"{self!r}: over Spark Connect a table has no writer that repeats no batch; run the query in Spark's "
                "own program, or write output.df with the table's own sink"
            )
        if schema is not None:
            check_types(self, dict(schema.columns))
        self.check_on_spark(spark)

    def check_on_spark(self, spark: SparkSide) -> None:
        """Check that a Spark session can write the table.

        Raises:
            DefinitionError: A parameter is for the local runtime.
            SessionError: The session lacks a library, or settings for it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define check_on_spark")

    def open_copy(self, owner: Owner) -> SinkWriter:
        """See `Sink`."""
        if self.mode != "upsert" or self.deleted is not None:
            raise DefinitionError(f'replicate: {self!r} must have mode="upsert", and no deleted=')
        return self.open(owner, None)

    def kinds(self, schema: pa.Schema) -> dict[str, str]:
        """Return columns with the names of their types in tables of this format."""
        import pyarrow as pa

        from keyed.arrow.kinds import kinds

        local = {field.name for field in schema if pa.types.is_timestamp(field.type) and field.type.tz is None}
        return {name: "timestamp_ntz" if name in local else kind for name, kind in kinds(schema).items()}

    def _shown(self, function: str, table: str, **others: Any) -> str:
        """Return the call that made the sink."""
        values = {"mode": self.mode, "key": self.key, "deleted": self.deleted}
        usual = {"mode": "append", "key": (), "deleted": None}
        options = {name: shown(value) for name, value in values.items() if value != usual[name]}
        return f"{function}({', '.join([shown(table), *(f'{n}={v}' for n, v in {**others, **options}.items())])})"


def fitted(sink: TableSink, rows: pa.Table, columns: pa.Schema | None) -> pa.Table:
    """Return rows without declared columns, which have those of the query's first rows.

    Args:
        sink: The sink.
        rows: The rows.
        columns: The columns of the first rows; ``None`` for these themselves.

    Raises:
        SinkError: They have other columns, or the type of a column is unknown.
    """
    declare = "declare the columns: process(..., output=...) or OutputTag(name, type)"
    if columns is None:
        types = {each.name: of_arrow(each.type) or str(each.type).replace("list<", "array<") for each in rows.schema}
        for name, type_ in types.items():
            if re.search(r"\bnull$|\bnull[>,]", type_):
                raise SinkError(f"{sink!r}: the first rows have no value in {name!r}, so its type is open; {declare}")
        check_types(sink, types)
        return rows
    # Nulls alone have no type.
    nulls = [each.name for each in rows.schema if str(each.type) == "null" and each.name in columns.names]
    for name in nulls:
        number = rows.schema.get_field_index(name)
        rows = rows.set_column(number, columns.field(name), rows.column(name).cast(columns.field(name).type))
    if not rows.schema.equals(columns):
        both = [", ".join(f"{field.name} {field.type}" for field in schema) for schema in (rows.schema, columns)]
        raise SinkError(f"{sink!r}: the rows have the columns {both[0]}, and the first ones had {both[1]}; {declare}")
    return rows


def stored(sink: TableSink, columns: Sequence[str]) -> list[str]:
    """Return the columns of an output that the table has.

    Raises:
        SinkError: The output lacks a column that the sink names.
    """
    for name in (*sink.key, *([sink.deleted] if sink.deleted is not None else ())):
        if name not in columns:
            raise SinkError(f"{sink!r}: the output has no column {name!r}, only {', '.join(columns)}")
    return [name for name in columns if name != sink.deleted]


def check_types(sink: TableSink, types: Mapping[str, str]) -> None:
    """Check the types of the columns that the sink names.

    Args:
        sink: The sink.
        types: Spark types of the output's columns by name.

    Raises:
        SinkError: One is missing, a column of the key has no exact equality, or ``deleted`` is not boolean.
    """
    stored(sink, list(types))
    for name in sink.key:
        if types[name].startswith(("float", "double", "array", "map", "struct", "void")):
            raise SinkError(
                f"{sink!r}: the column {name!r} of the key is of type {types[name]}; give columns of integers, "
                "decimals, text, bytes, booleans, dates or timestamps"
            )
    if sink.deleted is not None and types[sink.deleted] != "boolean":
        raise SinkError(f"{sink!r}: the column {sink.deleted!r} is of type {types[sink.deleted]}, and not boolean")


def added_columns(
    sink: TableSink, existing: Mapping[str, str], new: Mapping[str, str], required: Sequence[str]
) -> list[str]:
    """Return the columns that an output adds to a table.

    Args:
        sink: The sink.
        existing: The table's columns with the names of their types.
        new: Those of the output.
        required: The table's columns that have no nulls.

    Raises:
        SinkError: The table has other columns.
    """
    same = {name.lower(): name for name in existing}
    clashes = [f"{name} is {same[name.lower()]} there" for name in new if name not in existing and name.lower() in same]
    not_null = [f"{', '.join(required)} must not be null there, and a column of an output may be null"]
    others = [
        f"the output has no {name}" if name not in new else f"{name} is {new[name]} in the output"
        for name, type_ in existing.items()
        if new.get(name) != type_
    ]
    if why := clashes[:1] or (not_null if required else others):
        columns = [", ".join(f"{name} {type_}" for name, type_ in each.items()) for each in (existing, new)]
        raise SinkError(
            f"{sink!r}: the table has other columns than the output: {', '.join(why)}. The table has {columns[0]}; the "
            f"output has {columns[1]}. Give another table, or the table's columns (an output may add columns)"
        )
    return [name for name in new if name not in existing]


def last_rows(rows: pa.Table, sink: TableSink) -> pa.Table:
    """Return the last row of each key, in the order of the rows.

    Raises:
        SinkError: A key has a null.
    """
    import numpy as np
    import pyarrow as pa

    for name in sink.key:
        if rows.column(name).null_count:
            raise null_key(sink, name)
    numbered = rows.select([*sink.key]).append_column("", pa.array(np.arange(rows.num_rows)))
    last = numbered.group_by([*sink.key], use_threads=False).aggregate([("", "max")]).column("_max")
    return rows.take(last.combine_chunks().sort())


def null_key(sink: TableSink, name: str) -> SinkError:
    """Return the error for a null in a key."""
    return SinkError(f"{sink!r}: a row has a null in {name!r}, a column of the key; drop such rows before the sink")


class LakeWriter(SinkWriter, ABC):
    """Base of the writers of one query's batches to a table, in either runtime.

    Args:
        sink: The sink.
        owner: The query.
    """

    def __init__(self, sink: Any, owner: Owner) -> None:
        self._sink = sink
        self._owner = owner

    @abstractmethod
    def _overtaken(self, error: BaseException) -> str | None:
        """Return the text of the error of a commit that another one has overtaken; ``None`` for any other error."""

    @abstractmethod
    def _failed(self, error: Exception) -> Exception:
        """Return keyed's error for an error of a library."""

    @abstractmethod
    def _refresh(self) -> None:
        """Read the newest version of the table, if there is a table."""

    @abstractmethod
    def _columns(self) -> tuple[Mapping[str, str], list[str]] | None:
        """Return the table's columns with the names of their types, and those without nulls; ``None`` without one."""

    @abstractmethod
    def _create(self, columns: pa.Schema) -> None:
        """Create the table."""

    @abstractmethod
    def _grow(self, columns: pa.Schema, new: Sequence[str]) -> None:
        """Add the new ones of columns to the table."""

    @abstractmethod
    def _last_batch(self, query: str) -> int | None:
        """Return the last batch of a query in the table."""

    def _kinds(self, columns: pa.Schema) -> Mapping[str, str]:
        """Return columns with the names of their types in tables of this format."""
        kinds: Mapping[str, str] = self._sink.kinds(columns)
        return kinds

    def prepare(self, schema: pa.Schema) -> None:
        """Create the table, or add the output's new columns to it.

        Raises:
            SinkError: The table has other columns.
        """
        import pyarrow as pa

        output = pa.schema([schema.field(name) for name in stored(self._sink, schema.names)])

        def grow() -> None:
            self._refresh()
            if self._columns() is None:
                self._create(output)
            columns = self._columns()
            assert columns is not None
            if new := added_columns(self._sink, columns[0], self._kinds(output), columns[1]):
                self._grow(output, new)

        self._attempt(grow)

    def _warn_of_overlap(self) -> None:
        """Log that a restored query adds rows that an earlier query has added, if so."""
        owner = self._owner
        if not owner.earlier or self._last_batch(owner.query) is not None:
            return
        for query in owner.earlier:
            last = self._last_batch(query)
            if self._sink.mode == "append" and last is not None and last >= owner.next_batch:
                _log.warning(
                    "%r: the query %s, from which this one was restored, has written batches up to %d to the table, "
                    "and this one goes on with batch %d: rows of batches in between are there twice unless the table "
                    "is rolled back",
                    self._sink,
                    query,
                    last,
                    owner.next_batch,
                )

    def _attempt(self, attempt: Callable[[], _T]) -> _T:
        """Return the result of an attempt at a commit, which is repeated while other writers overtake it.

        Raises:
            SinkError: They overtake it again and again, or it fails.
        """
        number = 0
        while True:
            number += 1
            try:
                return attempt()
            except KeyedError:
                raise
            except Exception as error:
                text = self._overtaken(error)
                if text is None:
                    raise self._failed(error) from error
                if number == ATTEMPTS:
                    raise SinkError(
                        f"{self._sink!r}: other writers of the table were first {ATTEMPTS} times: {text}"
                    ) from error
                _log.info("%r: another writer of the table was first, trying again: %s", self._sink, text)
