"""Formats of the keys and values of Kafka's records, as users declare them, and addresses of schema registries."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

import attrs

from keyed.base.arguments import Shown, shown
from keyed.errors import DefinitionError

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


def check_registry(owner: object, _: object, registry: Registry | None) -> None:
    """Check the attribute of a class that has the address of a registry.

    Raises:
        DefinitionError: It is no address.
    """
    if registry is None:
        return
    kind, address = type(owner).__name__, registry_address(registry)
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
        registry: Address of a schema registry, or a dict of its settings: values have its wire format and are
            validated with their JSON schemas.

    Raises:
        DefinitionError: ``schema`` is not a JSON schema, or one of its ``$ref`` has no target in it or leads back to
            itself; or ``registry`` is not an address.
    """

    schema: str | None = attrs.field(default=None, repr=False, kw_only=True)
    registry: Registry | None = attrs.field(default=None, kw_only=True, repr=shown_registry, validator=check_registry)

    def __attrs_post_init__(self) -> None:
        if self.schema is not None:
            _check_json_schema(self.schema)


@attrs.frozen
class Avro(Shown):
    """Avro: a record is an element with a column for each field. Times are `datetime` in UTC.

    Args:
        schema: Schema as JSON text. With a registry, a source converts values to it (by default the writer's), and a
            sink registers it; without, that of all values.
        registry: Address of a schema registry, or a dict of its settings.

    Raises:
        DefinitionError: Neither is given, ``schema`` is not a schema, or ``registry`` is not an address.
    """

    schema: str | None = attrs.field(default=None, repr=False)
    registry: Registry | None = attrs.field(default=None, kw_only=True, repr=shown_registry, validator=check_registry)

    def __attrs_post_init__(self) -> None:
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
    registry: Registry | None = attrs.field(default=None, kw_only=True, repr=shown_registry, validator=check_registry)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.message, type) or not hasattr(self.message, "DESCRIPTOR"):
            raise DefinitionError(f"Protobuf: message={self.message!r} must be a class that protoc has generated")


#: The formats.
Format = Json | Avro | Protobuf
