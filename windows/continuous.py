"""Continuous aggregates: a row for each key, updated by each batch with rows of the key. There is no window.

The equivalent of ksqlDB's ``CREATE TABLE ... AS SELECT ... GROUP BY``, and of Flink SQL's aggregation with
mini-batches.
"""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Unpack

from keyed import Context, KeyedProcessFunction, KeyedStream, OpenContext, Output, ValueState
from keyed.errors import DefinitionError
from keyed.extending import OperatorOptions, Schema, inner_state, schema_of, shows_options
from keyed.job.execution_path import Path, check_path, choose_path, plain_type, shown_path
from keyed.vectorized import BatchContext, TableState, VectorizedFunction
from keyed.windows.aggregates import AnyAggregate
from keyed.windows.definition import derived_schema, named_aggregates
from keyed.windows.general import no_timestamp
from keyed.windows.paths import columns_reason
from keyed.windows.window_context import row_maker

if TYPE_CHECKING:
    import pyarrow as pa

ACCUMULATORS = "accumulators"


@shows_options(OperatorOptions, store="memory")
def aggregate(
    stream: KeyedStream,
    aggregates: Mapping[str, Any],
    *,
    output: Any = None,
    name: str = "aggregates",
    path: Path = "auto",
    **options: Unpack[OperatorOptions],
) -> Output:
    """Aggregate all rows of each key continuously: ``aggregate(readings.key_by("sensor"), {"avg": Mean("reading")})``.

    Each key with rows in a batch emits one row: key columns and current aggregates, with the highest timestamp of those
    rows. It replaces the key's earlier rows.

    The results are also a state: with a changelog, `keyed.tables.open_tables` has them as ``tables[name]``.

    Args:
        stream: The keyed stream.
        aggregates: The aggregates by column name.
        output: Columns of the output; by default they follow from the input's.
        name: Name of the operator, and of its state.
        path: As of `WindowedStream.path`.
        options: As in `KeyedStream.process`.

    Raises:
        DefinitionError: A parameter breaks a rule, or parameters do not fit each other.
        OutputDefinitionError: On Spark, the columns cannot be derived and are not given.
    """
    if not isinstance(stream, KeyedStream):
        raise DefinitionError(f"aggregate: stream={stream!r} is not keyed; give stream.key_by(...)")
    check_path(path)
    named = named_aggregates(aggregates)
    keys, columns = stream.key_columns or ("key",), stream.columns
    twice = [column for column in named if column in keys]
    if twice:
        raise DefinitionError(f"aggregates={{{twice[0]!r}: ...}}: the key has a column of that name; rename the other")
    reason = choose_path(path, columns_reason(named.values(), columns, stream.key_columns), "these aggregates")
    schema = _derived(named, keys, columns, strict=stream.on_spark) if output is None else schema_of(output)
    function: ContinuousRows | ContinuousColumns
    if reason is None and columns is not None and (derived := _derived(named, keys, columns, strict=True)):
        function = ContinuousColumns(name, named, derived, {n: t for n, t in columns.items() if t is not None})
    else:
        function = ContinuousRows(name, named, keys, reason)
    return stream.process(function, schema, name=name, order="arrival", **options)


class ContinuousRows(KeyedProcessFunction):
    """Continuous aggregates row by row.

    Args:
        name: Name of the state with the results.
        aggregates: The aggregates by name.
        keys: Names of the key's columns.
        reason: The reason why they are not computed over whole columns.
    """

    def __init__(
        self, name: str, aggregates: Mapping[str, AnyAggregate], keys: tuple[str, ...], reason: str | None
    ) -> None:
        self._names = tuple(aggregates)
        self._aggregates = tuple(aggregates.values())
        self._keys = keys
        self._reason = reason
        types: Any = tuple(aggregate.accumulator_type or object for aggregate in self._aggregates)
        self._results = ValueState(dict[str, object], name=name)
        self._accumulators: ValueState[Any] = inner_state(
            ValueState(tuple[types], name=ACCUMULATORS), in_place=True, is_shown=False
        )

    def open(self, context: OpenContext) -> None:
        self._make = row_maker((*self._keys, *self._names))
        self._times: dict[Any, int] = {}

    def process_element(self, value: Any, ctx: Context) -> None:
        time = ctx.timestamp()
        cells = self._accumulators.value()
        if cells is None:
            cells = tuple(aggregate.create_accumulator() for aggregate in self._aggregates)
        added = []
        for aggregate, cell in zip(self._aggregates, cells, strict=True):
            if not aggregate.timed:
                added.append(aggregate.add(value, cell))
            elif time is None:
                raise no_timestamp(value)
            else:
                added.append(aggregate.add_at(value, time, cell))
        self._accumulators.update(tuple(added))
        if time is not None:
            key = ctx.get_current_key()
            self._times[key] = max(time, self._times.get(key, time))

    def on_batch_end(self, ctx: Context) -> None:
        key = ctx.get_current_key()
        cells = self._accumulators.value()
        results = [aggregate.get_result(cell) for aggregate, cell in zip(self._aggregates, cells, strict=True)]
        self._results.update(dict(zip(self._names, results, strict=True)))
        keys = (key,) if len(self._keys) == 1 else key
        ctx.collect(self._make((*keys, *results)), self._times.pop(key, None))

    @property
    def explanation(self) -> str:
        """The path of the aggregates and its reason, for `keyed.Output.explain`."""
        return shown_path(self._reason)


class RunningColumns(VectorizedFunction):
    """Base of running totals over whole columns: accumulators, and the values that each `CountDistinct` has counted.

    Args:
        aggregates: The aggregates by name.
        key_types: Names and types of the key's columns.
        columns: Types of the input's columns.
        counts_apart: The values that a `CountDistinct` has counted are rows; otherwise its accumulator has them.

    Attributes:
        totals: Computes them.
    """

    def __init__(
        self,
        aggregates: Mapping[str, AnyAggregate],
        key_types: Sequence[tuple[str, str]],
        columns: Mapping[str, str],
        *,
        counts_apart: bool = True,
    ) -> None:
        from keyed.windows.vectorized.running_totals import DISTINCT_VALUE, RunningTotals, distinct_columns

        keys = tuple(name for name, _ in key_types)
        self.totals = RunningTotals(aggregates, keys, columns, counts_apart=counts_apart)
        accumulators = TableState(Schema((*key_types, *self.totals.parts)).ddl, key=keys, name=ACCUMULATORS)
        self.accumulators = inner_state(accumulators, is_shown=False)
        #: The attribute of the state with the distinct values of an aggregate, by its name.
        self._distinct: dict[str, str] = {}
        for number, (aggregate, column) in enumerate(distinct_columns(aggregates if counts_apart else {}).items()):
            schema = Schema((*key_types, (DISTINCT_VALUE, plain_type(columns[column]))))
            values = TableState(schema.ddl, key=schema.names, name=_distinct_name(aggregate))
            self._distinct[aggregate] = f"_distinct_{number}"
            setattr(self, self._distinct[aggregate], inner_state(values, is_shown=False))

    def counted(self) -> dict[str, TableState]:
        """Return the values that each `CountDistinct` has counted."""
        return {name: getattr(self, attribute) for name, attribute in self._distinct.items()}


class ContinuousColumns(RunningColumns):
    """Continuous aggregates over whole columns, with the results of `ContinuousRows`.

    Args:
        name: Name of the state with the results.
        aggregates: The aggregates by name.
        results: Columns of the key and the results.
        columns: Types of the input's columns.
    """

    def __init__(
        self, name: str, aggregates: Mapping[str, AnyAggregate], results: Schema, columns: Mapping[str, str]
    ) -> None:
        key_types = results.columns[: len(results.columns) - len(aggregates)]
        super().__init__(aggregates, key_types, columns)
        self._results = TableState(results.ddl, key=[key for key, _ in key_types], name=name)

    def combine(self, table: pa.Table) -> pa.Table:
        combined: pa.Table = self.totals.combine(table)
        return combined

    def process_batch(self, table: pa.Table, ctx: BatchContext) -> None:
        self.totals.add(table, self.accumulators, self.counted(), self._results, ctx)

    @property
    def explanation(self) -> str:
        """The path of the aggregates and its reason, for `keyed.Output.explain`."""
        return f"{shown_path(None)}, a row of state per key"


def _distinct_name(aggregate: str) -> str:
    """Return the name of the state with the distinct values of an aggregate, whose name may be any text."""
    if re.fullmatch(r"[A-Za-z0-9_-]{1,100}", aggregate):
        return f"distinct_{aggregate}"
    return f"distinct-{blake2b(aggregate.encode(), digest_size=16).hexdigest()}"


def _derived(
    aggregates: Mapping[str, AnyAggregate], keys: tuple[str, ...], columns: Mapping[str, Any] | None, *, strict: bool
) -> Schema | None:
    """Return the columns of the key and of the results; ``None`` if they do not follow from the input's.

    Raises:
        OutputDefinitionError: ``strict`` is true, and they do not.
    """
    if columns is None:
        types: dict[str, str | None] = dict.fromkeys((*keys, *aggregates))
    else:
        types = {key: columns.get(key) for key in keys}
        types |= {name: aggregate.output_type(columns) for name, aggregate in aggregates.items()}
    return derived_schema({name: type_ and plain_type(type_) for name, type_ in types.items()}, strict=strict)
