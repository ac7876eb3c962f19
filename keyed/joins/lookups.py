"""Look-up join: rows of a stream, enriched by an external function of their keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from numbers import Number
from typing import TYPE_CHECKING, Any, Literal, Unpack

from keyed import KeyedError, KeyedStream, Output, StateTtl
from keyed.errors import DefinitionError, OutputDefinitionError, StateAccessError, UserFunctionError
from keyed.extending import OperatorOptions, Schema, schema_of, shows_options, table_of, table_rows
from keyed.vectorized import BatchContext, TableState, VectorizedFunction

if TYPE_CHECKING:
    import pyarrow as pa

#: Returns the columns for keys, as a dictionary, object or tuple; keys may be missing.
LookupFunction = Callable[[list[Any]], Mapping[Any, Any]]
How = Literal["left", "inner"]
_FOUND = "__found"


@shows_options(OperatorOptions, store="memory")
def lookup_join(
    stream: KeyedStream,
    lookup: LookupFunction,
    columns: Any,
    *,
    how: How = "left",
    ttl: Any = None,
    keys_per_call: int = 1000,
    input: Any = None,
    name: str = "lookup_join",
    initial_state: Any = None,
    **options: Unpack[OperatorOptions],
) -> Output:
    """Add columns to the rows of a stream, looked up by their keys (Flink SQL's look-up join).

    ``lookup`` is called with the distinct keys of a micro-batch that are not cached. Its results, missing ones too,
    are kept in state for ``ttl`` and committed with the batch; a failed batch repeats its look-ups. Rows keep order and
    timestamps.

    Args:
        stream: The stream, keyed by the columns that are looked up.
        lookup: Takes a list of keys (tuples for several key columns), returns a mapping from those that exist to the
            values of ``columns``: a dictionary, a tuple in their order, or an object with these attributes; or an
            `AsyncLookup`.
        columns: The added columns: ``"name string, tier bigint"``.
        how: ``"left"`` keeps rows whose key does not exist, with nulls; ``"inner"`` omits them.
        ttl: Processing time for which results are kept; by default for ever.
        keys_per_call: Maximal number of keys of one call.
        input: Columns of the stream, if they are unknown before it runs: rows of an iterable.
        name: Name of the operator.
        initial_state: Earlier results for a new query, as in `KeyedStream.process`.
        options: As in `KeyedStream.process`; each key group makes its own calls.

    Raises:
        DefinitionError: A parameter breaks a rule.
    """
    if not isinstance(stream, KeyedStream):
        raise DefinitionError(f"lookup_join: stream={stream!r} is not keyed; give stream.key_by(...)")
    if not stream.key_columns:
        raise DefinitionError("lookup_join: the stream is keyed by a function; key it by the names of columns")
    if how not in ("left", "inner"):
        raise DefinitionError(f"how={how!r} must be 'left' or 'inner'")
    if type(keys_per_call) is not int or keys_per_call < 1:
        raise DefinitionError(f"keys_per_call={keys_per_call!r} must be an int above 0")
    if not callable(lookup):
        raise DefinitionError(f"lookup={lookup!r} is not callable; give a function of a list of keys")
    types = dict(schema_of(input).columns) if input is not None else stream.columns
    if types is None or None in types.values():
        columns_of = "its columns" if types is None else f"column {next(n for n, t in types.items() if t is None)!r}"
        raise DefinitionError(
            f"lookup_join: the type of {columns_of} is not known before the stream runs; give input='...'"
        )
    known = Schema(tuple((name, str(type_)) for name, type_ in types.items()))
    added = schema_of(columns)
    twice = [column for column in added.names if column in types]
    if twice:
        raise DefinitionError(f"columns={columns!r}: the stream has a column {twice[0]!r}; rename it")
    missing = [key for key in stream.key_columns if key not in types]
    if missing:
        raise DefinitionError(f"lookup_join: the key column {missing[0]!r} is not in the stream: {', '.join(types)}")
    function = LookupJoin(lookup, stream.key_columns, known, added, how, ttl, keys_per_call)
    schema = Schema((*known.columns, *added.columns))
    return stream.process(function, schema, name=name, order="arrival", initial_state=initial_state, **options)


class LookupJoin(VectorizedFunction):
    """The function of ``lookup_join``."""

    known_side_outputs = ()

    def __init__(
        self,
        lookup: LookupFunction,
        keys: tuple[str, ...],
        known: Schema,
        added: Schema,
        how: How,
        ttl: Any,
        keys_per_call: int,
    ) -> None:
        self._lookup = lookup
        self._keys = keys
        self._added = added
        self._how = how
        self._keys_per_call = keys_per_call
        types = dict(known.columns)
        self._stored = Schema((*((key, types[key]) for key in keys), *added.columns, (_FOUND, "boolean")))
        self._cache = TableState(
            self._stored.ddl, key=keys, name="looked_up", ttl=None if ttl is None else StateTtl(ttl)
        )

    def __repr__(self) -> str:
        return f"LookupJoin({', '.join(self._added.names)})"

    def process_batch(self, table: pa.Table, ctx: BatchContext) -> None:
        """Join the rows of a batch."""
        keys = table.select(list(self._keys))
        distinct = keys.group_by(list(self._keys), use_threads=False).aggregate([])
        self._look_up(distinct)
        # A row for each requested key, in their order: all of them are cached at this point.
        cached = self._cache.lookup(keys)
        for column in self._added.names:
            table = table.append_column(column, cached.column(column))
        ctx.emit(table if self._how == "left" else table.filter(cached.column(_FOUND)))

    def _look_up(self, keys: pa.Table) -> None:
        """Look up the keys that are not in the state, and store the results there."""
        try:
            known = set(_tuples(self._cache.lookup(keys), self._keys))
        except StateAccessError as error:
            raise DefinitionError(f"lookup_join: the keys have other types than input= declares: {error}") from error
        unknown = [key for key in _tuples(keys, self._keys) if key not in known]
        rows: list[tuple[Any, ...]] = []
        for start in range(0, len(unknown), self._keys_per_call):
            part = unknown[start : start + self._keys_per_call]
            requested = [key[0] if len(key) == 1 else key for key in part]
            results = self._requested(requested)
            pairs = zip(part, requested, strict=True)
            rows += [(*key, *self._columns_of(results.get(one)), one in results) for key, one in pairs]
        if rows:
            self._cache.upsert(table_of(rows, self._stored, "the results of lookup"))

    def _requested(self, keys: list[Any]) -> dict[Any, Any]:
        """Return the function's results for keys, without keys that were not requested and without ``None``.

        Raises:
            OutputDefinitionError: It returned no mapping, or one with keys of another type.
            UserFunctionError: It raised.
        """
        try:
            results = self._lookup(keys)
        except KeyedError:
            raise
        except Exception as error:
            requested = f"{keys!r:.200}"
            raise UserFunctionError(f"lookup of the keys {requested}: {type(error).__name__}: {error}") from error
        if not isinstance(results, Mapping):
            raise OutputDefinitionError(
                f"lookup returned a value of type {type(results).__name__} for {len(keys)} keys; return a mapping from "
                "keys to values"
            )
        present = {key: value for key in keys if (value := results.get(key)) is not None}
        other = next(iter(results), keys[0]) if not present else keys[0]
        both_numbers = isinstance(other, Number) and isinstance(keys[0], Number)
        if not both_numbers and not isinstance(other, type(keys[0])):
            raise OutputDefinitionError(
                f"lookup returned keys such as {other!r:.100} of type {type(other).__name__} for keys such as "
                f"{keys[0]!r:.100}; return a mapping from the keys that it gets"
            )
        return present

    def _columns_of(self, value: Any) -> list[Any]:
        """Return the columns of the results.

        Raises:
            OutputDefinitionError: The value lacks them.
        """
        names = self._added.names
        if value is None:
            return [None] * len(names)
        if isinstance(value, Mapping):
            parts: Iterable[Any] = (value[name] for name in names if name in value)
        elif isinstance(value, tuple | list):
            parts = value
        else:
            parts = (getattr(value, name) for name in names if hasattr(value, name))
        values = list(parts)
        if len(values) != len(names):
            raise OutputDefinitionError(f"lookup returned {value!r:.200}, which lacks the columns {', '.join(names)}")
        return values


def _tuples(table: pa.Table, names: tuple[str, ...]) -> Iterable[tuple[Any, ...]]:
    return map(tuple, table_rows(table.select(list(names))))
