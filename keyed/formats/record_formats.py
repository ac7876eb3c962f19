"""Keys and values of Kafka records as bytes, in the formats that a script names.

What bytes hold is brought into the plain data that `value_formats` reads, and the other way round. Formats with a
schema have the wire format of Confluent's Schema Registry: a zero byte, the number of the schema in four bytes, and the
data. The key of a windowed table ends with the window's bounds, as Kafka Streams writes it: its start, and for a
session its end and its start.
"""

from __future__ import annotations

import csv
import datetime as dt
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from io import BytesIO
from typing import Any

import msgspec

from keyed.errors import DefinitionError, SourceError
from keyed.formats.column_schemas import WRAPPERS, ProtobufMessage, avro_schema, json_schema
from keyed.formats.sql_types import SqlType
from keyed.kafka_values import BadValue, check_format, plain_message, registered
from keyed.kafka_values import decoder as registry_decoder
from keyed.sql.catalog import SqlSource
from keyed.sql.given_rows import plain_time
from keyed.sql.value_formats import BadRecord, defaults, encoder
from keyed.topics import Avro, Registry

Columns = Sequence[tuple[str, SqlType]]
#: Formats whose schemas a registry has.
REGISTERED = ("AVRO", "JSON_SR", "PROTOBUF")
_NUMBERS = {"INT": struct.Struct(">i"), "BIGINT": struct.Struct(">q"), "DOUBLE": struct.Struct(">d")}
_LONG = struct.Struct(">q")
_HEADER = struct.Struct(">bI")
_json = msgspec.json.Encoder(decimal_format="number").encode
#: Exceptions of readers for bytes that do not have their format.
_UNREADABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    csv.Error,
    struct.error,
)


class WireFormats:
    """Decodes and encodes the records of a script's topics.

    Args:
        registry: The schema registry; ``None`` without one.
    """

    def __init__(self, registry: Registry | None) -> None:
        self._registry = registry

    def check(self, source: SqlSource) -> None:
        """Check that the formats of a stream or table can be used.

        Raises:
            DefinitionError: A format needs a registry, or does not have a column's type.
            ExtraNotInstalled: A package is not installed.
        """
        for format_, columns, what in (
            (source.key_format, source.keys, "key"),
            (source.value_format, source.stored, "value"),
        ):
            if format_ in REGISTERED and self._registry is None and columns:
                other = "PROTOBUF_NOSR" if format_ == "PROTOBUF" else "JSON"
                raise DefinitionError(
                    f"{source.name}: {what}s in the format {format_} need a schema registry; give its address "
                    f"(keyed.sql.Kafka(registry=...), or --registry), or the format {other}"
                )
            if format_.startswith("PROTOBUF") and columns:
                ProtobufMessage(columns, source.name)
            if format_ == "AVRO" and columns:
                check_format(Avro(registry=self._registry))

    def window_of(self, source: SqlSource) -> Callable[[Any], tuple[Any, Any]] | None:
        """Return the function from the key of a windowed source to the key without the window, and the window.

        It raises `BadRecord`.
        """
        if source.window is None:
            return None
        width = 16 if source.window == "SESSION" else 8

        def split(key: Any) -> tuple[Any, Any]:
            if key is None or len(key) < width:
                raise BadRecord("the key has no window")
            rest, bounds = key[:-width], key[-width:]
            if width == 16:
                end, start = _LONG.unpack(bounds[:8])[0], _LONG.unpack(bounds[8:])[0]
                return rest, (start, end)
            (start,) = _LONG.unpack(bounds)
            return rest, (start, start + (source.window_ms or 0))

        return split

    def key_decoder(self, source: SqlSource) -> Callable[[Any], Any]:
        """Return the function from the bytes of a key to its columns; it raises `BadRecord`."""
        return self._decoder(source, source.key_format, source.keys, source.key_decoder(), is_key=True)

    def value_decoder(self, source: SqlSource) -> Callable[[Any], Any]:
        """Return the function from the bytes of a value to its columns; it raises `BadRecord`."""
        return self._decoder(source, source.value_format, source.stored, source.value_decoder(), is_key=False)

    def _decoder(
        self, source: SqlSource, format_: str, columns: Columns, decode: Callable[[Any], Any], *, is_key: bool
    ) -> Callable[[Any], Any]:
        wrapped = len(columns) > 1 if is_key else source.is_wrapped
        plain = self._plain(source, format_, columns, wrapped=wrapped, is_key=is_key) if columns else None

        def decoded(data: Any) -> Any:
            try:
                return decode(data if data is None or plain is None else plain(data))
            except (BadRecord, SourceError):
                raise
            except BadValue as error:
                raise BadRecord(str(error)) from error
            except _UNREADABLE as error:
                what = "key" if is_key else "value"
                raise BadRecord(f"the {what} is not {format_}: {type(error).__name__}: {error}") from error

        return decoded

    def _plain(
        self, source: SqlSource, format_: str, columns: Columns, *, wrapped: bool, is_key: bool
    ) -> Callable[[bytes], Any] | None:
        """Return the function from bytes to plain data; ``None`` if the format reads bytes itself."""
        if format_ == "KAFKA":
            return _of_kafka(columns[0][1])
        if format_ == "JSON_SR":
            return _without_header
        if format_ == "AVRO":
            decode = registry_decoder(Avro(registry=self._registry), source.topic)
            return lambda data: _of_columns(decode(data), columns, wrapped=wrapped)
        if format_.startswith("PROTOBUF"):
            kind = ProtobufMessage(columns, source.name, source.nullable[not is_key]).type
            is_framed = format_ == "PROTOBUF"
            from google.protobuf.message import DecodeError

            def read(data: bytes) -> Any:
                try:
                    message = kind.FromString(_without_indexes(_without_header(data)) if is_framed else data)
                except DecodeError as error:
                    raise BadRecord(str(error)) from error
                return {name: _of_protobuf(cell, type_) for (name, type_), cell in _cells(message, columns)}

            return read
        return None

    def encoder(self, source: SqlSource) -> Callable[[Any, Any, Any], tuple[bytes | None, bytes | None]]:
        """Return the function from key, value and window to the key and value of a record.

        Raises:
            SinkError: The registry is not reached, or refuses a schema.
        """
        width = len(source.keys)
        key_wrapped = width > 1 or source.key_format.startswith("PROTOBUF")
        key_of = self._encoder(
            source, source.key_format, source.keys, source.key_delimiter, wrapped=key_wrapped, is_key=True
        )
        value_of = self._encoder(
            source, source.value_format, source.stored, source.delimiter, wrapped=source.is_wrapped, is_key=False
        )
        is_session = source.window == "SESSION"

        def encode(key: Any, value: Any, window: Any) -> tuple[bytes | None, bytes | None]:
            made = None if not width or key == (None,) else key_of(key)
            if window is not None:
                start, end = window
                made = (made or b"") + (_LONG.pack(end) if is_session else b"") + _LONG.pack(start)
            return made, None if value is None else value_of(value)

        return encode

    def _encoder(
        self, source: SqlSource, format_: str, columns: Columns, delimiter: str, *, wrapped: bool, is_key: bool
    ) -> Callable[[Any], bytes | None]:
        if format_ == "NONE" or not columns:
            empty = b"{}" if format_ in ("JSON", "JSON_SR") and not is_key else None
            return lambda _: empty
        if format_ == "KAFKA":
            return _to_kafka(columns[0][1])
        if format_ == "AVRO":
            return self._avro_encoder(source, columns, wrapped=wrapped, is_key=is_key)
        if format_.startswith("PROTOBUF"):
            return self._protobuf_encoder(source, format_, columns, is_key=is_key)
        plain = encoder(format_, columns, delimiter=delimiter, wrapped_value=wrapped)
        if format_ == "DELIMITED":
            return lambda row: str(plain(row)).encode("utf-8", "surrogatepass")
        header = b""
        if format_ == "JSON_SR":
            header = self._header(source, json_schema(columns, wrapped=wrapped), "JSON", is_key=is_key)

        def encode(row: Any) -> bytes | None:
            found = plain(row)
            return None if found is None else header + _json(_finite(found))

        return encode

    def _header(self, source: SqlSource, schema: str, kind: str, *, is_key: bool) -> bytes:
        assert self._registry is not None
        return _HEADER.pack(0, registered(self._registry, source.topic, schema, kind, is_key=is_key))

    def _avro_encoder(
        self, source: SqlSource, columns: Columns, *, wrapped: bool, is_key: bool
    ) -> Callable[[Any], bytes | None]:
        import json

        from fastavro import parse_schema, schemaless_writer

        text = avro_schema(columns, source.name, wrapped=wrapped)
        header = self._header(source, text, "AVRO", is_key=is_key)
        schema = parse_schema(json.loads(text))

        def encode(row: Any) -> bytes | None:
            if wrapped:
                found: Any = {name: cell for (name, _), cell in zip(columns, row, strict=True)}
            else:
                found = row[0]
            if found is None:
                return None
            written = BytesIO(header)
            written.seek(len(header))
            schemaless_writer(written, schema, found)
            return written.getvalue()

        return encode

    def _protobuf_encoder(
        self, source: SqlSource, format_: str, columns: Columns, *, is_key: bool
    ) -> Callable[[Any], bytes | None]:
        nullable = source.nullable[not is_key]
        made = ProtobufMessage(columns, source.name, nullable)
        wraps = nullable == "WRAPPER"
        header = b""
        if format_ == "PROTOBUF":
            # The zero is the place of the message in the schema: the first one.
            header = self._header(source, made.schema, "PROTOBUF", is_key=is_key) + b"\0"

        def encode(row: Any) -> bytes | None:
            cells = {name: _field(cell, type_, wraps=wraps) for (name, type_), cell in zip(columns, row, strict=True)}
            message = made.type(**{name: cell for name, cell in cells.items() if cell is not None})
            return header + bytes(message.SerializeToString())

        return encode


def _of_kafka(type_: SqlType) -> Callable[[bytes], Any]:
    """Return the function for a single value as Kafka's own deserializers read it."""
    number = _NUMBERS.get(type_.base)
    if number is not None:
        return lambda data: number.unpack(data)[0]
    if type_.base == "BYTES":
        import base64

        return lambda data: base64.b64encode(data).decode()
    return lambda data: data


def _to_kafka(type_: SqlType) -> Callable[[Any], bytes | None]:
    number = _NUMBERS.get(type_.base)
    if number is not None:
        return lambda row: None if row[0] is None else number.pack(row[0])
    if type_.base == "BYTES":
        return lambda row: row[0]
    return lambda row: None if row[0] is None else row[0].encode("utf-8", "surrogatepass")


def _finite(value: Any) -> Any:
    """Return plain data with text for the numbers that JSON does not have."""
    if isinstance(value, float) and not -1e999 < value < 1e999:
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124 - NaN
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list) else value


def _without_header(data: bytes) -> bytes:
    """Return the bytes after the number of the schema."""
    if len(data) < _HEADER.size or data[0] != 0:
        raise BadRecord("it does not begin with the number of a schema")
    return data[_HEADER.size :]


def _without_indexes(data: bytes) -> bytes:
    """Return the bytes of a message after its place in the schema: a count, and as many numbers, as varints."""
    at, left = 0, 1
    is_count = True
    while left:
        number, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        left = number >> 1 if is_count else left - 1
        is_count = False
    return data[at:]


def _of_columns(value: Any, columns: Columns, *, wrapped: bool) -> Any:
    """Return what an Avro reader gives as plain data: a dictionary of columns, or the value of the one column."""
    name, type_ = columns[0]
    if wrapped:
        return _of_avro(value, SqlType("STRUCT", fields=tuple(columns)))
    if isinstance(value, dict) and type_.base not in ("STRUCT", "MAP"):
        # Other programs write a key of one column as a record.
        value = {each.upper(): cell for each, cell in value.items()}.get(name.upper())
    return _of_avro(value, type_)


def _of_avro(value: Any, type_: SqlType) -> Any:
    if isinstance(value, dt.date | dt.time):
        return plain_time(value)
    if type_.base == "MAP" and isinstance(value, list):
        # Kafka Connect writes maps so whose keys may be null.
        return {each["key"]: _of_avro(each["value"], type_.element) for each in value}
    if type_.base == "MAP" and isinstance(value, dict):
        return {key: _of_avro(each, type_.element) for key, each in value.items()}
    if type_.base == "ARRAY" and isinstance(value, list):
        return [_of_avro(each, type_.element) for each in value]
    if type_.base == "STRUCT" and isinstance(value, dict):
        fields = {name.upper(): each for name, each in type_.fields}
        return {name: _of_avro(each, fields[name.upper()]) for name, each in value.items() if name.upper() in fields}
    return value


def _cells(message: Any, columns: Columns) -> Any:
    plain = plain_message(message)
    return [((name, type_), plain[name]) for name, type_ in columns]


def _of_protobuf(value: Any, type_: SqlType) -> Any:
    """Return the field of a message as plain data."""
    if value is None:
        return None
    if type_.base in WRAPPERS and isinstance(value, dict):
        return value["value"]
    match type_.base:
        case "ARRAY":
            return [_of_protobuf(each, type_.element) for each in value]
        case "MAP":
            return {key: _of_protobuf(each, type_.element) for key, each in value.items()}
        case "STRUCT":
            return {name: _of_protobuf(value[name], each) for name, each in type_.fields}
        case "DECIMAL":
            return Decimal(int.from_bytes(value["value"], signed=True)).scaleb(-value["scale"])
        case "DATE":
            return plain_time(dt.date(value["year"], value["month"], value["day"]))
        case "TIME":
            seconds = (value["hours"] * 60 + value["minutes"]) * 60 + value["seconds"]
            return seconds * 1000 + value["nanos"] // 1_000_000
        case "TIMESTAMP":
            return plain_time(value)
    return value


def _field(value: Any, type_: SqlType, *, wraps: bool) -> Any:
    """Return the value of a field, in a message of its own if it may be null."""
    if wraps and value is not None and type_.base in WRAPPERS:
        return {"value": value}
    return _to_protobuf(value, type_, wraps=wraps)


def _to_protobuf(value: Any, type_: SqlType, *, wraps: bool = False) -> Any:
    """Return a value as an argument of its message; ``None`` is left out."""
    match type_.base:
        case "ARRAY":
            part = type_.element
            return [_to_protobuf(defaults(each, part), part, wraps=wraps) for each in value or ()]
        case "MAP":
            item = type_.element
            cells = value or {}
            return {key: _to_protobuf(defaults(each, item), item, wraps=wraps) for key, each in cells.items()}
    if value is None:
        return None
    match type_.base:
        case "STRUCT":
            cells = {name: _field(value.get(name), each, wraps=wraps) for name, each in type_.fields}
            return {name: cell for name, cell in cells.items() if cell is not None}
        case "DECIMAL":
            number = int(value.scaleb(type_.scale))
            width = number.bit_length() // 8 + 1
            return {"value": number.to_bytes(width, signed=True), "precision": type_.precision, "scale": type_.scale}
        case "DATE":
            day = dt.date(1970, 1, 1) + dt.timedelta(days=value)
            return {"year": day.year, "month": day.month, "day": day.day}
        case "TIME":
            seconds, rest = divmod(value, 1000)
            return {
                "hours": seconds // 3600,
                "minutes": seconds // 60 % 60,
                "seconds": seconds % 60,
                "nanos": rest * 1_000_000,
            }
        case "TIMESTAMP":
            seconds, rest = divmod(value, 1000)
            return {"seconds": seconds, "nanos": rest * 1_000_000}
    return value
