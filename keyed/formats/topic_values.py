"""Decoding and encoding of the values of Kafka records.

A recursive Avro schema does not limit the depth of its values, and fastavro recurses in C until the stack overflows. So
values of recursive schemas are checked before fastavro reads or writes them. The limit is that of stored values.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from datetime import UTC
from functools import cache, partial
from io import BytesIO
from typing import Any, NoReturn
from uuid import UUID

import msgspec

from keyed.base.arguments import shown, without_secrets
from keyed.base.extras import extra
from keyed.codec.tagged import MAX_VALUE_DEPTH
from keyed.errors import DefinitionError, KeyedError, SinkError, SourceError
from keyed.formats.declared_formats import Avro, Format, Json, Protobuf, Registry, registry_address, registry_settings
from keyed.formats.json_writer import as_json
from keyed.formats.sql_types import BadValue

#: Bytes of the types of a fixed size.
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_DEEP_AVRO = f"records, arrays and maps are nested more than {MAX_VALUE_DEPTH} deep"


def check_value(value: Any, levels: int = MAX_VALUE_DEPTH) -> None:
    """Check the depth of a value that is to be written.

    Raises:
        ValueError: It is nested too deep.
    """
    if isinstance(value, dict | list | tuple):
        if not levels:
            raise ValueError(_DEEP_AVRO)
        for item in value.values() if isinstance(value, dict) else value:
            check_value(item, levels - 1)


class AvroLevels:
    """Checks the depth of encoded values of a schema.

    Attributes:
        is_recursive: True if a record of the schema may contain itself. The values of other schemas need no check.

    Args:
        texts: The schema, as JSON text, after those that it refers to.
    """

    def __init__(self, *texts: str) -> None:
        from fastavro import parse_schema

        self._named: dict[str, Any] = {}
        for text in texts:
            self._schema = parse_schema(json.loads(text), named_schemas=self._named)
        self.is_recursive = any(_recurses(each, frozenset()) for each in self._named.values())

    def check(self, data: bytes, start: int = 0) -> None:
        """Check the depth of a value.

        Args:
            data: The encoded value.
            start: Where it begins.

        Raises:
            ValueError: It is nested too deep.
            IndexError: The data ends before the value, or has an index that its union lacks.
        """
        if self.is_recursive:
            self._end(self._schema, data, start, MAX_VALUE_DEPTH)

    def _end(self, schema: Any, data: bytes, at: int, levels: int) -> int:
        """Return the position after a value."""
        if at > len(data):
            raise IndexError("the value ends early")
        if isinstance(schema, list):
            index, at = zigzag(data, at)
            return self._end(schema[index], data, at, levels)
        kind = schema if isinstance(schema, str) else schema["type"]
        if not isinstance(kind, str) or kind in self._named:
            return self._end(self._named[kind] if isinstance(kind, str) else kind, data, at, levels)
        if kind in _SIZES or kind == "fixed":
            return at + int(_SIZES[kind] if kind in _SIZES else schema["size"])
        if kind in ("record", "error", "array", "map"):
            if not levels:
                raise ValueError(_DEEP_AVRO)
            return self._end_of_items(schema, data, at, levels - 1)
        number, at = zigzag(data, at)
        return at + max(0, number) if kind in ("bytes", "string") else at

    def _end_of_items(self, schema: Any, data: bytes, at: int, levels: int) -> int:
        """Return the position after the fields of a record, or the items of an array or map."""
        if "fields" in schema:
            for field in schema["fields"]:
                at = self._end(field["type"], data, at, levels)
            return at
        parts = (schema["items"],) if "items" in schema else ("string", schema["values"])
        while True:
            count, at = zigzag(data, at)
            if not count:
                return at
            if count < 0:
                # The size of the block follows.
                count, at = -count, zigzag(data, at)[1]
            for _ in range(count):
                before = at
                for part in parts:
                    at = self._end(part, data, at, levels)
                if at == before:
                    # Items without bytes, of which there may be any number.
                    break


def zigzag(data: bytes, at: int) -> tuple[int, int]:
    """Return a number in zigzag form, and the position after it."""
    shift = value = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at


def _recurses(schema: Any, records: frozenset[str]) -> bool:
    """Return true if a schema names a record around it."""
    if isinstance(schema, str):
        return schema in records
    if isinstance(schema, list):
        return any(_recurses(each, records) for each in schema)
    if "fields" in schema:
        return any(_recurses(field["type"], records | {schema["name"]}) for field in schema["fields"])
    return _recurses(schema.get("items", schema.get("values", schema["type"])), records)


def checks_registered(client: Any, subject: str) -> Callable[[bytes], None]:
    """Return a function that checks the depth of values with the number of their schema in a registry.

    Args:
        client: A client of the registry, which keeps the schemas that it has fetched.
        subject: The subject of the values.
    """
    levels: dict[bytes, AvroLevels] = {}

    def references(schema: Any) -> list[str]:
        texts: list[str] = []
        for each in schema.references or ():
            referenced = client.get_version(each.subject, each.version, True).schema
            texts += [*references(referenced), referenced.schema_str]
        return list(dict.fromkeys(texts))

    def check(data: bytes) -> None:
        # A number of four bytes or an UUID, after a byte that tells which. The deserializer refuses other values.
        start = {b"\0": 5, b"\1": 17}.get(data[:1], len(data))
        if len(data) <= start:
            return
        head = data[:start]
        if head not in levels:
            number = head[1:]
            if start == 5:
                schema = client.get_schema(int.from_bytes(number, "big"), subject)
            else:
                schema = client.get_schema_by_guid(str(UUID(bytes=number)))
            levels[head] = AvroLevels(*references(schema), schema.schema_str)
        levels[head].check(data, start)

    return check


#: Seconds that each request to a registry may take, unless its settings have a ``timeout``: the client itself waits for
#: ever.
_SECONDS = 30
#: A zero byte, and the number of a schema.
HEADER = struct.Struct(">bI")
#: Packages whose exceptions mean that a registry was not reached.
_CLIENTS = {"httpx", "httpx2", "httpcore", "httpcore2", "ssl", "socket"}
#: The reason why a tombstone is bad.
NO_VALUE = "the record has no value (it is a tombstone)"
#: JSON and its validation recurse, so the depth that they reach depends on the schema.
_TOO_DEEP = (
    f"nested too deep, or with a schema that refers to itself without an end; {MAX_VALUE_DEPTH} levels always work"
)


def check_format(value: Any) -> None:
    """Check a format, and that its packages are installed.

    Raises:
        DefinitionError: It is not a format.
        ExtraNotInstalled: A package is not installed.
    """
    if not isinstance(value, Format):
        raise DefinitionError(
            f"value={value!r} must be a format: keyed.topics.Json(), Avro(...) or Protobuf(...); for another one give "
            "decode=, a function of the record"
        )
    if value.registry is not None or not isinstance(value, Json):
        with extra("registry", repr(value)):
            _deserializer_of(value)


def decoder(format: Format, topic: str) -> Callable[[bytes], Any]:
    """Return a function that decodes values of a topic.

    It raises `BadValue` for a value that does not have the format, and `SourceError` if a schema cannot be fetched.
    """
    decode = _with_registry(format, topic) if format.registry is not None else _deserializer_of(format)

    def decoded(data: bytes) -> Any:
        try:
            return decode(data)
        except SourceError:
            raise
        except RecursionError as error:
            raise BadValue(f"it is nested {_TOO_DEEP}") from error
        except Exception as error:
            raise BadValue(f"it is not {type(format).__name__}: {type(error).__name__}: {error}") from error

    return decoded


def _deserializer_of(format: Format) -> Callable[[bytes], Any]:
    """Return the function for plain values; the packages of a registry are imported too."""
    if format.registry is not None:
        import confluent_kafka.schema_registry.avro
        import confluent_kafka.schema_registry.json_schema
        import confluent_kafka.schema_registry.protobuf  # noqa: F401
    if isinstance(format, Protobuf):
        return lambda data: plain_message(format.message.FromString(data))
    if isinstance(format, Avro):
        from fastavro import parse_schema, schemaless_reader

        if format.schema is None:
            return lambda data: data
        schema, levels = parse_schema(json.loads(format.schema)), AvroLevels(format.schema)

        def read(data: bytes) -> Any:
            levels.check(data)
            rest = BytesIO(data)
            value = schemaless_reader(rest, schema, None)
            if rest.read(1):
                raise ValueError("bytes follow the value")
            return value

        return read
    return msgspec.json.Decoder().decode


def _with_registry(format: Format, topic: str) -> Callable[[bytes], Any]:
    """Return the function for values in the wire format of a schema registry."""
    client, context, named = _client(format, topic)
    deserialize: Any
    check: Callable[[bytes], None] | None = None
    if isinstance(format, Avro):
        from confluent_kafka.schema_registry.avro import AvroDeserializer

        deserialize = AvroDeserializer(client, format.schema, conf=named)
        check = checks_registered(client, f"{topic}-value")
    elif isinstance(format, Protobuf):
        from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer

        deserialize = ProtobufDeserializer(format.message, named, client)
    else:
        from confluent_kafka.schema_registry.json_schema import JSONDeserializer

        deserialize = JSONDeserializer(None, schema_registry_client=client, conf=named)

    def decode(data: bytes) -> Any:
        if check is not None:
            _ask(format.registry, topic, SourceError, check, data)
        value = _ask(format.registry, topic, SourceError, deserialize, data, context)
        return plain_message(value) if isinstance(format, Protobuf) else value

    return decode


def encoder(format: Format, topic: str, *, is_key: bool = False) -> Callable[[dict[str, Any]], bytes]:
    """Return a function that encodes the columns of a row as a value, or as a key, of a topic.

    It raises `SinkError` for a row that does not have the format, and if the schema cannot be registered.
    """
    encode = _serializer_of(format, topic, is_key=is_key)
    is_recursive = isinstance(format, Avro) and format.schema is not None and AvroLevels(format.schema).is_recursive

    def encoded(row: dict[str, Any]) -> bytes:
        try:
            if is_recursive:
                check_value(row)
            return encode(row)
        except KeyedError:
            raise
        except Exception as error:
            reason = (
                f"it is nested {_TOO_DEEP}" if isinstance(error, RecursionError) else f"{type(error).__name__}: {error}"
            )
            raise SinkError(
                f"topic {topic!r}: the row {shown(row)} cannot be written as {format!r}: {reason}"
            ) from error

    return encoded


def _serializer_of(format: Format, topic: str, *, is_key: bool) -> Callable[[dict[str, Any]], bytes]:
    registry = format.registry
    if isinstance(format, Avro):
        text = format.schema or ""
        if registry is None:
            return avro_writer(text, bytes)
        # Wrong settings are an error now; the schema is registered with the first value.
        _registry_client(registry, repr(format))
        return avro_writer(text, cache(partial(header_of, registry, topic, text, "AVRO", is_key=is_key)))
    if registry is None:
        if isinstance(format, Protobuf):
            return lambda row: bytes(format.message(**row).SerializeToString())
        return _json
    client, context, named = _client(format, topic, is_key=is_key)
    serialize: Any
    if isinstance(format, Protobuf):
        from confluent_kafka.schema_registry.protobuf import ProtobufSerializer

        serialize = ProtobufSerializer(format.message, client, named)
    else:
        from confluent_kafka.schema_registry.json_schema import JSONSerializer

        serialize = JSONSerializer(format.schema, client, conf=named)

    def encode(row: dict[str, Any]) -> bytes:
        # The form in which it is written, for the validation: times are text.
        value = format.message(**row) if isinstance(format, Protobuf) else json.loads(_json(row))
        return bytes(_ask(registry, topic, SinkError, serialize, value, context))

    return encode


def avro_writer(schema: str, header: Callable[[], bytes]) -> Callable[[Any], bytes]:
    """Return a function that encodes values in Avro, after a header."""
    from fastavro import parse_schema, schemaless_writer

    parsed = parse_schema(json.loads(schema))

    def write(value: Any) -> bytes:
        written = BytesIO()
        written.write(header())
        schemaless_writer(written, parsed, value)
        return written.getvalue()

    return write


def _client(format: Format, topic: str, *, is_key: bool = False) -> tuple[Any, Any, dict[str, Any]]:
    """Return a client of the registry, the context of values or keys, and the settings of serializers."""
    from confluent_kafka.serialization import MessageField, SerializationContext

    client = _registry_client(format.registry, repr(format))
    # The name of the subject follows from the topic; by default the client would ask the registry for it.
    named = {"subject.name.strategy.type": "TOPIC"}
    return client, SerializationContext(topic, MessageField.KEY if is_key else MessageField.VALUE), named


def _registry_client(registry: Registry | None, where: str) -> Any:
    """Return a client of a registry.

    Raises:
        DefinitionError: A setting is not one of the client.
        ExtraNotInstalled: The client is not installed.
    """
    with extra("registry", where):
        from confluent_kafka.schema_registry import SchemaRegistryClient

    settings = registry_settings(registry)
    try:
        return SchemaRegistryClient({"timeout": _SECONDS, **settings})
    except (ValueError, TypeError, AttributeError, OSError) as error:
        failed = without_secrets(str(error), settings)
    raise DefinitionError(f"{where}: settings of the registry: {failed}")


def header_of(registry: Registry, topic: str, schema: str, kind: str, *, is_key: bool) -> bytes:
    """Return the bytes before keys or values of a topic: a zero, and the number of their schema, which is registered.

    Args:
        registry: The registry.
        topic: The topic.
        schema: The schema, as text.
        kind: ``AVRO``, ``PROTOBUF`` or ``JSON``.
        is_key: It is the schema of keys.

    Raises:
        SinkError: The registry is not reached, or refuses the schema.
    """
    client = _registry_client(registry, f"the schema of topic {topic!r}")
    from confluent_kafka.schema_registry import Schema

    subject = f"{topic}-{'key' if is_key else 'value'}"
    return HEADER.pack(0, _ask(registry, topic, SinkError, client.register_schema, subject, Schema(schema, kind)))


def _json(row: dict[str, Any]) -> bytes:
    return as_json(row, _refuse)


def _refuse(value: Any) -> NoReturn:
    raise TypeError(f"a value of type {type(value).__name__} cannot be written as JSON")


def is_unreachable(error: Exception) -> bool:
    """Return true if an error means that a registry was not reached, or could not answer."""
    return isinstance(error, SourceError | SinkError) and isinstance(error.__cause__, ConnectionError)


def _ask(
    registry: Registry | None,
    topic: str,
    kind: type[SourceError | SinkError],
    call: Callable[..., Any],
    *arguments: Any,
) -> Any:
    """Return the result of a call. Raise an error of a kind if a registry is not reached, or refuses a request."""
    from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

    try:
        return call(*arguments)
    except Exception as error:
        known = isinstance(error, SchemaRegistryError | OAuthTokenError | OSError)
        if not known and type(error).__module__.partition(".")[0] not in _CLIENTS:
            raise
        failed, outage = _unavailable(registry, topic, error, kind), _outage(error)
    # Outside of the handler, so that the client's error is not its context.
    raise failed from outage


def _outage(error: Exception) -> ConnectionError | None:
    """Return the cause of an error that may pass. The client's error, which may have secrets, is not passed on."""
    status = getattr(error, "http_status_code", None)
    passes = type(error).__name__ != "OAuthTokenError" if status is None else int(status) >= 500
    return ConnectionError("the registry was not reached, or could not answer") if passes else None


def _unavailable(
    registry: Registry | None, topic: str, error: Exception, kind: type[SourceError | SinkError]
) -> SourceError | SinkError:
    """Return the error for a schema that cannot be fetched or registered."""
    status = getattr(error, "http_status_code", None)
    if status == 404:
        remedy = "give the registry that the producer of the topic uses, or register the schema again under its number"
    elif status in (401, 403):
        remedy = "give credentials in registry={'url': ..., 'basic.auth.user.info': 'user:password'}"
    else:
        remedy = "check the address and that the registry runs"
    done = "fetched from" if kind is SourceError else "registered at"
    reason = without_secrets(f"{type(error).__name__}: {error}", registry_settings(registry))
    return kind(
        f"topic {topic!r}: the schema of a value cannot be {done} the registry "
        f"{registry_address(registry)}: {reason}; {remedy}. The query resumes here when "
        "it is started again on its checkpoint"
    )


#: The values of messages that represent a time, by the messages' names.
MOMENTS: dict[str, Callable[[Any], Any]] = {"google.protobuf.Timestamp": lambda it: it.ToDatetime(tzinfo=UTC)}


def plain_message(message: Any, values: Mapping[str, Callable[[Any], Any]] = MOMENTS) -> Any:
    """Return a Protobuf message as plain data.

    Args:
        message: The message.
        values: Return the values of messages that represent one, by the messages' names.
    """
    value_of = values.get(message.DESCRIPTOR.full_name)
    if value_of is not None:
        return value_of(message)
    return {field.name: _field(message, field, values) for field in message.DESCRIPTOR.fields}


def _field(message: Any, field: Any, values: Mapping[str, Callable[[Any], Any]]) -> Any:
    """Return the value of a field of a message as plain data."""
    if field.has_presence and not message.HasField(field.name):
        return None
    value = getattr(message, field.name)
    # Older versions have no `is_repeated`, newer ones warn of `label`.
    repeats = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
    if not repeats:
        return _single(value, field, values)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of_values = field.message_type.fields_by_name["value"]
        return {key: _single(value[key], of_values, values) for key in value}
    return [_single(each, field, values) for each in value]


def _single(value: Any, field: Any, values: Mapping[str, Callable[[Any], Any]]) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    return value if field.message_type is None else plain_message(value, values)
