"""Keys and values of records as columns: a batch is read at a time, in the formats that a statement names.

Formats with a schema have the wire format of Confluent's Schema Registry: a zero byte, the number of the schema in four
bytes, and the data. Records that a program gives may have plain data in place of bytes.
"""

from __future__ import annotations

import csv
import datetime as dt
import re
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import attrs
import msgspec

from keyed.errors import DefinitionError, SourceError
from keyed.formats.declared_formats import Avro, Registry
from keyed.formats.file_rows import cells_of, json_values, long_fields
from keyed.formats.sql_types import STRING, WRAPPERS, BadValue, ProtobufMessage, SqlType, avro_schema, json_schema
from keyed.formats.topic_values import HEADER, MOMENTS, avro_writer, check_format, header_of, plain_message, zigzag
from keyed.formats.topic_values import decoder as registry_decoder
from keyed.formats.typed_columns import column, columns_of, plain_values

Columns = Sequence[tuple[str, SqlType]]
#: Formats whose schemas a registry has.
REGISTERED = ("AVRO", "JSON_SR", "PROTOBUF")
#: Types that the format KAFKA has.
_PRIMITIVE = {"INT", "BIGINT", "DOUBLE", "STRING", "BYTES"}
_NUMBERS = {"INT": struct.Struct(">i"), "BIGINT": struct.Struct(">q"), "DOUBLE": struct.Struct(">d")}
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
#: The values of messages that represent one, by the messages' names.
_VALUES: dict[str, Callable[[Any], Any]] = {
    **MOMENTS,
    "confluent.type.Decimal": lambda it: Decimal(int.from_bytes(it.value, signed=True)).scaleb(-it.scale),
    "google.type.Date": lambda it: dt.date(it.year, it.month, it.day),
    "google.type.TimeOfDay": lambda it: ((it.hours * 60 + it.minutes) * 60 + it.seconds) * 1000 + it.nanos // 1_000_000,
    **dict.fromkeys((each.name for each in WRAPPERS.values()), lambda it: it.value),
}
_PLAIN = {"BOOLEAN": False, "INT": 0, "BIGINT": 0, "DOUBLE": 0.0, "STRING": "", "BYTES": b"", "ARRAY": [], "MAP": {}}


@attrs.frozen
class RecordPart:
    """The keys or the values of a topic's records.

    Attributes:
        format: Their format.
        columns: Their columns.
        is_key: They are keys.
        topic: The topic.
        where: The stream or table, for messages.
        is_wrapped: They are objects with the columns, and not the value of the one column.
        delimiter: Delimiter of delimited text.
        nullable: How Protobuf represents nulls: ``OPTIONAL``, ``WRAPPER`` or ``None``: by the defaults of their types.
        schema_name: Full name of the schema that is written; ksqlDB's if ``None``.
    """

    format: str
    columns: tuple[tuple[str, SqlType], ...]
    is_key: bool
    topic: str
    where: str
    is_wrapped: bool = True
    delimiter: str = ","
    nullable: str | None = None
    schema_name: str | None = None

    @property
    def is_empty(self) -> bool:
        """True if records have nothing there."""
        return self.format == "NONE" or not self.columns

    @property
    def _what(self) -> str:
        return "key" if self.is_key else "value"

    @property
    def misfit(self) -> str | None:
        """The reason why the format does not have these columns; ``None`` if it has them."""
        format_, part = self.format, self._what
        if format_ == "NONE" and self.columns:
            return f"format NONE is for no {part}, and there are {part} columns"
        if format_ == "KAFKA" and len(self.columns) > 1:
            what = "a key" if self.is_key else "values"
            return f"format KAFKA does not support {what} of several columns; write {part.upper()}_FORMAT='JSON'"
        for name, type_ in self.columns:
            if (format_ == "KAFKA" and type_.base not in _PRIMITIVE) or (format_ == "DELIMITED" and type_.has_parts):
                return f"format {format_} does not support type {type_}, of column {name}"
            if format_ == "AVRO" and not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
                rule = "names have letters, digits and _, and begin with no digit"
                return f"format AVRO does not support the name {name}: {rule}"
            if (key := _other_map_key(type_)) is not None:
                return f"format {format_} supports maps with keys of type STRING, not {key}"
        return None

    def check(self, registry: Registry | None) -> None:
        """Check that the format can be used.

        Raises:
            DefinitionError: It needs a registry, or does not have a column's type.
            ExtraNotInstalled: A package is not installed.
        """
        if self.is_empty:
            return
        if self.format in REGISTERED and registry is None:
            other = "PROTOBUF_NOSR" if self.format == "PROTOBUF" else "JSON"
            raise DefinitionError(
                f"{self.where}: {self._what}s in the format {self.format} need a schema registry; give its address "
                f"(keyed.sql.Kafka(registry=...), or --registry), or the format {other}"
            )
        if self.format.startswith("PROTOBUF"):
            ProtobufMessage(self.columns, self.where, name=self.schema_name)
        if self.format == "AVRO":
            check_format(Avro(registry=registry))

    # Reading.

    def reader(self, registry: Registry | None) -> Callable[[Sequence[Any]], tuple[list[Any], dict[int, str]]]:
        """Return the function from a batch of keys or values to their columns, and the reasons of bad ones.

        What is not bytes is plain data. Bad ones, and those that are ``None``, have nulls.

        Args:
            registry: The schema registry; ``None`` without one.
        """
        if self.is_empty:
            return lambda data: ([column([None] * len(data), type_)[0] for _, type_ in self.columns], {})
        names = [name for name, _ in self.columns]
        plain_of = self._plain(registry)
        fills = self.format.startswith("PROTOBUF")

        def read(data: Sequence[Any]) -> tuple[list[Any], dict[int, str]]:
            plain = plain_of(data)
            if self.is_wrapped or self.format == "DELIMITED":
                cells, bad, _ = cells_of(plain, names)
            else:
                bad = {place: str(each) for place, each in enumerate(plain) if isinstance(each, BadValue)}
                cells = {names[0]: [None if isinstance(each, BadValue) else each for each in plain]}
            if fills:
                cells = {
                    name: [
                        None if each is None else _filled(cell, type_, nullable=self.nullable is not None)
                        for cell, each in zip(cells[name], plain, strict=True)
                    ]
                    for name, type_ in self.columns
                }
            return columns_of(cells, self.columns, len(data), bad), bad

        return read

    def _plain(self, registry: Registry | None) -> Callable[[Sequence[Any]], list[Any]]:
        """Return the function from a batch to plain data: `BadValue` for what the format cannot read."""
        if self.format == "DELIMITED":
            return self._delimited
        if self.format in ("JSON", "JSON_SR"):
            return self._parsed
        if self.format == "KAFKA":
            return self._single
        decode = self._avro(registry) if self.format == "AVRO" else self._protobuf()
        return lambda data: [self._decoded(each, decode) if isinstance(each, bytes) else each for each in data]

    def _decoded(self, data: bytes, decode: Callable[[bytes], Any]) -> Any:
        try:
            return decode(data)
        except SourceError:
            raise
        except _UNREADABLE as error:
            return BadValue(f"the {self._what} is not {self.format}: {type(error).__name__}: {error}")

    def _single(self, data: Sequence[Any]) -> list[Any]:
        """Return the bytes of one column as its value, in an object where records are objects."""
        ((name, type_),) = self.columns
        number = _NUMBERS.get(type_.base)
        is_bytes = type_.base == "BYTES"
        decode = bytes if is_bytes else bytes.decode if number is None else lambda data: number.unpack(data)[0]
        values = [self._decoded(each, decode) if isinstance(each, bytes) else each for each in data]
        if not self.is_wrapped:
            return values
        return [each if each is None or isinstance(each, dict | BadValue) else {name: each} for each in values]

    def _delimited(self, data: Sequence[Any]) -> list[Any]:
        with long_fields():
            return [
                each if each is None or isinstance(each, dict) else self._decoded(each, self._line) for each in data
            ]

    def _line(self, data: Any) -> Any:
        if not isinstance(data, bytes | str):
            text = str(data).lower() if isinstance(data, bool) else str(data)
        else:
            text = data.decode() if isinstance(data, bytes) else data
        rows = list(csv.reader([text], delimiter=self.delimiter)) or [[""]]
        if len(rows[0]) != len(self.columns):
            raise BadValue(f"expected {len(self.columns)} cells, got {len(rows[0])}")
        return {name: cell or None for (name, _), cell in zip(self.columns, rows[0], strict=True)}

    def _parsed(self, data: Sequence[Any]) -> list[Any]:
        exact = any(type_.has("DECIMAL") for _, type_ in self.columns)
        if self.format == "JSON" and set(map(type, data)) == {bytes}:
            return json_values(data, exact=exact)
        parsed = list(data)
        kinds = (bytes, str) if self.is_wrapped else (bytes,)
        texts: list[Any] = []
        places: list[int] = []
        for place, each in enumerate(data):
            if not isinstance(each, kinds):
                continue
            if self.format == "JSON_SR" and isinstance(each, bytes):
                try:
                    each = _without_header(each)
                except BadValue as error:
                    parsed[place] = error
                    continue
            texts.append(each)
            places.append(place)
        values = json_values(texts, exact=exact)
        for place, value in zip(places, values, strict=True):
            parsed[place] = value
        return parsed

    def _avro(self, registry: Registry | None) -> Callable[[bytes], Any]:
        if registry is None:
            return _no_registry
        decode = registry_decoder(Avro(registry=registry), self.topic)
        if self.is_wrapped or self.columns[0][1].base in ("STRUCT", "MAP"):
            return decode
        name = self.columns[0][0].lower()

        def single(data: bytes) -> Any:
            value = decode(data)
            # Other programs write a key of one column as a record.
            return {each.lower(): cell for each, cell in value.items()}.get(name) if isinstance(value, dict) else value

        return single

    def _protobuf(self) -> Callable[[bytes], Any]:
        kind = ProtobufMessage(self.columns, self.where, self.nullable).type
        is_framed = self.format == "PROTOBUF"
        from google.protobuf.message import DecodeError

        def read(data: bytes) -> Any:
            try:
                message = kind.FromString(_without_indexes(_without_header(data)) if is_framed else data)
            except DecodeError as error:
                raise BadValue(str(error)) from error
            values = plain_message(message, _VALUES)
            return values if self.is_wrapped else values[self.columns[0][0]]

        return read

    # Writing.

    def writer(self, registry: Registry | None) -> Callable[[Sequence[Any]], list[bytes | None]]:
        """Return the function from columns to keys or values.

        Args:
            registry: The schema registry; ``None`` without one.

        Raises:
            SinkError: The registry is not reached, or refuses the schema.
        """
        if self.is_empty:
            empty = b"{}" if self.format in ("JSON", "JSON_SR") and not self.is_key else None
            return lambda columns: [empty] * (len(columns[0]) if columns else 0)
        encode = self._encoder(registry)
        in_json = self.format in ("JSON", "JSON_SR", "DELIMITED")

        def write(columns: Sequence[Any]) -> list[bytes | None]:
            cells = [
                plain_values(each, type_, in_json=in_json)
                for each, (_, type_) in zip(columns, self.columns, strict=True)
            ]
            return [encode(row) for row in zip(*cells, strict=True)]

        return write

    def _encoder(self, registry: Registry | None) -> Callable[[Any], bytes | None]:
        """Return the function from the cells of a row to bytes."""
        names = [name for name, _ in self.columns]
        if self.format == "KAFKA":
            return _to_kafka(self.columns[0][1])
        if self.format.startswith("PROTOBUF"):
            return self._protobuf_encoder(registry)
        if self.format == "DELIMITED":
            return lambda row: self.delimiter.join(
                _quoted(_cell(cell), self.delimiter, is_first=not place) for place, cell in enumerate(row)
            ).encode()
        header = b""
        if self.format == "AVRO":
            schema = avro_schema(self.columns, self.where, wrapped=self.is_wrapped, name=self.schema_name)
            header = self._header(registry, schema, "AVRO")
            write = avro_writer(schema, lambda: header)
        else:
            if self.format == "JSON_SR":
                schema = json_schema(self.columns, wrapped=self.is_wrapped, name=self.schema_name)
                header = self._header(registry, schema, "JSON")
            write = (lambda value: header + _json(value)) if header else _json
        if self.is_wrapped:
            return lambda row: write(dict(zip(names, row, strict=True)))
        return lambda row: None if row[0] is None else write(row[0])

    def _header(self, registry: Registry | None, schema: str, kind: str) -> bytes:
        assert registry is not None
        return header_of(registry, self.topic, schema, kind, is_key=self.is_key)

    def _protobuf_encoder(self, registry: Registry | None) -> Callable[[Any], bytes | None]:
        generated = ProtobufMessage(self.columns, self.where, self.nullable, self.schema_name)
        wraps = self.nullable == "WRAPPER"
        # The zero is the place of the message in the schema: the first one.
        header = self._header(registry, generated.schema, "PROTOBUF") + b"\0" if self.format == "PROTOBUF" else b""

        def encode(row: Any) -> bytes | None:
            cells = {n: _field(cell, type_, wraps=wraps) for (n, type_), cell in zip(self.columns, row, strict=True)}
            message = generated.type(**{name: cell for name, cell in cells.items() if cell is not None})
            return header + bytes(message.SerializeToString())

        return encode


def _no_registry(_: bytes) -> Any:
    raise BadValue("there is no schema registry")


def _filled(value: Any, type_: SqlType, *, nullable: bool) -> Any:
    """Return the default of a type for a missing value, as proto3 has it; if nulls are represented, of containers."""
    if value is None:
        return _PLAIN.get(type_.base) if not nullable or type_.base in ("ARRAY", "MAP") else None
    if type_.base == "STRUCT" and isinstance(value, dict):
        folded = {str(name).lower(): each for name, each in value.items()}
        return {name: _filled(folded.get(name.lower()), each, nullable=nullable) for name, each in type_.fields}
    if type_.base == "ARRAY" and isinstance(value, list):
        return [_filled(each, type_.element, nullable=False) for each in value]
    if type_.base == "MAP" and isinstance(value, dict):
        return {key: _filled(each, type_.element, nullable=False) for key, each in value.items()}
    return value


def _to_kafka(type_: SqlType) -> Callable[[Any], bytes | None]:
    number = _NUMBERS.get(type_.base)
    if number is not None:
        return lambda row: None if row[0] is None else number.pack(float(row[0]) if type_.base == "DOUBLE" else row[0])
    if type_.base == "BYTES":
        return lambda row: row[0]
    return lambda row: None if row[0] is None else row[0].encode()


def _cell(value: Any) -> str:
    """Return a plain value as the text of a cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f")
    return value if isinstance(value, str) else _json(value).decode()


def _quoted(cell: str, delimiter: str, *, is_first: bool) -> str:
    """Return a cell, in quotes where the writer of ksqlDB (Commons CSV) has them."""
    if not cell:
        return cell
    first = cell[0]
    odd = not (first.isascii() and first.isalnum()) if is_first else first <= "#"
    if odd or cell[-1] <= " " or any(sign in cell for sign in (delimiter, '"', "\n", "\r")):
        return '"' + cell.replace('"', '""') + '"'
    return cell


def _without_header(data: bytes) -> bytes:
    """Return the bytes after the number of the schema."""
    if len(data) < HEADER.size or data[0] != 0:
        raise BadValue("it does not begin with the number of a schema")
    return data[HEADER.size :]


def _without_indexes(data: bytes) -> bytes:
    """Return the bytes of a message after its place in the schema: a count, and as many numbers."""
    count, at = zigzag(data, 0)
    for _ in range(count):
        at = zigzag(data, at)[1]
    return data[at:]


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
            return [_to_protobuf(_filled(each, part, nullable=False), part, wraps=wraps) for each in value or ()]
        case "MAP":
            part = type_.element
            cells = value or {}
            return {
                k: _to_protobuf(_filled(each, part, nullable=False), part, wraps=wraps) for k, each in cells.items()
            }
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
            hours, minutes = divmod(seconds // 60, 60)
            return {"hours": hours, "minutes": minutes, "seconds": seconds % 60, "nanos": rest * 1_000_000}
        case "TIMESTAMP":
            seconds, rest = divmod(value, 1000)
            return {"seconds": seconds, "nanos": rest * 1_000_000}
    return value


def _other_map_key(type_: SqlType) -> SqlType | None:
    """Return the type of a map's keys that are no text, at any depth; ``None`` if there is none."""
    if type_.base == "MAP" and type_.parts[0] != STRING:
        return type_.parts[0]
    parts = map(_other_map_key, (*type_.parts, *(each for _, each in type_.fields)))
    return next((each for each in parts if each is not None), None)
