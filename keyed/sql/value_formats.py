"""Formats of keys and values of topics: JSON, delimited text, and single values.

Records come as text, bytes or plain Python data, which also stands for the formats that a schema registry decodes
(Avro, Protobuf, JSON with a schema): what their decoders return has this form.
"""

from __future__ import annotations

import base64
import csv
import json
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

from keyed.sql.conversions import java_double, text_of, to_decimal, wrapped
from keyed.sql.json_functions import json_value
from keyed.sql.sql_types import SqlType

FORMATS = ("AVRO", "DELIMITED", "JSON", "JSON_SR", "KAFKA", "NONE", "PROTOBUF", "PROTOBUF_NOSR")
Columns = Sequence[tuple[str, SqlType]]
#: Digits of the longest integers that are read: those of longer ones, such as 1e999999999, would not fit into memory.
_DIGITS = 1000


class BadRecord(ValueError):
    """A record that its format cannot read."""


def decoder(
    format_: str, columns: Columns, *, delimiter: str = ",", wrapped_value: bool = True, nullable: bool = False
) -> Callable[[Any], Any]:
    """Return a function from a record's key or value to the tuple of its columns, ``None`` for a tombstone.

    ``nullable`` is for Protobuf: fields have nulls, and not the defaults of their types.

    The function raises `BadRecord`.
    """
    types = [type_ for _, type_ in columns]
    names = [name for name, _ in columns]
    every = set(names)
    width = len(columns)
    if format_ == "NONE" or not columns:
        return lambda data: None if data is None else (None,) * width
    if format_ == "DELIMITED":
        return lambda data: None if data is None else _split_line(data, types, delimiter)
    if format_ == "KAFKA":
        return lambda data: None if data is None else (read(_text(data), types[0]),)
    default = partial(defaults, nullable=nullable) if format_.startswith("PROTOBUF") else None
    readers = [_reader(type_) for type_ in types]

    def decoded(data: Any) -> Any:
        if data is None:
            return None
        if isinstance(data, bytes) or (isinstance(data, str) and wrapped_value):
            data = _parsed(data)
            if data is None:
                return None
        if not wrapped_value:
            found = (readers[0](data),)
        elif isinstance(data, dict):
            if data.keys() >= every:
                cells = [data[name] for name in names]
            else:
                given = {str(name).upper(): value for name, value in data.items()} | data
                cells = [given.get(name, given.get(name.upper())) for name in names]
            found = tuple([of(cell) for of, cell in zip(readers, cells, strict=True)])
        else:
            raise BadRecord(f"expected an object, got {type(data).__name__}")
        return found if default is None else tuple(default(v, t) for v, t in zip(found, types, strict=True))

    return decoded


def _text(data: Any) -> Any:
    return data.decode() if isinstance(data, bytes) else data


def _parsed(data: Any) -> Any:
    try:
        return json.loads(data, parse_float=Decimal)
    except ValueError as error:
        raise BadRecord(f"not JSON: {error}") from error


def defaults(value: Any, type_: SqlType, *, nullable: bool = False) -> Any:
    """Return the default of a type for a missing value, as proto3 has it; with ``nullable`` of lists and maps alone."""
    if value is None:
        if nullable and type_.base not in ("ARRAY", "MAP"):
            return None
        match type_.base:
            case "BOOLEAN":
                return False
            case "INTEGER" | "BIGINT":
                return 0
            case "DOUBLE":
                return 0.0
            case "STRING":
                return ""
            case "BYTES":
                return b""
            case "ARRAY":
                return []
            case "MAP":
                return {}
        return None
    if type_.base == "STRUCT":
        return {name: defaults(value.get(name), each, nullable=nullable) for name, each in type_.fields}
    if type_.base == "ARRAY":
        return [defaults(each, type_.element) for each in value]
    if type_.base == "MAP":
        return {key: defaults(each, type_.element) for key, each in value.items()}
    return value


def read(value: Any, type_: SqlType) -> Any:
    """Return plain data as a value of a type.

    Raises:
        BadRecord: It is none.
    """
    if value is None:
        return None
    try:
        return _read(value, type_)
    except BadRecord:
        raise
    except (ValueError, TypeError, ArithmeticError, AttributeError) as error:
        raise BadRecord(f"{type(value).__name__} does not read as {type_}: {error}") from error


def _reader(type_: SqlType) -> Callable[[Any], Any]:
    """Return the function `read` for a type, which passes values that need no conversion."""
    base = type_.base
    if base in ("INTEGER", "BIGINT"):
        limit = 1 << (31 if base == "INTEGER" else 63)
        return lambda value: value if value.__class__ is int and -limit <= value < limit else read(value, type_)
    if base == "STRING":
        return lambda value: value if value.__class__ is str and value.isascii() else read(value, type_)
    return lambda value: read(value, type_)


def _read(value: Any, type_: SqlType) -> Any:
    match type_.base:
        case "BOOLEAN":
            if isinstance(value, bool):
                return value
            raise BadRecord("expected true or false")
        case "INTEGER" | "BIGINT":
            if isinstance(value, bool):
                raise BadRecord("expected a number")
            number = _integer(Decimal(value.strip()) if isinstance(value, str) else value)
            return wrapped(number, type_.base)
        case "DOUBLE":
            if isinstance(value, bool):
                raise BadRecord("expected a number")
            return float(value)
        case "DECIMAL":
            if isinstance(value, bool):
                raise BadRecord("expected a number")
            return to_decimal(Decimal(str(value)), type_.precision, type_.scale)
        case "STRING":
            if isinstance(value, str):
                # JSON can have half a surrogate pair, which is no character. Java writes it as a question mark, too.
                return value if value.isascii() else value.encode("utf-8", "replace").decode()
            if isinstance(value, bool):
                return "true" if value else "false"
            if isinstance(value, dict | list):
                made = json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=float)
                return made.encode("utf-8", "replace").decode()
            return java_double(value) if isinstance(value, float) else str(value)
        case "BYTES":
            return value if isinstance(value, bytes) else base64.b64decode(value, validate=True)
        case "DATE" | "TIME" | "TIMESTAMP":
            if isinstance(value, bool):
                raise BadRecord("expected a number")
            return _integer(value)
        case "ARRAY":
            if not isinstance(value, list | tuple):
                raise BadRecord("expected a list")
            return [None if each is None else _read(each, type_.element) for each in value]
        case "MAP":
            if not isinstance(value, dict):
                raise BadRecord("expected an object")
            key, item = type_.parts
            return {_read(k, key): None if v is None else _read(v, item) for k, v in value.items()}
    if isinstance(value, str):
        value = _parsed(value)
    if not isinstance(value, dict):
        raise BadRecord("expected an object")
    given = {str(name).upper(): each for name, each in value.items()} | value
    return {name: read(given.get(name, given.get(name.upper())), each) for name, each in type_.fields}


def _integer(value: Any) -> int:
    if isinstance(value, Decimal) and value.adjusted() > _DIGITS:
        raise BadRecord("expected a number of a usual size")
    return int(value)


def _split_line(data: Any, types: Sequence[SqlType], delimiter: str) -> tuple[Any, ...]:
    text = _text(data)
    if not isinstance(text, str):
        text = str(text) if not isinstance(text, bool) else str(text).lower()
    rows = list(csv.reader([text], delimiter=delimiter)) if text else [[""]]
    cells = rows[0] if rows else [""]
    if len(cells) != len(types):
        raise BadRecord(f"expected {len(types)} columns, got {len(cells)}")
    return tuple(_cell(cell, type_) for cell, type_ in zip(cells, types, strict=True))


def _cell(cell: str, type_: SqlType) -> Any:
    if not cell:
        return None
    if type_.base == "BOOLEAN":
        return cell.strip().lower() == "true"
    if type_.base == "STRING":
        return cell
    return read(cell.strip(), type_)


def encoder(
    format_: str, columns: Columns, *, delimiter: str = ",", wrapped_value: bool = True, nullable: bool = False
) -> Callable[[Any], Any]:
    """Return a function from the tuple of a record's columns to its key or value. See `decoder`."""
    types = [type_ for _, type_ in columns]
    names = [name for name, _ in columns]
    if format_ == "NONE" or not columns:
        empty: Any = {} if format_ not in ("NONE", "KAFKA", "DELIMITED") else None
        return lambda row: None if row is None else empty
    if format_ == "DELIMITED":
        return lambda row: None if row is None else _line(row, types, delimiter)
    if format_ in ("JSON", "JSON_SR") and any(map(_has_double, types)):
        encode = encoder("AVRO", columns, wrapped_value=wrapped_value)
        return lambda row: _in_json(encode(row))
    if not wrapped_value or format_ == "KAFKA":
        return lambda row: None if row is None else written(row[0], types[0])
    if not format_.startswith("PROTOBUF") and not any(type_.base in _WRITTEN for type_ in types):
        return lambda row: None if row is None else dict(zip(names, row, strict=True))
    default: Any = partial(defaults, nullable=nullable) if format_.startswith("PROTOBUF") else lambda value, _: value
    return lambda row: (
        None
        if row is None
        else {name: written(default(value, type_), type_) for name, value, type_ in zip(names, row, types, strict=True)}
    )


def _in_json(value: Any) -> Any:
    """Return data with texts for the numbers that JSON does not have: ``NaN`` and ``Infinity``."""
    if isinstance(value, float):
        return value if math.isfinite(value) else java_double(value)
    if isinstance(value, list):
        return [_in_json(each) for each in value]
    if isinstance(value, dict):
        return {key: _in_json(each) for key, each in value.items()}
    return value


def _has_double(type_: SqlType) -> bool:
    parts = (*type_.parts, *(each for _, each in type_.fields))
    return type_.base == "DOUBLE" or any(map(_has_double, parts))


#: Types whose values are not plain data of a record.
_WRITTEN = ("BYTES", "ARRAY", "MAP", "STRUCT")


def written(value: Any, type_: SqlType) -> Any:
    """Return a value as plain data of a record."""
    if value is None:
        return None
    match type_.base:
        case "BYTES":
            return base64.b64encode(value).decode()
        case "ARRAY":
            return [written(each, type_.element) for each in value]
        case "MAP":
            shown = text_of(type_.parts[0])
            return {"null" if key is None else shown(key): written(each, type_.element) for key, each in value.items()}
        case "STRUCT":
            return {name: written(value.get(name), each) for name, each in type_.fields}
    return value


def _line(row: Sequence[Any], types: Sequence[SqlType], delimiter: str) -> str:
    cells = []
    for value, type_ in zip(row, types, strict=True):
        if value is None:
            cells.append("")
        elif type_.base == "DOUBLE":
            cells.append(java_double(value))
        elif type_.base == "DECIMAL":
            cells.append(format(value, "f"))
        elif type_.base == "BOOLEAN":
            cells.append("true" if value else "false")
        elif type_.base in ("DATE", "TIME", "TIMESTAMP"):
            cells.append(str(value))
        else:
            found = json_value(value, type_)
            cells.append(found if isinstance(found, str) else str(found))
    return delimiter.join(_quoted(cell, delimiter, is_first=not place) for place, cell in enumerate(cells))


def _quoted(cell: str, delimiter: str, *, is_first: bool) -> str:
    """Return a cell, in quotes where the writer of ksqlDB (Commons CSV) has them."""
    if not cell:
        return cell
    first = cell[0]
    odd = not (first.isascii() and first.isalnum()) if is_first else first <= "#"
    if odd or cell[-1] <= " " or any(sign in cell for sign in (delimiter, '"', "\n", "\r")):
        return '"' + cell.replace('"', '""') + '"'
    return cell
