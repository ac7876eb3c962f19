"""Columns from schemas as a schema registry has them: Avro and JSON Schema as JSON, Protobuf as text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keyed.base.arguments import nearest, shown
from keyed.errors import DefinitionError
from keyed.formats.sql_types import (
    BIGINT,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    INT,
    STRING,
    TIME,
    TIMESTAMP,
    SqlType,
    array,
    decimal,
    map_of,
    struct,
)

_PARTS = ("key", "value", "references")
_LOGICAL = {
    "date": DATE,
    **dict.fromkeys(("time-millis", "time-micros"), TIME),
    **dict.fromkeys(("timestamp-millis", "timestamp-micros"), TIMESTAMP),
}
_CONNECT = "org.apache.kafka.connect.data."
_CONNECT_TIMES = {f"{_CONNECT}Date": DATE, f"{_CONNECT}Time": TIME, f"{_CONNECT}Timestamp": TIMESTAMP}
_AVRO = {
    "boolean": BOOLEAN,
    "int": INT,
    "long": BIGINT,
    **dict.fromkeys(("float", "double"), DOUBLE),
    **dict.fromkeys(("string", "enum"), STRING),
    **dict.fromkeys(("bytes", "fixed"), BYTES),
}
_JSON_NUMBERS = {"int8": INT, "int16": INT, "int32": INT, "int64": BIGINT}
_PROTOBUF = {
    "bool": BOOLEAN,
    "string": STRING,
    "bytes": BYTES,
    **dict.fromkeys(("float", "double"), DOUBLE),
    **dict.fromkeys(("int32", "sint32", "sfixed32"), INT),
    **dict.fromkeys(("uint32", "fixed32", "int64", "uint64", "sint64", "fixed64", "sfixed64"), BIGINT),
    "google.protobuf.Timestamp": TIMESTAMP,
    "google.type.Date": DATE,
    "google.type.TimeOfDay": TIME,
}
#: The names of scalar types in the names of their wrappers.
_WRAPPED = ("Bool", "Int32", "Int64", "UInt32", "UInt64", "Float", "Double", "String", "Bytes")
_PROTOBUF |= {f"google.protobuf.{name}Value": _PROTOBUF[name.lower()] for name in _WRAPPED}


class RegistrySchemas:
    """The schemas of topics.

    Args:
        given: For each topic a dictionary with ``key``, ``value``, or both, and optionally the texts of files that a
            Protobuf schema imports, as ``references``.

    Raises:
        DefinitionError: It does not have that form.
    """

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]] | None) -> None:
        if not isinstance(schemas, Mapping | None):
            raise DefinitionError(f"schemas={shown(schemas)} must be a dict of schemas by topic")
        for topic, parts in (schemas or {}).items():
            if not isinstance(parts, Mapping):
                raise DefinitionError(
                    f"schemas={{{topic!r}: ...}}: give a dict with 'key', 'value' or both, not {shown(parts)}"
                )
            unknown = [each for each in parts if each not in _PARTS]
            if unknown:
                raise DefinitionError(
                    f"schemas={{{topic!r}: ...}}: unknown part {unknown[0]!r}{nearest(unknown[0], _PARTS)}"
                )
        self._schemas = dict(schemas or {})

    def check_topics(self, topics: Iterable[str]) -> None:
        """Check that the script has all topics.

        Raises:
            DefinitionError: It does not have one.
        """
        for topic in self._schemas:
            if topic not in topics:
                raise DefinitionError(
                    f"schemas={{{topic!r}: ...}}: no statement names that topic{nearest(topic, topics)}"
                )

    def has(self, topic: str, part: str) -> bool:
        """Return whether a topic has a schema of its keys or values."""
        return self._schemas.get(topic, {}).get(part) is not None

    def type(self, topic: str, part: str, format_: str, name: str | None) -> SqlType:
        """Return the SQL type of the keys or values of a topic.

        Args:
            topic: The topic, which has such a schema.
            part: ``key`` or ``value``.
            format_: The format of them: ``AVRO``, ``JSON_SR`` or ``PROTOBUF``.
            name: Name of the Protobuf message, the first one if ``None``.

        Raises:
            DefinitionError: The schema cannot be read.
        """
        schema, references = self._schemas[topic][part], self._schemas[topic].get("references") or ()
        references = [references] if isinstance(references, str) else references
        try:
            if format_ == "AVRO":
                return _avro(schema, references)
            return _json_type(_as_data(schema)) if format_ == "JSON_SR" else _protobuf(schema, references, name)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise DefinitionError(
                f"schemas={{{topic!r}: {{{part!r}: ...}}}}: this is no {format_} schema that SQL has types for: "
                f"{type(error).__name__}: {error}; it is {shown(schema)}"
            ) from error


def _as_data(schema: Any) -> Any:
    """Return a schema that is JSON. A text may also be the name of an Avro type."""
    if isinstance(schema, bytes):
        schema = schema.decode()
    if isinstance(schema, str) and schema not in _AVRO:
        return json.loads(schema)
    return schema


# Avro.


def _avro(schema: Any, references: Sequence[str]) -> SqlType:
    named: dict[str, SqlType] = {}
    for each in references:
        _avro_type(_as_data(each), named)
    return _avro_type(_as_data(schema), named)


def _avro_type(schema: Any, named: dict[str, SqlType]) -> SqlType:
    if isinstance(schema, list):
        options = [each for each in schema if each != "null"]
        if len(options) != 1:
            raise ValueError("a union of several types has no SQL type")
        return _avro_type(options[0], named)
    if isinstance(schema, str):
        return _AVRO[schema] if schema in _AVRO else named[schema.rpartition(".")[2]]
    if isinstance(schema["type"], dict | list):
        return _avro_type(schema["type"], named)
    type_ = _avro_named(schema, named)
    if "name" in schema:
        named[schema["name"].rpartition(".")[2]] = type_
    return type_


def _avro_named(schema: Any, named: dict[str, SqlType]) -> SqlType:
    logical = schema.get("logicalType")
    if logical == "decimal":
        return decimal(int(min(schema.get("precision", 64), 38)), int(schema.get("scale", 0)))
    time = _LOGICAL.get(logical) or _CONNECT_TIMES.get(schema.get("connect.name", ""))
    if time is not None:
        return time
    match schema["type"]:
        case "record":
            return struct(*((field["name"], _avro_type(field["type"], named)) for field in schema["fields"]))
        case "array":
            if isinstance(schema["items"], dict) and schema["items"].get("connect.internal.type") == "MapEntry":
                entry = dict(_avro_type(schema["items"], named).fields)
                return map_of(entry["key"], entry["value"])
            return array(_avro_type(schema["items"], named))
        case "map":
            return map_of(STRING, _avro_type(schema["values"], named))
    return _avro_type(schema["type"], named)


# JSON Schema.


def _json_type(schema: Any) -> SqlType:
    for union in ("oneOf", "anyOf"):
        if union in schema:
            options = [each for each in schema[union] if each.get("type") != "null"]
            if len(options) != 1:
                raise ValueError("a union of several types has no SQL type")
            return _json_type(options[0])
    name, connect = schema.get("title"), schema.get("connect.type")
    if name == f"{_CONNECT}Decimal":
        parameters = schema.get("connect.parameters", {})
        return decimal(int(parameters.get("connect.decimal.precision", 38)), int(parameters.get("scale", 0)))
    if name in _CONNECT_TIMES:
        return _CONNECT_TIMES[name]
    kind = schema["type"]
    if isinstance(kind, list):
        (kind,) = [each for each in kind if each != "null"]
    match kind:
        case "boolean":
            return BOOLEAN
        case "integer":
            return _JSON_NUMBERS.get(connect, BIGINT)
        case "number":
            return DOUBLE
        case "string":
            return BYTES if connect == "bytes" else STRING
        case "array" if connect == "map":
            entry = schema["items"]["properties"]
            return map_of(_json_type(entry["key"]), _json_type(entry["value"]))
        case "array":
            return array(_json_type(schema["items"]))
        case "object" if connect == "map" or "properties" not in schema:
            return map_of(STRING, _json_type(schema["additionalProperties"]))
        case "object":
            fields = sorted(
                schema["properties"].items(), key=lambda each: each[1].get("connect.index", len(schema["properties"]))
            )
            return struct(*((field, _json_type(each)) for field, each in fields))
    raise ValueError(f"unknown type {kind!r}")


# Protobuf.

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[A-Za-z_.][\w.]*|-?[\d.]\w*|[{}\[\]<>=;,:()]')
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def _protobuf(schema: Any, references: Sequence[str], name: str | None) -> SqlType:
    text = schema.decode() if isinstance(schema, bytes) else schema
    main = _Messages(text)
    if not main.messages:
        raise ValueError("there is no message")
    known = dict(main.messages)
    for each in references:
        known |= _Messages(each).messages
    message = next(iter(main.messages)) if name is None else name
    return _message_type(_resolved(message, "", known, main.package), known, ())


class _Messages:
    """The messages and enums of a text: fields (type, name, precision and scale), by full name."""

    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(_COMMENT.sub(" ", text))
        self._next = 0
        self.package = ""
        self.messages: dict[str, Any] = {}
        while self._next < len(self._tokens):
            match self._take():
                case "package":
                    self.package = self._take()
                case "message":
                    self._message("")
                case "enum":
                    self._enum("")
                case _:
                    self._skip()

    def _take(self) -> str:
        self._next += 1
        token: str = self._tokens[self._next - 1]
        return token

    def _skip(self) -> None:
        """Take the rest of a statement, with its block."""
        depth = 0
        self._next -= 1
        while self._next < len(self._tokens):
            word = self._take()
            depth += (word in "{[") - (word in "}]")
            if depth <= 0 and word in ";}":
                return

    def _enum(self, outer: str) -> None:
        self.messages[outer + self._take()] = STRING
        self._skip()

    def _message(self, outer: str) -> None:
        name = outer + self._take()
        fields: list[Any] = []
        # The place of a message is that of its beginning: the first one is the default.
        self.messages[name] = fields
        self._expect("{")
        self._fields(name, fields)

    def _expect(self, sign: str) -> None:
        word = self._take()
        if word != sign:
            raise ValueError(f"expected {sign!r}, found {word!r}")

    def _fields(self, name: str, fields: list[Any]) -> None:
        while (word := self._take()) != "}":
            match word:
                case "message":
                    self._message(f"{name}.")
                case "enum":
                    self._enum(f"{name}.")
                case "oneof":
                    self._take()
                    self._expect("{")
                    self._fields(name, fields)
                case "option" | "reserved" | "extensions":
                    self._skip()
                case ";":
                    pass
                case _:
                    fields.append(self._field(word))

    def _field(self, word: str) -> Any:
        repeated = word == "repeated"
        if word in ("repeated", "optional", "required"):
            word = self._take()
        kind: Any = word
        if word == "map":
            self._expect("<")
            key = self._take()
            self._expect(",")
            kind = (key, self._take())
            self._expect(">")
        name = self._take()
        self._expect("=")
        options = []
        while (word := self._take()) != ";":
            options.append(word)
        options_by_name = {k.strip("\"'"): v.strip("\"'") for k, v in _pairs(options)}
        return kind, name, repeated, (int(options_by_name.get("precision", 38)), int(options_by_name.get("scale", 0)))


def _pairs(tokens: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Return keys and values of parameters in options: ``{ key: "scale", value: "2" }``."""
    words = [each for each in tokens if each not in "{}[],:()="]
    place = 0
    while place + 3 < len(words):
        if {words[place], words[place + 2]} == {"key", "value"}:
            pair = {words[place]: words[place + 1], words[place + 2]: words[place + 3]}
            yield pair["key"], pair["value"]
            place += 4
        else:
            place += 1


def _resolved(name: str, scope: str, known: Mapping[str, Any], package: str = "") -> str:
    """Return the full name of a message or enum that is named in a message."""
    name = name.lstrip(".")
    if package and name.startswith(f"{package}."):
        name = name[len(package) + 1 :]
    parts = scope.split(".") if scope else []
    for depth in range(len(parts), -1, -1):
        option = ".".join([*parts[:depth], name])
        if option in known:
            return option
    last = [each for each in known if each.rpartition(".")[2] == name.rpartition(".")[2]]
    if len(last) != 1:
        raise ValueError(f"there is no message {name}{nearest(name, known)}")
    return last[0]


def _message_type(name: str, known: Mapping[str, Any], above: tuple[str, ...]) -> SqlType:
    if name in above:
        raise ValueError(f"message {name} contains itself")
    if isinstance(known[name], SqlType):
        return STRING
    above = (*above, name)

    def of(kind: str, digits: tuple[int, int]) -> SqlType:
        if kind == "confluent.type.Decimal":
            return decimal(*digits)
        return _PROTOBUF.get(kind) or _message_type(_resolved(kind, name, known), known, above)

    fields = []
    for kind, field, repeated, digits in known[name]:
        type_ = map_of(of(kind[0], digits), of(kind[1], digits)) if isinstance(kind, tuple) else of(kind, digits)
        fields.append((field, array(type_) if repeated else type_))
    return struct(*fields)
