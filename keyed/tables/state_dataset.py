"""A state table as an Arrow dataset: predicates on the key become look-ups and seeks, the others a filter.

DuckDB, Polars and other readers of a `pyarrow.dataset.Dataset` call its `scanner` with columns and a filter.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from io import BytesIO
from itertools import islice, product
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NoReturn
from uuid import UUID
from weakref import WeakSet

import attrs
import pyarrow as pa
import pyarrow.dataset

from keyed.arrow.write import arrow_type, shown_type_of
from keyed.codec.arrow_streams import read_schema
from keyed.codec.keys import encode_key
from keyed.codec.state_schema import MAPS
from keyed.errors import EncodingError, StateAccessError
from keyed.formats.json_writer import as_json
from keyed.rows import fields_of
from keyed.stores.database import successor
from keyed.tables.entries import Entry, EntryReader, OperatorTableReader
from keyed.tables.predicates import Bound, bounds_of

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from keyed.tables.operator_view import AsOf, View, Viewing

_ROWS = 8192
#: Number of window rows from which unknown column types are determined.
_LOOKED_AT = 100
_UTC_MILLISECONDS = pa.timestamp("ms", tz="UTC")
_OF_KEYS: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.datetime: pa.timestamp("us", tz="UTC"),
    dt.date: pa.date32(),
    dt.timedelta: pa.duration("us"),
    Decimal: pa.decimal128(38, 18),
    UUID: pa.string(),
}
_LEAVES: dict[str, pa.DataType] = {
    **{kind.__name__: type_ for kind, type_ in _OF_KEYS.items()},
    "bytearray": pa.binary(),
    "None": pa.null(),
    "time": pa.time64("us"),
}
#: The types of keys that bounds can be applied to: `keyed.tables.predicates` has values of these types in their encoded
#: form.
_SEEKABLE = (pa.string(), pa.int64(), pa.binary())


class StateDataset(pyarrow.dataset.Dataset):
    """The entries of one state table as rows.

    Columns: those of the key, with their names in ``key_by``; ``namespace`` as JSON; ``entry`` of lists and maps;
    ``valid_from`` and ``valid_to`` of versions; the fields of the value if it is a class, otherwise ``value``; and
    ``expires`` with a time to live. A table state has its own columns. Deletions in a versioned state are not rows.
    Types that Arrow lacks, and values without a declared type, are JSON.

    The key is ``key``, or ``key_1``, ``key_2`` ... with several parts, if ``key_by`` has a function or if another
    column has its name.

    Values are in their stored form, whatever ``types=`` the tables have: accumulators, and the values of enums.

    Each scan is of one batch: the newest one when it begins, or that of the snapshot.

    Args:
        state: Name of the state.
        view: Opens the state to be scanned.
        has_key: Repeat the key's columns as ``key``, or ``key_1``, ``key_2`` ...
        beside: ``namespace`` or ``expires``, which a table state has only if they are named here: they are null.
        groups: Only keys of these key groups; all that the tables have if ``None``.
        files: Files with further rows, Arrow streams that other servers have written (`ipc_parts`).
    """

    def __init__(
        self,
        state: str,
        view: Viewing,
        *,
        has_key: bool,
        beside: Collection[str] = (),
        groups: Collection[int] | None = None,
        files: Sequence[str] = (),
    ) -> None:
        self._state = state
        self._view = view
        self._groups = groups
        self._files = files
        self._scans: WeakSet[_Scan] = WeakSet()
        with view(None) as opened:
            reader = opened.reader(state, as_stored=True)
            self._columns = Columns(opened, reader, has_key=has_key, beside=beside, type_of=shown_type_of)
        # A part without rows does not have the types of the keys.
        parts = [batch.schema for batch in (next(_read(file), None) for file in files) if batch is not None]
        if self._columns.has_rows or not parts:
            parts.append(self._columns.schema)
        self._schema: pa.Schema = pa.unify_schemas(parts, promote_options="permissive")

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._schema

    def scanner(  # type: ignore[override]
        self,
        columns: list[str] | dict[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,
        **options: Any,
    ) -> pyarrow.dataset.Scanner:
        """Scan the rows that pass a filter.

        Args:
            columns: Names of columns, or expressions by the names of their results; all columns by default.
            filter: The filter. If it compares key columns with constants, only these keys are read.
            options: Those of `pyarrow.dataset.Dataset.scanner`.
        """
        scan = _Scan(self._batches(bounds_of(filter, self.schema)))
        self._scans.add(scan)
        reader = pa.RecordBatchReader.from_batches(self.schema, scan)
        options = {"use_threads": False, **options}
        return pyarrow.dataset.Scanner.from_batches(reader, columns=columns, filter=filter, **options)

    def rebind(self, other: StateDataset) -> bool:
        """Return the rows of another dataset from now on. Returns false, and does nothing, if its columns differ."""
        same = self.schema.equals(other.schema)
        if same:
            self._state, self._view, self._columns = other._state, other._view, other._columns
            self._groups, self._files = other._groups, other._files
        return same

    def release(self) -> None:
        """Release the tables until `rebind`; the columns are kept."""
        self._view = _rests

    def _batches(self, bounds: dict[str, Bound]) -> Generator[pa.RecordBatch]:
        with self._view(None) as view:
            entries = self._columns.entries(view, bounds, self._groups)
            while rows := list(islice(entries, _ROWS)):
                yield self._as_shown(self._columns.batch(rows))
        for file in self._files:
            for batch in _read(file):
                yield self._as_shown(batch)

    def _as_shown(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch if batch.schema.equals(self._schema) else batch.cast(self._schema)

    def ipc_parts(self) -> Generator[bytes]:
        """Yield the rows as an Arrow stream, part by part."""
        sink = BytesIO()
        with pa.ipc.new_stream(sink, self._schema) as writer:
            for batch in self._batches({}):
                writer.write_batch(batch)
                yield sink.getvalue()
                sink.seek(0)
                sink.truncate()
        yield sink.getvalue()

    def end_scans(self) -> None:
        """End running scans: Arrow's threads read ahead of a query, even when it needs no more rows."""
        for scan in list(self._scans):
            scan.end()

    def _unsupported(self, *arguments: Any, **options: Any) -> Any:
        raise StateAccessError(f"the dataset of state {self._state!r} can only be scanned; call to_table() first")

    filter = get_fragments = join = join_asof = replace_schema = sort_by = _unsupported
    partition_expression = property(_unsupported)

    def __reduce__(self) -> Any:
        return self._unsupported()

    def __repr__(self) -> str:
        return f"<StateDataset {self._state}: {', '.join(self.schema.names)}>"


class _Scan(Iterator[pa.RecordBatch]):
    """Batches that one thread reads, and that another thread may end."""

    def __init__(self, batches: Generator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._lock = threading.Lock()

    def __next__(self) -> pa.RecordBatch:
        with self._lock:
            return next(self._batches)

    def end(self) -> None:
        """End the scan, and wait for a read in progress."""
        with self._lock:
            self._batches.close()


def _rests(_: AsOf) -> NoReturn:
    raise StateAccessError("the dataset has released its tables")


@attrs.frozen
class TableColumn:
    """A column of a state.

    Attributes:
        name: Its name.
        type: Its type.
        make: Takes the value from an entry.
        role: ``"key"`` if it is one of those that identify a row; ``"place"`` is that of a list's element.
        is_declared: False if the type of its values is not declared, and ``type`` is that of the first ones.
    """

    name: str
    type: pa.DataType
    make: Callable[[Entry], Any]
    role: Literal["key", "namespace", "place", "value", "expires"] = "value"
    is_declared: bool = True

    def array(self, entries: Sequence[Entry], of: str) -> pa.Array[Any]:
        """Return its values.

        Raises:
            EncodingError: One is out of the range of its type. ``of`` is the state, for the message.
        """
        try:
            return pa.array([self.make(entry) for entry in entries], self.type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise EncodingError(f"column {self.name!r} of {of} cannot be {self.type}: {error}") from error


class Columns:
    """The columns of one state, and its entries as rows of them.

    Args:
        view: The state's view.
        reader: Its reader.
        has_key: See `StateDataset`.
        beside: See `StateDataset`.
        type_of: Returns the type of a stored column of a table state, by default the stored one.

    Attributes:
        reader: The reader of the state.
        columns: The columns, those of the key first.
        schema: Their names and types.
        key_names: Names of the key's columns.
        has_rows: False if the state has no entry yet, from which the types of the keys are known.
    """

    def __init__(
        self,
        view: View,
        reader: EntryReader,
        *,
        has_key: bool,
        beside: Collection[str] = (),
        type_of: Callable[[Any], Any] = lambda field: field.type,
    ) -> None:
        self.reader = reader
        schema = reader.schema
        first = next(view.stored(reader, *reader.range), None)
        others: list[TableColumn] = []
        named = view.at.key_columns
        key: Any = ("",) * len(named) if len(named) > 1 else ""
        if first is not None:
            key = reader.entry(*first).key
        names, self.key_types = _key_columns(reader, key, type_of)
        self.is_tuple = isinstance(key, tuple)
        makers = [_key_part(number) if self.is_tuple else _whole_key for number in range(len(names))]
        if schema.kind == "table":
            stored = read_schema(schema.value["arrow"])
            for number, name in enumerate(schema.key[schema.value["stream_keys"] :]):
                others.append(TableColumn(name, type_of(stored.field(name)), _entry_part(number), "key"))
            for name in stored.names:
                if name not in schema.key and name != "__keyed_due":
                    column_type = type_of(stored.field(name))
                    others.append(TableColumn(name, column_type, _stored_column(name, column_type)))
        elif isinstance(reader, OperatorTableReader):
            others += _window_columns(view, reader)
        else:
            if schema.kind != "broadcast":
                others += [TableColumn("namespace", pa.string(), lambda entry: _as_json(entry.namespace), "namespace")]
            if schema.kind == "list":
                place = pa.struct([("batch", pa.int64()), ("index", pa.int64())])
                others.append(TableColumn("entry", place, attrgetter("entry"), "place"))
            if schema.kind in MAPS:
                convert = converter_of(schema.key)
                others.append(TableColumn("entry", shown_type(schema.key), lambda entry: convert(entry.entry), "key"))
            if schema.kind == "versioned":
                others.append(TableColumn("valid_from", _UTC_MILLISECONDS, _entry_part(0), "key"))
                others.append(TableColumn("valid_to", _UTC_MILLISECONDS, _entry_part(1)))
            others += _value_columns(schema.value)
        if reader.clock is not None and schema.kind != "versioned":
            others.append(TableColumn("expires", _UTC_MILLISECONDS, lambda entry: entry.expires, "expires"))
        # Names that differ only by case are equal in SQL.
        other = {column.name.lower() for column in others}
        self.key_names = names
        if schema.kind == "table":
            self.key_names = schema.key[: len(names)]
        elif len(named) == len(names):
            self.key_names = [new if new.lower() not in other else old for old, new in zip(names, named, strict=True)]
        self._keys = names
        keys = [TableColumn(*each, "key") for each in zip(self.key_names, self.key_types, makers, strict=True)]
        self.columns: list[TableColumn] = []
        for column in (*keys, *others):
            other = {each.name.lower() for each in self.columns}
            name = column.name if column.name.lower() not in other else f"value_{column.name}"
            self.columns.append(attrs.evolve(column, name=name))
        other = {column.name.lower() for column in self.columns}
        repeated = [attrs.evolve(key, name=name) for key, name in zip(keys, names, strict=True) if has_key]
        nulls = [
            TableColumn(name, pa.string() if name == "namespace" else _UTC_MILLISECONDS, lambda entry: entry.namespace)
            for name in (beside if schema.kind == "table" else ())
        ]
        self.columns += [column for column in (*repeated, *nulls) if column.name not in other]
        self.schema = pa.schema([(column.name, column.type) for column in self.columns])
        self.has_rows = first is not None

    def entries(self, view: View, bounds: dict[str, Bound], groups: Collection[int] | None) -> Iterator[Entry]:
        """Yield the entries of the keys within bounds, of all key groups or of some."""
        reader = self.reader
        for first, end in self._ranges(bounds):
            entries = (
                reader.entry(*address)
                for address in view.scan(reader, first, end)
                if groups is None or view.group_of(address[0]) in groups
            )
            yield from with_validity(entries) if reader.schema.kind == "versioned" else entries

    def _ranges(self, bounds: dict[str, Bound]) -> Iterator[tuple[bytes, bytes]]:
        """Yield the ranges of addresses that hold the keys within bounds."""
        reader = self.reader
        known: list[list[Any]] = []
        for name, other, type_ in zip(self.key_names, self._keys, self.key_types, strict=True):
            bound = bounds.get(name) or bounds.get(other) or Bound()
            if type_ not in _SEEKABLE or bound.values is None:
                break
            known.append(bound.values)
        else:
            type_, bound = pa.null(), Bound()
        if known:
            for parts in product(*(sorted(set(values)) for values in known)):
                head = reader.key_head(parts[0])
                yield reader.bounds(parts, None, None) if self.is_tuple else (head, successor(head))
            return
        if type_ in _SEEKABLE and (bound.least is not None or bound.greatest is not None):
            first, end = reader.range
            head, part = reader.range[0], encode_key(())[:-1] if self.is_tuple else b""
            if bound.least is not None:
                first = head + part + encode_key(bound.least)
            if bound.greatest is not None:
                end = head + part + encode_key(bound.greatest) + b"\xff" * 9
            if first < end:
                yield first, end
            return
        yield reader.range

    def batch(self, entries: list[Entry]) -> pa.RecordBatch:
        """Return entries as rows.

        Raises:
            EncodingError: A value is out of the range of its column's type.
        """
        arrays = [column.array(entries, f"state {self.reader.schema.name!r}") for column in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _window_columns(view: View, reader: OperatorTableReader) -> Iterator[TableColumn]:
    """Yield the columns of a window and of the results; unknown types are determined from the rows."""
    of = reader.rows_of
    for number, (name, is_time) in enumerate(zip(of.bounds, of.are_times, strict=True)):
        make = _entry_part(number)
        if is_time:
            yield TableColumn(name, _UTC_MILLISECONDS, make, "key")
        else:
            yield TableColumn(name, pa.string(), partial(_json_of, make), "key")
    unknown = any(type_ is None for _, type_ in of.columns)
    first = list(islice(view.scan(reader, *reader.range), _LOOKED_AT if unknown else 0))
    rows = [reader.value(value) for _, _, value in first]
    for name, ddl in of.columns:
        type_ = _type_of([row[name] for row in rows]) if ddl is None else arrow_type(ddl)
        as_text = ddl is None and type_ == pa.string() and not all(isinstance(row[name], str | None) for row in rows)
        make = _converted(name, _as_json if as_text else partial(_plain, type_=type_))
        yield TableColumn(name, type_, make, is_declared=ddl is not None)


def _value_columns(fingerprint: Any) -> list[TableColumn]:
    """Return the columns of the value: the fields of a class, or one column."""
    fields = _fields_of(fingerprint)
    if fields is None:
        return [value_column(fingerprint)]
    return [TableColumn(name, shown_type(type_), _field(name, converter_of(type_))) for name, type_ in fields]


def value_column(fingerprint: Any) -> TableColumn:
    """Return the column of a value of a declared type."""
    convert = converter_of(fingerprint)
    return TableColumn("value", shown_type(fingerprint), lambda entry: convert(entry.value))


def _read(file: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an Arrow stream in a file."""
    with pa.OSFile(file, "rb") as opened, pa.ipc.open_stream(opened) as reader:
        yield from reader


def with_validity(entries: Iterator[Entry]) -> Iterator[Entry]:
    """Yield the versions other than deletions, with the start and end of their validity."""
    newer = None
    for entry in entries:
        same = newer is not None and (newer.key, newer.namespace) == (entry.key, entry.namespace)
        valid_to = newer.entry if newer is not None and same else None
        newer = entry
        if entry.value is not None:
            yield attrs.evolve(entry, entry=(entry.entry, valid_to))


def _type_of(values: list[Any]) -> pa.DataType:
    """Return the type of a column with these values; text without values, or for values of several types."""
    classes = {type(value) for value in values if value is not None}
    if classes == {int, float}:
        return pa.float64()
    return _OF_KEYS.get(classes.pop(), pa.string()) if len(classes) == 1 else pa.string()


def _key_columns(reader: EntryReader, key: Any, type_of: Callable[[Any], Any]) -> tuple[list[str], list[pa.DataType]]:
    """Return names and types of the key columns, from the first key."""
    schema = reader.schema
    if schema.kind == "table":
        stored = read_schema(schema.value["arrow"])
        types = [type_of(stored.field(name)) for name in schema.key[: schema.value["stream_keys"]]]
        return _names_of(len(types)), types
    if schema.kind == "broadcast":
        return [], []
    if isinstance(reader, OperatorTableReader) and None not in reader.rows_of.key_types:
        types = [arrow_type(type_) for type_ in reader.rows_of.key_types]
        return _names_of(len(types)), types
    parts = key if isinstance(key, tuple) else (key,)
    names = [f"key_{number}" for number in range(1, len(parts) + 1)] if isinstance(key, tuple) else ["key"]
    return names, [_OF_KEYS.get(type(part), pa.string()) for part in parts]


def _names_of(count: int) -> list[str]:
    return [f"key_{number}" for number in range(1, count + 1)] if count > 1 else ["key"]


def _whole_key(entry: Entry) -> Any:
    return _key_value(entry.key)


def _key_part(number: int) -> Callable[[Entry], Any]:
    return lambda entry: _key_value(entry.key[number])


def _entry_part(number: int) -> Callable[[Entry], Any]:
    return lambda entry: entry.entry[number]


def _field(name: str, convert: Callable[[Any], Any]) -> Callable[[Entry], Any]:
    return lambda entry: convert(getattr(entry.value, name, None))


def _json_of(part: Callable[[Entry], Any], entry: Entry) -> str | None:
    return _as_json(part(entry))


def _stored_column(name: str, type_: pa.DataType) -> Callable[[Entry], Any]:
    if pa.types.is_nested(type_):
        return lambda entry: _plain(entry.value.get(name), type_)
    return lambda entry: entry.value.get(name)


def _converted(name: str, convert: Callable[[Any], Any]) -> Callable[[Entry], Any]:
    return lambda entry: convert(entry.value[name])


def _key_value(part: Any) -> Any:
    return part if type(part) in _OF_KEYS and not isinstance(part, UUID) else _as_text(part)


def _fields_of(fingerprint: Any) -> list[tuple[str, Any]] | None:
    """Return the fields of a class with their types; ``None`` for other types."""
    if isinstance(fingerprint, dict) and fingerprint["kind"] == "fields":
        return [(name, field["type"]) for name, field in fingerprint["fields"].items()]
    if isinstance(fingerprint, dict) and fingerprint["kind"] == "array":
        return [(name, type_) for name, type_, _ in fingerprint["fields"]]
    return None


def shown_type(fingerprint: Any) -> pa.DataType:
    """Return the Arrow type of a declared type; text, which is JSON, for what Arrow lacks."""
    if isinstance(fingerprint, str):
        return _LEAVES.get(fingerprint, pa.string())
    fields = _fields_of(fingerprint)
    if fields is not None:
        return pa.struct([(name, shown_type(type_)) for name, type_ in fields])
    match fingerprint["kind"]:
        case "list" | "set" | "frozenset" | "variadic":
            return pa.list_(shown_type(fingerprint["items"]))
        case "tuple":
            items = enumerate(fingerprint["items"], 1)
            return pa.struct([(f"item_{number}", shown_type(item)) for number, item in items])
        case "dict":
            return pa.map_(shown_type(fingerprint["keys"]), shown_type(fingerprint["values"]))
        case "union":
            rest = [type_ for type_ in fingerprint["types"] if type_ != "None"]
            return shown_type(rest[0]) if len(rest) == 1 else pa.string()
        case "enum" | "literal":
            kinds = {type(value) for value in fingerprint["values"]}
            return _OF_KEYS.get(kinds.pop(), pa.string()) if len(kinds) == 1 else pa.string()
        case "constrained":
            return shown_type(fingerprint["type"])
    return pa.string()


def converter_of(fingerprint: Any) -> Callable[[Any], Any]:
    """Return the conversion of values of a declared type to the values that Arrow accepts for it."""
    if isinstance(fingerprint, str):
        return _as_text if fingerprint == "UUID" else _as_it_is if fingerprint in _LEAVES else _as_json
    if fingerprint["kind"] == "constrained":
        return converter_of(fingerprint["type"])
    if fingerprint["kind"] == "union":
        rest = [type_ for type_ in fingerprint["types"] if type_ != "None"]
        if len(rest) == 1:
            return converter_of(rest[0])
    if fingerprint["kind"] in ("enum", "literal") and all(isinstance(value, str) for value in fingerprint["values"]):
        return _as_it_is
    type_ = shown_type(fingerprint)
    return _as_json if type_ == pa.string() else partial(_plain, type_=type_)


def _plain(value: Any, type_: pa.DataType) -> Any:
    """Return a value in the form that Arrow accepts for a type: classes as dicts, tuples as structs."""
    if value is None:
        return None
    types = pa.types
    if types.is_struct(type_):
        fields = [type_.field(number) for number in range(type_.num_fields)]
        if isinstance(value, tuple) and fields_of(type(value)) is None:
            return {field.name: _plain(item, field.type) for field, item in zip(fields, value, strict=False)}
        of = value.get if isinstance(value, Mapping) else partial(getattr, value)
        return {field.name: _plain(of(field.name, None), field.type) for field in fields}
    if types.is_map(type_):
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(_plain(key, type_.key_type), _plain(item, type_.item_type)) for key, item in pairs]
    if types.is_list(type_):
        items = sorted(value, key=ascii) if isinstance(value, set | frozenset) else value
        return [_plain(item, type_.value_type) for item in items]
    if types.is_string(type_) and not isinstance(value, str):
        return _as_text(value) if isinstance(value, UUID) else _as_json(value)
    return value


def _as_it_is(value: Any) -> Any:
    return value


def _as_text(value: Any) -> Any:
    return None if value is None else str(value)


def _as_json(value: Any) -> str | None:
    return None if value is None else as_json(value).decode()
