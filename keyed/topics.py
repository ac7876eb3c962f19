"""Formats of the values of Kafka records, with or without a schema registry, and topics that are written.

For writers of jobs and readers of state. `keyed.KafkaSource` and `KafkaSink` take a format as ``value=``, `UpsertTopic`
takes one for keys too. With ``registry=`` values have the wire format of Confluent's Schema Registry: a zero byte, the
number of the schema, and the data. They are read and written by confluent-kafka's own deserializers and serializers,
which the extra ``keyed[registry]`` installs.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import attrs

from keyed.arguments import names, text
from keyed.durations import Duration, milliseconds_of
from keyed.errors import DefinitionError
from keyed.shown import Shown, shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Avro", "Json", "KafkaSink", "Protobuf", "UpsertTopic", "decode_values"]

#: Address of a schema registry, or the settings of `confluent_kafka.schema_registry.SchemaRegistryClient`.
Registry = str | Mapping[str, Any]


def registry_address(registry: Registry | None) -> str:
    """Return the address of a registry without credentials."""
    url = registry_settings(registry)["url"]
    return re.sub(r"^(https?://)?.*@", r"\1", url, flags=re.DOTALL)


def registry_settings(registry: Registry | None) -> dict[str, Any]:
    """Return the settings of a registry's client. A user and password in the address are a setting of their own."""
    settings = dict(registry) if isinstance(registry, Mapping) else {"url": registry}
    urls = [url.strip() for url in str(settings.get("url") or "").split(",")]
    with suppress(ValueError):
        parts = [urlsplit(url) for url in urls]
        urls = [each._replace(netloc=each.netloc.rpartition("@")[2]).geturl() for each in parts]
        logins = [f"{unquote(each.username)}:{unquote(each.password or '')}" for each in parts if each.username]
        if logins:
            settings["basic.auth.user.info"] = logins[0]
    return {**settings, "url": ",".join(urls)}


def shown_registry(registry: Registry | None) -> str:
    """Return the representation of a registry, without credentials."""
    return repr(None if registry is None else registry_address(registry))


def check_registry(kind: str, registry: Registry | None) -> None:
    """Check the address of a registry.

    Raises:
        DefinitionError: It is missing.
    """
    if registry is None:
        return
    address = registry_address(registry)
    if not address.startswith(("http://", "https://")):
        raise DefinitionError(
            f"{kind}: registry={address!r} must be an address such as 'http://registry:8081', or a dict of settings "
            "with 'url'"
        )
    try:
        is_address = all((url := urlsplit(each)).hostname and url.port != 0 for each in address.split(","))
    except ValueError:
        is_address = False
    if not is_address or "@" in registry_settings(registry)["url"]:
        # It may hold a part of a password.
        raise DefinitionError(
            f"{kind}: registry= is not an address such as 'http://user:password@registry:8081'; write @ : / ? # , and "
            "% of a user or password as %40 %3A %2F %3F %23 %2C and %25, or give the dict {'url': ..., "
            "'basic.auth.user.info': 'user:password'}"
        )
    seconds = registry.get("timeout", 1) if isinstance(registry, Mapping) else 1
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise DefinitionError(f"{kind}: registry={{'timeout': {shown(seconds)}}} must be a number of seconds above 0")


@attrs.frozen
class Json(Shown):
    """JSON: an object is an element with a column for each member.

    Args:
        schema: JSON schema as text, which a sink with a registry registers; a source does not need it.
        registry: Address of a schema registry, or a dict of its settings: values then have its wire format and are
            validated with their JSON schemas. Without it values are plain JSON.

    Raises:
        DefinitionError: ``schema`` is not a JSON schema, or one of its ``$ref`` has no target in it or leads back to
            itself; or ``registry`` is not an address.
    """

    schema: str | None = attrs.field(default=None, repr=False, kw_only=True)
    registry: Registry | None = attrs.field(default=None, kw_only=True, repr=shown_registry)

    def __attrs_post_init__(self) -> None:
        check_registry("Json", self.registry)
        if self.schema is not None:
            _check_json_schema(self.schema)


@attrs.frozen
class Avro(Shown):
    """Avro: a record is an element with a column for each field. Times are `datetime` in UTC.

    Args:
        schema: Schema as JSON text. With a registry the schema to which a source converts values, by default the one
            they were written with, and that a sink registers. Without a registry the schema of all values.
        registry: Address of a schema registry, or a dict of its settings.

    Raises:
        DefinitionError: Neither is given, ``schema`` is not a schema, or ``registry`` is not an address.
    """

    schema: str | None = attrs.field(default=None, repr=False)
    registry: Registry | None = attrs.field(default=None, kw_only=True, repr=shown_registry)

    def __attrs_post_init__(self) -> None:
        check_registry("Avro", self.registry)
        if self.schema is None and self.registry is None:
            raise DefinitionError("Avro: give registry= for values with the number of their schema, or schema= of all")
        if self.schema is not None:
            _check_avro(self.schema)


def _check_json_schema(schema: Any) -> None:
    """Check a JSON schema; all of it if jsonschema is installed, without which it cannot be used.

    Raises:
        DefinitionError: It is not the text of an object, or not a JSON schema, or one of its ``$ref`` leads nowhere.
    """
    try:
        parsed = json.loads(schema) if isinstance(schema, str) else None
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise DefinitionError(f"Json: schema={shown(schema)} is not a JSON schema; give an object as JSON text")
    with suppress(ImportError):
        import jsonschema
        from jsonschema.validators import validator_for
        from referencing.jsonschema import specification_with

        kind = validator_for(parsed)
        try:
            kind.check_schema(parsed)
            _check_references(parsed, specification_with(str(kind.META_SCHEMA["$schema"])))
        except jsonschema.SchemaError as error:
            reason = f"{error.json_path}: {error.message:.200}"
        except RecursionError:
            reason = "it is nested too deep"
        else:
            return
        raise DefinitionError(f"Json: schema={shown(schema)} is not a JSON schema: {reason}")


#: Keywords whose schemas apply to the value itself.
_SAME_VALUE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else")


def _check_references(schema: dict[str, Any], specification: Any) -> None:
    """Check that each ``$ref`` of a JSON schema has a target, and that none leads back to itself for the same value.

    Raises:
        DefinitionError: One has no target, or leads back to itself, so that the validation of a value never ends.
    """
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import EMPTY_REGISTRY

    done: set[int] = set()

    def follow(schema: Any, resolver: Any, path: tuple[int, ...]) -> None:
        if not isinstance(schema, dict) or id(schema) in done:
            return
        path, resolver = (*path, id(schema)), resolver.in_subresource(specification.create_resource(schema))
        parts = [(each, resolver) for name in _SAME_VALUE if name in schema for each in _listed(schema[name])]
        if (reference := schema.get("$ref")) is not None:
            try:
                target = resolver.lookup(reference)
            except Unresolvable as error:
                raise DefinitionError(
                    f"Json: '$ref': {reference!r} has no target in schema=; define the target in it"
                ) from error
            if id(target.contents) in path:
                raise DefinitionError(
                    f"Json: '$ref': {reference!r} leads back to itself for the same value, so its validation never "
                    "ends; refer to it from a property or from items"
                )
            parts.append((target.contents, target.resolver))
        for part, of in parts:
            follow(part, of, path)
        done.add(id(schema))

    def visit(resource: Any, resolver: Any) -> None:
        follow(resource.contents, resolver, ())
        for each in resource.subresources():
            visit(each, resolver.in_subresource(resource))

    root = specification.create_resource(schema)
    visit(root, EMPTY_REGISTRY.resolver_with_root(root))


def _listed(schemas: Any) -> list[Any]:
    return schemas if isinstance(schemas, list) else [schemas]


def _check_avro(schema: Any) -> None:
    """Check an Avro schema; all of it if fastavro is installed, without which it cannot be used.

    Raises:
        DefinitionError: It is not a schema.
    """
    try:
        parsed = json.loads(schema)
        with suppress(ImportError):
            from fastavro import parse_schema

            parse_schema(parsed)
    except Exception as error:
        raise DefinitionError(
            f"Avro: schema={shown(schema)} is not a schema: {type(error).__name__}: {error}; give it as JSON text"
        ) from error


@attrs.frozen
class Protobuf(Shown):
    """Protocol Buffers: a message is an element with a column for each field.

    Repeated fields are lists, maps and messages are dictionaries, and enums are names. An unset field with presence is
    ``None``. A ``google.protobuf.Timestamp`` is a `datetime` in UTC.

    Args:
        message: The generated class of the message.
        registry: Address of a schema registry, or a dict of its settings.

    Raises:
        DefinitionError: ``message`` is not a generated class, or ``registry`` is not an address.
    """

    message: Any = attrs.field(repr=lambda message: getattr(message, "__name__", repr(message)))
    registry: Registry | None = attrs.field(default=None, kw_only=True, repr=shown_registry)

    def __attrs_post_init__(self) -> None:
        check_registry("Protobuf", self.registry)
        if not isinstance(self.message, type) or not hasattr(self.message, "DESCRIPTOR"):
            raise DefinitionError(f"Protobuf: message={self.message!r} must be a class that protoc has generated")


#: The formats.
Format = Json | Avro | Protobuf


def decode_values(frame: DataFrame, value: Format, schema: Any) -> DataFrame:
    """Return a DataFrame of Spark's Kafka source with decoded values, for `keyed.stream`.

    The workers decode them, with the same functions as a `keyed.KafkaSource`. The result has the columns of ``schema``,
    and

    - ``record``: a struct of the record's ``key``, ``topic``, ``partition``, ``offset`` and ``timestamp``, and of its
      ``value`` if that could not be decoded;
    - ``reason``: null, or the reason why the value could not be decoded. The columns of ``schema`` are then null, so
      the row is a bad row of a stream whose key is one of them: it fails the query, or goes to ``on_bad_row``. A record
      without a value (a tombstone) has a reason too.

    Args:
        frame: A streaming or batch DataFrame of ``format("kafka")``.
        value: Format of the values. The workers need its packages, and reach its registry.
        schema: Columns of the values to keep, as ``output=`` of a stage names them. A member that a value lacks is
            null.

    Raises:
        DefinitionError: A parameter is wrong, or the DataFrame is not one of a Kafka source.
        ExtraNotInstalled: The format needs a package that is not installed.
    """
    frames = importlib.import_module("keyed.runtimes.spark.kafka_frames")
    decoded: DataFrame = frames.decoded_frame(frame, value, schema)
    return decoded


#: Returns the key, the value and the timestamp of the record of a row.
Encode = Callable[[Any], tuple[bytes | None, bytes | None, int | None]]


@attrs.frozen(eq=False)
class KafkaSink(Shown):
    """Writes the rows of an output as records of a topic, each exactly once for readers of committed records.

    A batch is one transaction, in which its id is committed as the offset of the consumer group ``transactional_id``.
    So a batch that comes again is not written twice. On Spark the driver writes the rows, and a batch that comes again
    with other rows than before is written again. It needs the extra ``keyed[kafka]``.

    Args:
        topic: The topic, which exists.
        bootstrap: Addresses of brokers, ``host:port``, separated by commas.
        key: The columns of the record's key: one is written as text (bytes unchanged), several as a JSON object. By
            default records have no key.
        value: Format of the values, which have all columns.
        encode: Instead of ``key`` and ``value`` a function from a row of the output to its record: key, value, and the
            timestamp in milliseconds; each may be None. A record without a value is a tombstone.
        transactional_id: Id of the transactions; it belongs to one query and its checkpoint. By default ``keyed-``
            and the topic.
        settings: Settings of the client, which is librdkafka.
        timeout: Time for which an operation waits for a broker: `int` milliseconds or `timedelta`.

    Raises:
        DefinitionError: A parameter is missing or out of its range.
    """

    topic: str
    bootstrap: str = attrs.field(kw_only=True)
    key: str | Sequence[str] | None = attrs.field(default=None, kw_only=True)
    value: Format = attrs.field(factory=Json, kw_only=True)
    encode: Encode | None = attrs.field(default=None, kw_only=True, repr=False)
    transactional_id: str = attrs.field(kw_only=True)
    settings: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True, repr=False)
    timeout: Duration = attrs.field(default=60_000, kw_only=True)

    @transactional_id.default
    def _id(self) -> str:
        return f"keyed-{self.topic}"

    def __attrs_post_init__(self) -> None:
        for name in ("topic", "bootstrap", "transactional_id"):
            text(getattr(self, name), f"KafkaSink: {name}", "text that is not empty")
        if self.key is not None and not names(self.key, "KafkaSink: key"):
            raise DefinitionError("KafkaSink: key=[] names no column; leave it out for records without a key")
        from keyed.changelog.kafka.client import check_client

        check_client(self.bootstrap, self.settings)
        if self.encode is not None and not callable(self.encode):
            raise DefinitionError(f"KafkaSink: encode={shown(self.encode)} must be a function of a row")
        if self.encode is not None and (self.key is not None or self.value != Json()):
            raise DefinitionError("KafkaSink: encode= returns key and value; leave out key= and value=")
        if not isinstance(self.value, Format):
            raise DefinitionError(f"KafkaSink: value={self.value!r} must be a Json, an Avro or a Protobuf")
        if not isinstance(self.value, Protobuf) and self.value.registry is not None and self.value.schema is None:
            raise DefinitionError(
                f"KafkaSink: value={self.value!r} needs schema=, which is registered with the first value"
            )
        milliseconds_of(self.timeout, "KafkaSink(timeout)", least=1)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of the key."""
        return () if self.key is None else (self.key,) if isinstance(self.key, str) else tuple(self.key)


def _plain_format(format: Any, attribute: Any, value: Any) -> None:
    """Check the format of a key or value of an `UpsertTopic`."""
    del format
    if not isinstance(value, Json | Avro) or (isinstance(value, Json) and value.registry is not None):
        raise DefinitionError(
            f"UpsertTopic: {attribute.name}={value!r} must be Json() or Avro(...); a Json with a registry and Protobuf "
            "are not supported here"
        )


@attrs.frozen(eq=False)
class UpsertTopic(Shown):
    """A compacted topic that holds a state table, for `keyed.tables.StateTable.replicate`.

    Each row of the table is a record. Its key has the columns that identify the row, its value all columns; a record
    with the value null is a tombstone: the row was removed. So Flink's ``upsert-kafka``, Kafka Connect and ksqlDB read
    it as a table. If the topic does not exist, it is created. It needs the extra ``keyed[kafka]``.

    Args:
        topic: The topic; it belongs to one table.
        bootstrap: Addresses of brokers, ``host:port``, separated by commas.
        key: Format of the keys: `Json` or `Avro`.
        value: Format of the values. The schema of an `Avro` without ``schema=`` is made from the table's columns.
        namespaces: True for a state that functions keep under namespaces: the key then has the column ``namespace``,
            as JSON text. Windows are not namespaces: they have columns of their own.
        partitions: Number of partitions of a new topic.
        replication_factor: Number of replicas of a new topic; by default the broker's.
        settings: Settings of the client, which is librdkafka. Keys are assigned to partitions as by Kafka's Java client
            (``partitioner``: ``murmur2_random``).
        timeout: Time for which an operation waits for a broker: `int` milliseconds or `timedelta`.

    Raises:
        DefinitionError: A parameter is missing or out of its range.
    """

    topic: str
    bootstrap: str = attrs.field(kw_only=True)
    key: Json | Avro = attrs.field(factory=Json, kw_only=True, validator=_plain_format)
    value: Json | Avro = attrs.field(factory=Json, kw_only=True, validator=_plain_format)
    namespaces: bool = attrs.field(default=False, kw_only=True)
    partitions: int = attrs.field(default=1, kw_only=True)
    replication_factor: int | None = attrs.field(default=None, kw_only=True)
    settings: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True, repr=False)
    timeout: Duration = attrs.field(default=60_000, kw_only=True)

    def __attrs_post_init__(self) -> None:
        for name in ("topic", "bootstrap"):
            text(getattr(self, name), f"UpsertTopic: {name}", "text that is not empty")
        if type(self.namespaces) is not bool:
            raise DefinitionError(f"UpsertTopic: namespaces={shown(self.namespaces)} must be True or False")
        for name in ("partitions", "replication_factor"):
            number = getattr(self, name)
            if (type(number) is not int or number < 1) and (number is not None or name == "partitions"):
                raise DefinitionError(f"UpsertTopic: {name}={shown(number)} must be a number from 1")
        from keyed.changelog.kafka.client import check_client

        check_client(self.bootstrap, self.settings)
        milliseconds_of(self.timeout, "UpsertTopic(timeout)", least=1)

    @property
    def transactional_id(self) -> str:
        """The transactional id and consumer group: one writer of the topic is active, the last one that started."""
        return f"keyed-changes-{self.topic}"
