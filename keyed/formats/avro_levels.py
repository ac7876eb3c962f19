"""Depth of Avro values. A recursive schema does not limit it, and fastavro recurses in C until the stack overflows.

So values of recursive schemas are checked before fastavro reads or writes them. The limit is that of stored values.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

from keyed.codec.tagged import MAX_VALUE_DEPTH

#: Bytes of the types of a fixed size.
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_TOO_DEEP = f"records, arrays and maps are nested more than {MAX_VALUE_DEPTH} deep"


def check_value(value: Any, levels: int = MAX_VALUE_DEPTH) -> None:
    """Check the depth of a value that is to be written.

    Raises:
        ValueError: It is nested too deep.
    """
    if isinstance(value, dict | list | tuple):
        if not levels:
            raise ValueError(_TOO_DEEP)
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
                raise ValueError(_TOO_DEEP)
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
