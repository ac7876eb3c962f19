"""Formats of the values of Kafka records: JSON, Avro and Protobuf, with or without a schema registry.

`keyed.KafkaSource` takes one of them as ``value=``. With ``registry=`` values have the wire format of Confluent's
Schema Registry: a zero byte, the number of the schema, and the data. They are read by confluent-kafka's own
deserializers, which the extra ``keyed[registry]`` installs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from keyed.errors import DefinitionError
from keyed.shown import Shown

__all__ = ["Avro", "Json", "Protobuf"]

#: Address of a schema registry, or the settings of `confluent_kafka.schema_registry.SchemaRegistryClient`.
Registry = str | Mapping[str, Any]


def registry_address(registry: Registry | None) -> str:
    """Return the address of a registry without credentials."""
    url = registry.get("url", "") if isinstance(registry, Mapping) else registry or ""
    return re.sub(r"//[^/@]*@", "//", str(url))


def _shown(registry: Registry | None) -> str:
    """Return the representation of a registry, without credentials."""
    return repr(None if registry is None else registry_address(registry))


def _check_registry(kind: str, registry: Registry | None) -> None:
    """Check the address of a registry.

    Raises:
        DefinitionError: It is missing.
    """
    if registry is not None and not registry_address(registry).startswith(("http://", "https://")):
        raise DefinitionError(
            f"{kind}: registry={registry_address(registry)!r} must be an address such as 'http://registry:8081', or a "
            "dict of settings with 'url'"
        )


@attrs.frozen
class Json(Shown):
    """JSON: an object is an element with a column for each member.

    Args:
        registry: Address of a schema registry, or a dict of its settings: values then have its wire format and are
            validated with their JSON schemas. Without it values are plain JSON.

    Raises:
        DefinitionError: ``registry`` is not an address.
    """

    registry: Registry | None = attrs.field(default=None, kw_only=True, repr=_shown)

    def __attrs_post_init__(self) -> None:
        _check_registry("Json", self.registry)


@attrs.frozen
class Avro(Shown):
    """Avro: a record is an element with a column for each field. Times are `datetime` in UTC.

    Args:
        schema: Schema as JSON text. With a registry the schema to which values are converted, by default the one they
            were written with. Without a registry the schema of all values.
        registry: Address of a schema registry, or a dict of its settings.

    Raises:
        DefinitionError: Neither is given, or ``registry`` is not an address.
    """

    schema: str | None = attrs.field(default=None, repr=False)
    registry: Registry | None = attrs.field(default=None, kw_only=True, repr=_shown)

    def __attrs_post_init__(self) -> None:
        _check_registry("Avro", self.registry)
        if self.schema is None and self.registry is None:
            raise DefinitionError("Avro: give registry= for values with the number of their schema, or schema= of all")


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
    registry: Registry | None = attrs.field(default=None, kw_only=True, repr=_shown)

    def __attrs_post_init__(self) -> None:
        _check_registry("Protobuf", self.registry)
        if not isinstance(self.message, type) or not hasattr(self.message, "DESCRIPTOR"):
            raise DefinitionError(f"Protobuf: message={self.message!r} must be a class that protoc has generated")


#: The formats.
Format = Json | Avro | Protobuf
