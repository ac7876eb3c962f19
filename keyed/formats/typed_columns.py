"""Values from anywhere as columns of declared types: strictly, at any depth, from every kind of input alike.

A value that does not fit its type is bad, never null and never another value. `column` returns a column with reasons
of bad rows. Text of a number, truth or time is one, as CSV files have it; a date is the timestamp of its midnight;
times without a zone are in UTC, and below a millisecond they are rounded down; bytes as text are base64; anything plain
is text.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Context, Decimal, InvalidOperation
from functools import partial
from typing import Any, NoReturn, cast

import pyarrow as pa
import pyarrow.compute

from keyed.arrow import read
from keyed.arrow.event_times import whole_milliseconds
from keyed.formats.json_writer import as_json
from keyed.formats.sql_types import BadValue, SqlType
from keyed.rows import fields_of

pc: Any = pyarrow.compute
_nulls: Any = pa.nulls
Convert = Callable[[Any], Any]
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - in UTC
_DAY_MS = 86_400_000
_EXACT = Context(prec=80)
_TRUTHS = {"true": True, "t": True, "yes": True, "1": True, "false": False, "f": False, "no": False, "0": False}
#: Days and milliseconds that Python's dates have: from the year 1 to 9999.
_DAYS = ((dt.date.min - _EPOCH.date()).days, (dt.date.max - _EPOCH.date()).days)
_MOMENTS = (_DAYS[0] * _DAY_MS, (_DAYS[1] + 1) * _DAY_MS - 1)
_WHOLE = re.compile(r"[+-]?[0-9]{1,40}(\.0{0,40})?")
_TIME = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?")


def column(values: Sequence[Any] | pa.Array[Any], type_: SqlType) -> tuple[pa.Array[Any], dict[int, str]]:
    """Return values as a column of a type, and the reasons of rows whose value does not fit, which are null.

    Args:
        values: A list of Python values, or a column of any type.
        type_: The type.
    """
    target = type_.arrow
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        if values.type == target:
            return values, {}
        cast = _cast(values, type_)
        if cast is not None:
            return cast, {}
        values = _values(values)
    elif type_.base in _PLAIN and set(map(type, values)) <= {*_PLAIN[type_.base], type(None)}:
        try:
            return pa.array(values, target), {}
        except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
            pass
    elif type_.base in _NUMBERED and set(map(type, values)) <= {int, type(None)}:
        numbered = _of_numbers(values, type_)
        if numbered is not None:
            return numbered, {}
    convert = converter(type_)
    cells: list[Any] = []
    bad: dict[int, str] = {}
    for place, value in enumerate(values):
        try:
            cells.append(None if value is None else convert(value))
        except (BadValue, RecursionError) as error:
            cells.append(None)
            bad[place] = str(error) or "it is nested too deeply"
    return pa.array(cells, target), bad


def columns_of(
    cells: Mapping[str, Any], columns: Iterable[tuple[str, SqlType]], count: int, bad: dict[int, str]
) -> list[pa.Array[Any]]:
    """Return the cells of rows as columns, null where there are none; add the reasons of bad rows to those known."""
    arrays = []
    for name, type_ in columns:
        converted, reasons = column(cells[name] if name in cells else [None] * count, type_)
        arrays.append(converted)
        for place, reason in reasons.items():
            bad.setdefault(place, f"column {name}: {reason}")
    return arrays


#: The Python types whose values Arrow converts to a type without a change.
_PLAIN: dict[str, frozenset[type]] = {
    "BOOLEAN": frozenset({bool}),
    "INT": frozenset({int}),
    "BIGINT": frozenset({int}),
    "DOUBLE": frozenset({float, int}),
    "STRING": frozenset({str}),
    "BYTES": frozenset({bytes}),
}


#: The least and the highest numbers of dates and times.
_NUMBERED = {"DATE": _DAYS, "TIME": (0, _DAY_MS - 1), "TIMESTAMP": _MOMENTS}


def _of_numbers(values: Sequence[int | None], type_: SqlType) -> Any:
    """Return numbers as dates or times; ``None`` if one is out of range."""
    try:
        numbers = pa.array(values, pa.int64())
    except (pa.ArrowInvalid, OverflowError):
        return None
    bounds, (least, most) = pc.min_max(numbers).as_py(), _NUMBERED[type_.base]
    if bounds["min"] is not None and not least <= bounds["min"] <= bounds["max"] <= most:
        return None
    if type_.base == "DATE":
        return numbers.cast(pa.int32()).cast(pa.date32())
    return numbers if type_.base == "TIME" else pc.multiply(numbers, 1000).cast(pa.timestamp("us"))


_is: Any = pa.types
#: Return true for Arrow's types whose values only need a cast to a type.
_SAME: dict[str, Callable[[pa.DataType], bool]] = {
    "INT": _is.is_integer,
    "BIGINT": _is.is_integer,
    "DOUBLE": lambda source: _is.is_floating(source) or (_is.is_integer(source) and source.bit_width < 64),
    "STRING": lambda source: _is.is_large_string(source) or _is.is_string_view(source),
    "BYTES": lambda source: (
        _is.is_large_binary(source) or _is.is_binary_view(source) or _is.is_fixed_size_binary(source)
    ),
    "DATE": _is.is_date,
    "TIMESTAMP": _is.is_date,
}


def _cast(values: pa.Array[Any], type_: SqlType) -> pa.Array[Any] | None:
    """Return a column of another Arrow type if each value is the same there; ``None`` if one needs a closer look."""
    source, kinds = values.type, pa.types
    if kinds.is_null(source):
        array: pa.Array[Any] = _nulls(len(values), type_.arrow)
        return array
    if kinds.is_dictionary(source):
        values = cast("Any", values).dictionary_decode()
        source = values.type
    try:
        match type_.base:
            case base if base in _SAME and _SAME[base](source):
                return values.cast(type_.arrow)
            case "DECIMAL" if kinds.is_integer(source) or kinds.is_decimal(source):
                return values.cast(pa.decimal256(76, type_.scale)).cast(type_.arrow)
            case "TIME" if kinds.is_time(source):
                return cast("pa.Array[Any]", pc.divide(values.cast(pa.time64("us")).cast(pa.int64()), 1000))
            case "TIMESTAMP" if kinds.is_timestamp(source):
                numbers: Any = pc.multiply_checked(whole_milliseconds(values), 1000)
                return cast("pa.Array[Any]", numbers.cast(pa.timestamp("us")))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    return None


def _values(values: pa.Array[Any]) -> list[Any]:
    """Return a column as Python values; timestamps that Python does not have are numbers of milliseconds."""
    if pa.types.is_timestamp(values.type):
        cells: list[Any] = whole_milliseconds(values).to_pylist()
        return cells
    try:
        return values.to_pylist()
    except (ValueError, OverflowError, UnicodeDecodeError):
        return [_value(values[place]) for place in range(len(values))]


def _value(cell: Any) -> Any:
    try:
        return cell.as_py()
    except (ValueError, OverflowError, UnicodeDecodeError) as error:
        return error


def _bad(value: Any, type_: SqlType) -> NoReturn:
    if isinstance(value, Exception):
        raise BadValue(f"it is no {type_}: {value}")
    shown = f"{value!r:.60}" if isinstance(value, str | int | float | Decimal | bytes) else f"a {type(value).__name__}"
    raise BadValue(f"{shown} is no {type_}")


def converter(type_: SqlType) -> Convert:
    """Return the function from a value that is not null to one that Arrow takes for a type. It raises `BadValue`."""
    parts = [converter(each) for each in type_.parts]
    convert: Callable[[Any, SqlType], Any]
    match type_.base:
        case "ARRAY":
            convert = partial(_items, item=parts[0])
        case "MAP":
            convert = partial(_entries, key=parts[0], item=parts[1])
        case "STRUCT":
            convert = partial(_struct, fields=[(name, name.lower(), converter(each)) for name, each in type_.fields])
        case base:
            convert = _CONVERTERS[base]
    # `isinstance` believes an object that names another class.
    return lambda value: convert(value, type_) if value.__class__ is type(value) else _bad(value, type_)


def _truth(value: Any, type_: SqlType) -> bool:
    if isinstance(value, str):
        value = _TRUTHS.get(value.strip().lower(), value)
    return value if isinstance(value, bool) else _bad(value, type_)


def _integer(value: Any, type_: SqlType, bits: int = 0) -> int:
    number: Any = value
    if isinstance(value, str):
        number = int(value.strip().partition(".")[0]) if _WHOLE.fullmatch(value.strip()) else None
    elif isinstance(value, float | Decimal):
        # Of a number such as 1e999999999 there is not even the whole part.
        is_finite = value.is_finite() if isinstance(value, Decimal) else math.isfinite(value)
        fits = is_finite and -(2**64) < value < 2**64
        number = int(value) if fits and value == int(value) else None
    limit = 1 << (bits or (31 if type_.base == "INT" else 63))
    if not isinstance(number, int) or isinstance(number, bool) or not -limit <= number < limit:
        _bad(value, type_)
    return int(number)


def _check_number(value: Any, type_: SqlType) -> None:
    is_number = isinstance(value, int | float | Decimal | str) and not isinstance(value, bool)
    if not is_number or (isinstance(value, str) and ("_" in value or len(value) > 400)):
        _bad(value, type_)


def _double(value: Any, type_: SqlType) -> float:
    _check_number(value, type_)
    try:
        return float(value)
    except (ValueError, OverflowError):
        _bad(value, type_)


def _decimal(value: Any, type_: SqlType) -> Decimal:
    _check_number(value, type_)
    try:
        exact = Decimal(str(value) if isinstance(value, float) else value)
        if not exact.is_finite() or exact.adjusted() >= 40:
            _bad(value, type_)
        quantized = exact.quantize(Decimal(1).scaleb(-type_.scale), context=_EXACT)
    except InvalidOperation:
        _bad(value, type_)
    if quantized != exact or (quantized and quantized.adjusted() >= type_.precision - type_.scale):
        _bad(value, type_)
    return quantized or quantized.copy_abs()


def _text(value: Any, type_: SqlType) -> str:
    try:
        if isinstance(value, str):
            value.encode()
            return str(value)
        if isinstance(value, dict | list):
            return as_json(value).decode()
    except UnicodeEncodeError:
        raise BadValue("it has half a surrogate pair, which is no character") from None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, Decimal):
        return format(value, "f") if abs(value.adjusted()) < 400 else str(value)
    # The time that pandas has for none differs from itself.
    if isinstance(value, dt.datetime | dt.date | dt.time) and value == value:  # noqa: PLR0124
        return value.isoformat()
    _bad(value, type_)


def _bytes(value: Any, type_: SqlType) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise BadValue(f"{value!r:.60} is no base64") from None
    _bad(value, type_)


def _date(value: Any, type_: SqlType) -> int:
    if isinstance(value, dt.datetime):
        if value.time() != dt.time():
            _bad(value.isoformat(), type_)
        value = value.date()
    if isinstance(value, dt.date):
        return (value - _EPOCH.date()).days
    if isinstance(value, str) and (len(value.strip()) == 8 or not _WHOLE.fullmatch(value.strip())):
        try:
            return (dt.date.fromisoformat(value.strip()) - _EPOCH.date()).days
        except ValueError:
            if _WHOLE.fullmatch(value.strip()) is None:
                _bad(value, type_)
    days = _integer(value, type_, 31)
    return days if _DAYS[0] <= days <= _DAYS[1] else _bad(value, type_)


def _time(value: Any, type_: SqlType) -> int:
    if isinstance(value, dt.time) and value.tzinfo is None:
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + value.microsecond // 1000
    if isinstance(value, dt.timedelta):
        value = value // dt.timedelta(milliseconds=1)
    if isinstance(value, str) and not _WHOLE.fullmatch(value.strip()):
        parts = _TIME.fullmatch(value.strip())
        if parts is None:
            _bad(value, type_)
        hours, minutes, seconds, rest = parts.groups()
        if int(minutes) > 59 or int(seconds or 0) > 59:
            _bad(value, type_)
        milliseconds = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds or 0)) * 1000 + int(
            (rest or "0").ljust(3, "0")[:3]
        )
    else:
        milliseconds = _integer(value, type_, 31)
    return milliseconds if 0 <= milliseconds < _DAY_MS else _bad(value, type_)


def _moment(value: Any, type_: SqlType) -> int:
    """Return the microseconds of a timestamp, which are whole milliseconds."""
    if isinstance(value, str) and not _WHOLE.fullmatch(value.strip()):
        try:
            value = dt.datetime.fromisoformat(value.strip())
        except ValueError:
            _bad(value, type_)
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(dt.UTC).replace(tzinfo=None)
        return int((value - _EPOCH) // dt.timedelta(milliseconds=1)) * 1000
    if isinstance(value, dt.date):
        return int((value - _EPOCH.date()).days) * _DAY_MS * 1000
    milliseconds = _integer(value, type_, 63)
    return milliseconds * 1000 if _MOMENTS[0] <= milliseconds <= _MOMENTS[1] else _bad(value, type_)


_CONVERTERS: dict[str, Callable[[Any, SqlType], Any]] = {
    "BOOLEAN": _truth,
    "INT": _integer,
    "BIGINT": _integer,
    "DOUBLE": _double,
    "DECIMAL": _decimal,
    "STRING": _text,
    "BYTES": _bytes,
    "DATE": _date,
    "TIME": _time,
    "TIMESTAMP": _moment,
}


def _items(value: Any, type_: SqlType, item: Convert) -> list[Any]:
    if not isinstance(value, list | tuple | set | frozenset) and not hasattr(value, "tolist"):
        _bad(value, type_)
    return [None if each is None else item(each) for each in value]


def _entries(value: Any, type_: SqlType, key: Convert, item: Convert) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        value = list(value.items())
    if not isinstance(value, list | tuple):
        _bad(value, type_)
    entries: dict[Any, Any] = {}
    for each in value:
        if isinstance(each, Mapping) and each.keys() == {"key", "value"}:
            # Kafka Connect writes maps so whose keys may be null.
            each = (each["key"], each["value"])
        if not isinstance(each, list | tuple) or len(each) != 2 or each[0] is None:
            _bad(value, type_)
        entries[key(each[0])] = None if each[1] is None else item(each[1])
    return list(entries.items())


def _struct(value: Any, type_: SqlType, fields: list[tuple[str, str, Convert]]) -> dict[str, Any]:
    if (names := fields_of(type(value))) is not None:
        value = dict(zip(names, value, strict=True))
    if not isinstance(value, Mapping):
        _bad(value, type_)
    members: dict[str, Any] = {}
    # More members than fields may be names that differ only in case.
    folded = by_folded_name(value) if len(value) > len(fields) else None
    for name, lower, convert in fields:
        cell = value.get(name)
        if cell is None and name not in value:
            if folded is None:
                folded = by_folded_name(value)
            cell = folded.get(lower)
        members[name] = None if cell is None else convert(cell)
    return members


def by_folded_name(value: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the members of an object by their names in lower case.

    Raises:
        BadValue: Two differ only in case.
    """
    members: dict[str, Any] = {}
    for name, each in value.items():
        lower = str(name).lower()
        if lower in members:
            raise BadValue(f"it has the names {name!r} and another one that differs only in case")
        members[lower] = each
    return members


def as_times(values: Any, type_: SqlType) -> Any:
    """Return a column with its milliseconds of a day as times."""
    return values.cast(type_.arrow_with(TIME=pa.int32())).cast(type_.arrow_with(TIME=pa.time32("ms")))


def shown_values(values: Any, type_: SqlType) -> list[Any]:
    """Return a column as the values that Python has for them: maps are dictionaries."""
    return read.plain_values(as_times(values, type_) if type_.has("TIME") else values)


def plain_values(values: pa.Array[Any], type_: SqlType, *, in_json: bool = False) -> list[Any]:
    """Return a column as plain data. See `plain`."""
    if type_.base == "TIMESTAMP":
        values = pc.divide(values.cast(pa.int64()), 1000)
    elif type_.base == "DATE":
        values = values.cast(pa.int32())
    cells = values.to_pylist()
    if type_.has_parts or (in_json and type_.base in ("BYTES", "DOUBLE")):
        return [plain(each, type_, in_json=in_json) for each in cells]
    return cells


def plain(value: Any, type_: SqlType, *, in_json: bool = False) -> Any:
    """Return a value of a table as plain data: dates as days, timestamps as milliseconds, maps as dictionaries.

    Args:
        value: The value.
        type_: Its type.
        in_json: Bytes are base64, keys of maps are texts, and so are the numbers that JSON does not have.
    """
    if value is None:
        return None
    match type_.base:
        case "TIMESTAMP":
            return (value - _EPOCH) // dt.timedelta(milliseconds=1)
        case "DATE":
            return (value - _EPOCH.date()).days
        case "ARRAY":
            return [plain(each, type_.element, in_json=in_json) for each in value]
        case "MAP":
            items = value.items() if isinstance(value, Mapping) else value
            return {
                (_text(key, type_.parts[0]) if in_json else key): plain(each, type_.element, in_json=in_json)
                for key, each in items
            }
        case "STRUCT":
            get = value.get if isinstance(value, Mapping) else lambda name: getattr(value, name)
            return {name: plain(get(name), each, in_json=in_json) for name, each in type_.fields}
        case "BYTES" if in_json:
            return base64.b64encode(value).decode()
        case "DOUBLE" if in_json and not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
