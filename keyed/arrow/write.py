"""Output columns as Arrow: the Arrow type of a Spark type, and arrays out of the values that functions emit.

Types are Spark's simple type names, as `keyed.base.schemas.Schema` has them. Values are tuples in their order,
dictionaries, rows, attrs or dataclass objects; a column that is alone takes its values bare as well. Columns are built
one by one: where all values of a column have the exact Python class of its type, Arrow takes the list as it is;
otherwise each value is converted or refused. Nothing is converted silently into something else: no float into an
integer column, no number into a string, no naive datetime into a timestamp.

    Spark type                       Python class
    boolean                          bool
    tinyint, smallint, int, bigint   int
    float, double                    float, int
    decimal                          Decimal, int
    string, char, varchar            str; UUID and enums with str values are written as their text
    binary                           bytes, bytearray
    date                             date
    timestamp                        aware datetime, or int: milliseconds since the epoch
    timestamp_ntz                    naive datetime
    interval day to second           timedelta
    array                            list, tuple, set, frozenset
    map                              dict
    struct                           as a row of columns

pyarrow is imported where it is used.
"""

from __future__ import annotations

import enum
import re
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import accumulate, chain
from numbers import Integral, Real
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any
from uuid import UUID

from keyed.arrow.read import column_values
from keyed.base.arguments import mistaken, shown
from keyed.base.schemas import ARROW_NAMES, INTEGERS, Schema, parse_ddl, simple_name, split_top_level
from keyed.errors import OutputDefinitionError
from keyed.rows import Row, fields_of, names_of, row_class

if TYPE_CHECKING:
    import pyarrow as pa

_NULL = type(None)
#: Classes into whose columns Arrow takes values of others: a number as days since 1970, a time as its date.
_OWN: tuple[Any, ...] = (datetime, date, time, timedelta, str, (bytes, bytearray), UUID)
#: Maximal number of tuples that one call splits.
_FEW = 16_384
#: The metadata of a stored column that queries show in another type.
_SHOWN = b"shown"
_DECIMAL = re.compile(r"decimal(?:\((\d+)(?:,\s*(-?\d+))?\))?")
_TEXT = re.compile(r"(?:string|(?:char|varchar)\(\d+\))(?: collate \S+)?")
#: The milliseconds of the years 1 to 9999, as Python has them: the first, and the first that is no more.
_FIRST_MS, _END_MS = -62_135_596_800_000, 253_402_300_800_000
_INTERVAL = re.compile(r"interval (?:day|hour|minute|second)(?: to (?:hour|minute|second))?")


class _MisfitError(Exception):
    """A value that does not fit its column; ``path`` is its place inside the column's value."""

    def __init__(self, value: Any, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.value = value
        self.reason = reason
        self.path = path


# Types ----------------------------------------------------------------------------------------------------------------


@lru_cache(256)
def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of output columns.

    Raises:
        OutputDefinitionError: A column has a type that is not known or that values cannot be written to.
    """
    import pyarrow as pa

    return pa.schema([pa.field(name, arrow_type(type_, f"column {name!r}")) for name, type_ in schema.columns])


def with_shown_type(field: Any, type_: pa.DataType) -> Any:
    """Return a stored column with the type in which queries of state tables show it, as a schema in its metadata."""
    import pyarrow as pa

    return field.with_metadata({_SHOWN: pa.schema([pa.field("", type_)]).serialize().to_pybytes()})


def shown_type_of(field: Any) -> Any:
    """Return the type in which queries of state tables show a stored column."""
    import pyarrow as pa

    shown = (field.metadata or {}).get(_SHOWN)
    return field.type if shown is None else pa.ipc.read_schema(pa.py_buffer(shown)).field(0).type


def arrow_type(type_: str, where: str = "type") -> pa.DataType:
    """Return the Arrow type of a Spark type.

    Args:
        type_: Simple type name or DDL, such as ``bigint`` or ``array<struct<a:int>>``.
        where: What has the type, for the message.

    Raises:
        OutputDefinitionError: The type is not known, or no values can be written to it.
    """
    import pyarrow as pa

    text = type_.strip()
    lower = simple_name(text).lower()
    if lower in ARROW_NAMES:
        simple: pa.DataType = pa.type_for_alias(ARROW_NAMES[lower])
        return simple
    if lower == "void":
        return pa.null()
    if _TEXT.fullmatch(lower):
        return pa.string()
    if lower == "timestamp":
        return pa.timestamp("us", "UTC")
    if lower == "timestamp_ntz":
        return pa.timestamp("us")
    if _INTERVAL.fullmatch(lower):
        return pa.duration("us")
    if digits := _DECIMAL.fullmatch(lower):
        precision, scale = int(digits[1] or 10), int(digits[2] or 0)
        if not max(1, scale) <= precision <= 38:
            raise OutputDefinitionError(
                f"{where}: {type_!r} must have 1 to 38 digits, at least those after the point, as decimal(18,2) has"
            )
        return pa.decimal128(precision, scale)
    if lower.endswith(">"):
        inside = text[text.index("<") + 1 : -1]
        if lower.startswith("array<"):
            return pa.list_(pa.field("element", arrow_type(inside, where)))
        if lower.startswith("map<"):
            parts = split_top_level(inside)
            if len(parts) == 2:
                return pa.map_(arrow_type(parts[0], where), arrow_type(parts[1], where))
        if lower.startswith("struct<"):
            fields = parse_ddl(inside)
            return pa.struct([pa.field(name, arrow_type(field, f"{where}, field {name!r}")) for name, field in fields])
    raise OutputDefinitionError(
        f"{where}: {type_!r} is not a Spark type that values can be written to; use for example string, bigint, "
        "double, timestamp, decimal(18,2), array<...>, map<...,...> or struct<name:type,...>"
    )


# Arrays ---------------------------------------------------------------------------------------------------------------


def table_of(values: Sequence[Any], schema: Schema | None, where: str = "output") -> pa.Table:
    """Return the emitted values as an Arrow table.

    Args:
        values: The values.
        schema: Their columns; ``None`` for rows, whose columns get the types that Arrow finds.
        where: What emitted them, for messages.

    Raises:
        OutputDefinitionError: A value does not fit.
    """
    import pyarrow as pa

    if schema is not None:
        target = arrow_schema(schema)
        return pa.Table.from_arrays(arrays_of(values, target, where), schema=target)
    names = values[0]._fields
    for cls in set(map(type, values)):
        if {*(fields_of(cls) or ())} != {*names}:
            other = next(value for value in values if type(value) is cls)
            raise OutputDefinitionError(
                f"{where}: {shown(values[0])} and {shown(other)} have different columns; declare the output's type, or "
                "give all rows the same ones, with None where there is no value"
            )
    columns = []
    for name in names:
        column = [_field(value, name) for value in values]
        try:
            classes = {*map(type, column)} - {_NULL}
            has_rows = any(issubclass(cls, Row | list) for cls in classes)
            columns.append(pa.array([*map(_named, column)] if has_rows else column))
            if len({each.tzinfo is None for each in column if isinstance(each, datetime)}) > 1:
                raise ValueError("times with and without a time zone")
            if len({next((own for own in _OWN if issubclass(cls, own)), None) for cls in classes}) > 1:
                raise ValueError(f"values of {' and '.join(sorted(cls.__name__ for cls in classes))}")
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise OutputDefinitionError(
                f"{where}: the values of column {name!r} have no common Arrow type ({error}); declare the output's type"
            ) from error
    return pa.table(columns, names=list(names))


def _named(value: Any) -> Any:
    """Return a value whose rows, also those in lists, are dictionaries."""
    if isinstance(value, Row):
        return {name: _named(each) for name, each in value._asdict().items()}
    return [*map(_named, value)] if isinstance(value, list) else value


def table_of_values(values: Sequence[Any], schema: Schema | None) -> pa.Table:
    """Return collected values of any kind as an Arrow table.

    Raises:
        OutputDefinitionError: They have no common columns or types.
    """
    import pyarrow as pa

    if schema is None and not values:
        return pa.table({})
    return table_of(values if schema is not None else list(map(_row_of, values)), schema, "result")


def _row_of(value: Any) -> Any:
    if fields_of(type(value)) is not None:
        return value
    names = names_of(value)
    return row_class(names)(_field(value, name) for name in names) if names else row_class(("value",))((value,))


def raw_table_of(rows: Sequence[Any], schema: Schema | None) -> pa.Table:
    """Write rows without refusing any: a value that does not fit is written as text, or as null if text does not fit.

    Args:
        rows: The rows.
        schema: The columns; ``None`` for those that the rows have, with the types that Arrow finds, or else text.
    """
    import pyarrow as pa

    fields = dict.fromkeys(name for row in rows for name in fields_of(type(row)) or ())
    types: dict[str, Any] = dict.fromkeys(fields, None)
    if schema is not None:
        target = arrow_schema(schema)
        types = dict(zip(target.names, target.types, strict=True))
    return pa.table({name: _raw_array([_field(row, name) for row in rows], type_) for name, type_ in types.items()})


def _raw_array(column: list[Any], type_: Any) -> Any:
    import pyarrow as pa

    try:
        return pa.array(column) if type_ is None else _array(column, type_)
    except (_MisfitError, pa.ArrowException, TypeError, ValueError, OverflowError):
        if type_ is None:
            return _raw_array(column, pa.string())
        # One by one, down to those that do not fit.
        if len(column) > 1:
            return pa.concat_arrays([_raw_array([value], type_) for value in column])
        text = str(column[0]).encode(errors="backslashreplace").decode()
        return pa.array([text if pa.types.is_string(type_) else None], type_)


def _field(row: Any, name: str) -> Any:
    """Return the field of a row, ``None`` if it has none of this name."""
    return row.get(name) if isinstance(row, Row | dict) else getattr(row, name, None)


def arrays_of(values: Sequence[Any], schema: pa.Schema, where: str) -> list[Any]:
    """Return the emitted values as one Arrow array a column.

    Args:
        values: The values.
        schema: The columns, as `arrow_schema` gives them.
        where: Operator and output, for messages.

    Raises:
        OutputDefinitionError: A value does not fit; names output, column, value and type.
    """
    return _by_column(values, schema, where, _array)


def converted_columns(values: Sequence[Any], schema: pa.Schema, where: str, *, raw: bool) -> tuple[list[Any], bool]:
    """Return the columns of values as a table of the schema has them, and whether the values are these already.

    Args:
        values: The values.
        schema: The columns.
        where: Operator and output, for messages.
        raw: Leave the values in the columns as they are.

    Raises:
        OutputDefinitionError: As of `arrays_of`.
    """
    convert = (lambda column, _: (column, True)) if raw else _converted
    columns, are_same = zip(*_by_column(values, schema, where, convert), strict=True)
    return list(columns), all(are_same)


def _by_column(values: Sequence[Any], schema: pa.Schema, where: str, use: Callable[[list[Any], Any], Any]) -> list[Any]:
    """Return the result of ``use`` for each column's values and type."""
    names = schema.names
    try:
        columns = _split(values, names, bare=len(names) == 1)
    except _MisfitError as misfit:
        raise OutputDefinitionError(
            f"{where}: {shown(misfit.value)} {misfit.reason}; the columns are {', '.join(names)}"
        ) from None
    results = []
    for field, column in zip(schema, columns, strict=True):
        try:
            results.append(use(column, field.type))
        except _MisfitError as misfit:
            raise OutputDefinitionError(
                f"{where}, column {field.name!r}{misfit.path}: {shown(misfit.value)} of type "
                f"{type(misfit.value).__name__} does not fit: {mistaken(misfit.value) or misfit.reason}"
            ) from None
    return results


def _converted(column: list[Any], type_: Any) -> tuple[list[Any], bool]:
    """Return what a table has for the values of a column, and whether these are the same.

    The usual values are checked by what is quicker than an array of Arrow.
    """
    import pyarrow as pa

    classes = set(map(type, column))
    with suppress(OverflowError, UnicodeEncodeError):
        if classes == {int} and pa.types.is_int64(type_):
            array("q", column)
            return column, True
        if classes == {str} and pa.types.is_string(type_):
            "".join(column).encode()
            return column, True
    values = _array(column, type_)
    if pa.types.is_timestamp(type_):
        zone = None if type_.tz is None else UTC
        is_same = classes <= {datetime, _NULL} and all(
            value is None or (value.tzinfo is zone and not value.fold) for value in column
        )
    else:
        # A decimal gets the scale of its type, and a float the bits.
        exact = _leaf(type_)[0] - ({bytearray, Decimal} if pa.types.is_integer(type_) else {int, bytearray, Decimal})
        is_same = classes <= exact and not pa.types.is_float32(type_)
    return (column, True) if is_same else (column_values(values), False)


def _split(values: Sequence[Any], names: list[str], *, bare: bool) -> list[list[Any]]:
    """Return the columns of values that are rows in some form."""
    classes = set(map(type, values))
    if len(classes) == 1:
        return _split_class(values, classes.pop(), names, bare=bare)
    # Several forms in one batch: each is split by itself, and the parts are put back in order.
    columns: list[list[Any]] = [[None] * len(values) for _ in names]
    for cls in classes:
        chosen = [position for position, value in enumerate(values) if type(value) is cls]
        parts = _split_class([values[position] for position in chosen], cls, names, bare=bare)
        for column, part in zip(columns, parts, strict=True):
            for position, item in zip(chosen, part, strict=True):
                column[position] = item
    return columns


def _split_class(values: Sequence[Any], cls: type, names: list[str], *, bare: bool) -> list[list[Any]]:
    """Split values that are all of one class into columns."""
    if cls is tuple:
        return _split_tuples(values, len(names))
    if cls is dict:
        try:
            return [list(map(itemgetter(name), values)) for name in names]
        except KeyError as error:
            wrong = next(value for value in values if error.args[0] not in value)
            raise _MisfitError(wrong, f"lacks {error.args[0]!r}") from None
    if (fields := fields_of(cls)) is not None:
        places = {name: position for position, name in enumerate(fields)}
        for name in names:
            if name not in places:
                raise _MisfitError(values[0], f"lacks {name!r}")
        return [[tuple.__getitem__(value, place) for value in values] for place in map(places.__getitem__, names)]
    if hasattr(cls, "__attrs_attrs__") or hasattr(cls, "__dataclass_fields__"):
        try:
            return [list(map(attrgetter(name), values)) for name in names]
        except AttributeError as error:
            raise _MisfitError(values[0], f"lacks a column: {error}") from None
    if bare:
        return [list(values)]
    raise _MisfitError(values[0], "is not a tuple, dict, row, attrs or dataclass object")


def _split_tuples(values: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    """Return the columns of tuples in the order of the columns."""
    if len(values) <= _FEW:
        # The quickest way for some thousand values, and it counts them; for many it costs several times as much.
        with suppress(ValueError):
            columns = list(zip(*values, strict=True))
            if len(columns) == width:
                return columns  # type: ignore[return-value]
    elif set(map(len, values)) == {width}:
        return [list(map(itemgetter(i), values)) for i in range(width)]
    wrong = next(value for value in values if len(value) != width)
    raise _MisfitError(wrong, f"has {len(wrong)} values for {width} columns")


def _array(column: list[Any], type_: Any) -> Any:
    """Return an array of a column's values."""
    import pyarrow as pa

    types = pa.types
    if types.is_struct(type_):
        return _struct_array(column, type_)
    if types.is_map(type_):
        return _map_array(column, type_)
    if types.is_list(type_):
        return _list_array(column, type_)
    classes, convert, rule = _leaf(type_)
    kinds = set(map(type, column))
    if types.is_timestamp(type_):
        return _timestamp_array(column, kinds, type_)
    if not kinds <= classes:
        column = [value if type(value) in classes else convert(value, rule) for value in column]
    try:
        return pa.array(column, type_)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        for value in column:
            try:
                pa.array([value], type_)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise _MisfitError(value, f"{rule} ({error})") from None
        raise


def _leaf(type_: Any) -> tuple[set[type], Callable[[Any, str], Any], str]:
    """Return the exact classes that a column takes as they are, how others are converted, and the rule in words."""
    import pyarrow as pa

    types = pa.types
    if types.is_integer(type_):
        return {int, _NULL}, _integer, f"{INTEGERS[type_.bit_width]} takes int in its range"
    if types.is_floating(type_):
        return {float, int, _NULL}, _float, "double and float take float, and int that they hold exactly"
    if types.is_string(type_):
        return {str, _NULL}, _text, "string takes str"
    if types.is_boolean(type_):
        return {bool, _NULL}, _refuse, "boolean takes bool"
    if types.is_decimal(type_):
        rule = f"decimal({type_.precision},{type_.scale})"
        return {Decimal, int, _NULL}, _refuse, f"{rule} takes Decimal and int that it holds exactly"
    if types.is_binary(type_):
        return {bytes, bytearray, _NULL}, _refuse, "binary takes bytes"
    if types.is_date(type_):
        return {date, _NULL}, _refuse, "date takes datetime.date"
    if types.is_duration(type_):
        return {timedelta, _NULL}, _refuse, "interval takes timedelta"
    return {_NULL}, _refuse, f"{type_} takes None"


def _refuse(value: Any, rule: str) -> Any:
    raise _MisfitError(value, rule)


def _integer(value: Any, rule: str) -> Any:
    if isinstance(value, enum.Enum):
        return _integer(value.value, rule)
    # Integers of other libraries (numpy's, say) are registered as such; a bool is an int in name only.
    if type(value) is bool or not issubclass(type(value), Integral):
        raise _MisfitError(value, rule)
    return int(value)


def _float(value: Any, rule: str) -> Any:
    if type(value) is bool or not issubclass(type(value), Real):
        raise _MisfitError(value, rule)
    return float(value)


def _text(value: Any, rule: str) -> Any:
    if isinstance(value, enum.Enum):
        return _text(value.value, rule) if type(value.value) is not str else value.value
    if isinstance(value, UUID | str):
        return str(value)
    raise _MisfitError(value, rule)


def _timestamp_array(column: list[Any], kinds: set[type], type_: Any) -> Any:
    import pyarrow as pa

    if type_.tz is not None and kinds <= {int, _NULL}:
        wrong = next((v for v in column if v is not None and not _FIRST_MS <= v < _END_MS), None)
        if wrong is not None:
            rule = "timestamp takes int as milliseconds since the epoch, and this is out of range, the years 1 to 9999"
            raise _MisfitError(wrong, rule)
        return pa.array(column, pa.timestamp("ms", type_.tz)).cast(type_)
    if type_.tz is not None:
        rule = "timestamp takes an aware datetime (add a zone: .replace(tzinfo=UTC)) or int milliseconds"
    else:
        rule = "timestamp_ntz takes a naive datetime"
    aware = type_.tz is not None
    plain = []
    for value in column:
        if value is None or (isinstance(value, datetime) and (value.tzinfo is not None) == aware):
            plain.append(value)
        elif aware and type(value) is int:
            return _timestamp_array([_as_milliseconds(v, rule) for v in column], {int, _NULL}, type_)
        else:
            raise _MisfitError(value, rule)
    return pa.array(plain, type_)


def _as_milliseconds(value: Any, rule: str) -> int | None:
    if value is None or type(value) is int:
        return value
    if isinstance(value, datetime) and value.tzinfo is not None and value.microsecond % 1000 == 0:
        return (value - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)
    raise _MisfitError(value, f"{rule}; one column has both")


def _struct_array(column: list[Any], type_: Any) -> Any:
    import pyarrow as pa

    fields = [type_.field(i) for i in range(type_.num_fields)]
    present = [value for value in column if value is not None]
    columns = _split(present, [f.name for f in fields], bare=False) if present else [[] for _ in fields]
    missing = len(present) < len(column)
    arrays = []
    for field, items in zip(fields, columns, strict=True):
        if missing:
            rest = iter(items)
            items = [None if value is None else next(rest) for value in column]
        arrays.append(_inside(items, field.type, f".{field.name}"))
    mask = pa.array([value is None for value in column]) if missing else None
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)


def _list_array(column: list[Any], type_: Any) -> Any:
    import pyarrow as pa

    for value in column:
        if type(value) not in (list, tuple, set, frozenset, _NULL):
            raise _MisfitError(value, "array takes list, tuple or set")
    items = _inside(list(chain.from_iterable(v for v in column if v is not None)), type_.value_type, "[]")
    return pa.ListArray.from_arrays(_offsets(column), items, type=type_)


def _map_array(column: list[Any], type_: Any) -> Any:
    import pyarrow as pa

    for value in column:
        if value is not None and not isinstance(value, dict):
            raise _MisfitError(value, "map takes dict")
    present = [value for value in column if value is not None]
    keys = _inside(list(chain.from_iterable(present)), type_.key_type, ", map key")
    items = _inside(list(chain.from_iterable(v.values() for v in present)), type_.item_type, ", map value")
    if keys.null_count:
        raise _MisfitError(next(value for value in present if None in value), "map takes no null key")
    return pa.MapArray.from_arrays(_offsets(column), keys, items, type=type_)


def _inside(items: list[Any], type_: Any, path: str) -> Any:
    try:
        return _array(items, type_)
    except _MisfitError as misfit:
        raise _MisfitError(misfit.value, misfit.reason, f"{path}{misfit.path}") from None


def _offsets(column: list[Any]) -> Any:
    """Return the offsets of list or map values; a null offset marks a null value."""
    import pyarrow as pa

    ends = list(accumulate((0 if value is None else len(value) for value in column), initial=0))
    marked = [None if value is None else start for value, start in zip(column, ends, strict=False)]
    return pa.array([*marked, ends[-1]], pa.int32())
