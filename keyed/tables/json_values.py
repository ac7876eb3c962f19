"""Conversion of the text of requests to keys."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import attrs
import msgspec

from keyed.codec.arrow_streams import read_schema
from keyed.errors import DefinitionError

if TYPE_CHECKING:
    import pyarrow as pa

    from keyed.codec.state_schema import StateSchema
    from keyed.tables.entries import Entry
    from keyed.tables.operator_view import Position

#: Maximal depth of lists and objects in a request.
_DEEPEST = 32
#: An example value of each declared type that JSON lacks.
_EXAMPLES = {
    "bytes": b"",
    "date": dt.date.min,
    "datetime": dt.datetime(1, 1, 1, tzinfo=dt.UTC),
    "Decimal": Decimal(0),
    "float": 0.0,
    "str": "",
    "time": dt.time.min,
    "timedelta": dt.timedelta(),
    "UUID": UUID(int=0),
}
_TEXT = {bytes: "base64", dt.datetime: "an ISO 8601 time with its zone", dt.date: "an ISO 8601 date", UUID: "a UUID"}


def shown_position(position: Position, *, whole: bool) -> Any:
    """Return a position; for a token of some tables without entries and hash, which cover all of them."""
    hidden = () if whole else ("entries", "hash")
    return attrs.asdict(
        position, filter=lambda field, value: field.name not in hidden and (field.name != "groups" or value is not None)
    )


def decoded(text: str | bytes, what: str) -> Any:
    """Decode JSON from a request.

    Raises:
        DefinitionError: It is not JSON, or its lists and objects are nested more than 32 levels deep.
    """
    try:
        value = msgspec.json.decode(text)
    except RecursionError as error:
        raise DefinitionError(f"{what} is nested more than {_DEEPEST} levels deep") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise DefinitionError(f"{what} is not JSON: {error}") from error
    if _is_deeper(value, _DEEPEST):
        raise DefinitionError(f"{what} is nested more than {_DEEPEST} levels deep")
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, list | dict):
        return False
    items = value.values() if isinstance(value, dict) else value
    return not levels or any(_is_deeper(item, levels - 1) for item in items)


def windows_of(text: str) -> tuple[Any, Any]:
    """Return the times of ``FROM/TO``, each milliseconds or an ISO 8601 time, in the form of `StateTable.scan`.

    Raises:
        DefinitionError: The text has another form.
    """
    first, slash, last = text.partition("/")
    try:
        if slash:
            return _time(first), _time(last)
    except ValueError:
        pass
    raise DefinitionError(
        f"windows={text!r:.100}: give FROM/TO, each milliseconds or a time such as 2026-01-31T12:00:00Z"
    )


def entry_of(text: str, example: Any, schema: StateSchema, parameter: str) -> Any:
    """Return the entry that a request names.

    Args:
        text: As in `key_of`; for windows their start, or a JSON list of start and end: each a time such as
            2026-01-31T12:00:00Z, or milliseconds.
        example: An entry of the table, as in `key_of`.
        schema: The table.
        parameter: Where the text was, for messages.

    Raises:
        DefinitionError: It is not an entry of this table.
    """
    if schema.kind == "table":
        return _row_of(text, schema, parameter)
    if schema.kind != "window":
        return key_of(text, _complete(example, schema.key), parameter)
    parsed = _parse_parameter(text, parameter)
    try:
        parts = parsed if isinstance(parsed, tuple) else (parsed,)
        return tuple(part if type(part) is int else _time(part) for part in parts)
    except (TypeError, ValueError) as error:
        raise DefinitionError(
            f"{parameter}={text!r:.100} is not a window: give its start, or [start, end], each a time such as "
            "2026-01-31T12:00:00Z or milliseconds"
        ) from error


def _row_of(text: str, schema: StateSchema, parameter: str) -> Any:
    """Return the further key columns of a table state that a request names, by the types of the columns."""
    columns = read_schema(schema.value["arrow"])
    examples = tuple(_example_of(columns.field(name).type) for name in schema.key[schema.value["stream_keys"] :])
    if len(examples) == 1 and examples[0] == "" and text != "null" and not text.startswith("["):
        # Text that JSON would parse as a number.
        return (text,)
    return key_of(text, examples, parameter)


def _complete(example: Any, type_: Any) -> Any:
    """Return an example whose null parts are replaced by values of the declared type."""
    if isinstance(type_, dict) and type_["kind"] == "union":
        rest = [each for each in type_["types"] if each != "None"]
        type_ = rest[0] if len(rest) == 1 else None
    if isinstance(example, tuple) and isinstance(type_, dict) and type_["kind"] == "tuple":
        return tuple(map(_complete, example, type_["items"]))
    return _EXAMPLES.get(type_) if example is None and isinstance(type_, str) else example


def _example_of(type_: pa.DataType) -> Any:
    """Return a value of a column's type; ``None`` if JSON has values of this type."""
    import pyarrow as pa

    types = pa.types
    examples = (
        (types.is_string, "str"),
        (types.is_large_string, "str"),
        (types.is_binary, "bytes"),
        (types.is_large_binary, "bytes"),
        (types.is_decimal, "Decimal"),
        (types.is_floating, "float"),
        (types.is_date, "date"),
        (types.is_timestamp, "datetime"),
        (types.is_time, "time"),
        (types.is_duration, "timedelta"),
    )
    return next((_EXAMPLES[name] for is_type, name in examples if is_type(type_)), None)


def window_row(schema: StateSchema, entry: Entry) -> dict[str, Any]:
    """Return a window of a key as a row: its bounds and the results, by column."""
    return dict(zip((*schema.key, *entry.value), (*(entry.entry or ()), *entry.value.values()), strict=True))


def _time(text: str) -> Any:
    return int(text) if re.fullmatch(r"-?\d{1,18}", text, re.ASCII) else dt.datetime.fromisoformat(text)


def key_of(text: str, example: Any, parameter: str) -> Any:
    """Return the key, or first part of one, that a request names.

    Args:
        text: Text for keys that are text; JSON for all others: a list for keys with several parts, and ``null`` for the
            key of broadcast states.
        example: A key of the table, whose type determines the conversion; ``None`` if the table is empty.
        parameter: Where the text was, for messages.

    Raises:
        DefinitionError: It is not a key of this type.
    """
    if example is None and text == "null":
        return None
    if example is None or isinstance(example, str):
        return text
    parsed = _parse_parameter(text, parameter)
    if not isinstance(parsed, str) and not isinstance(example, bool | int | float | tuple):
        # Base64 or a decimal that JSON would parse as a number.
        parsed = text
    try:
        return _convert(parsed, example)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        kind = type(example).__name__
        raise DefinitionError(
            f"{parameter}={text!r} is not a key of this table: its keys have type {kind}, as in {example!r}; give "
            f"{_TEXT.get(type(example), 'JSON')}"
        ) from error


def namespace_of(text: str | None, example: Any, parameter: str) -> Any:
    """Return the namespace that a request names; ``None`` if it names none.

    Args:
        text: Text for namespaces that are text; JSON for all others: a list for tuples.
        example: A namespace of the table, whose type determines the conversion; ``None`` if it is not known.
        parameter: Where the text was, for messages.

    Raises:
        DefinitionError: It is not a namespace of this type, or is nested too deeply.
    """
    if text is None or example is not None:
        return None if text is None else key_of(text, example, parameter)
    return _parse_parameter(text, parameter)


def _parse_parameter(text: str, parameter: str) -> Any:
    """Return the value of a text: parsed JSON with tuples for lists, or the text itself if it is not JSON."""
    if not text.startswith("["):
        return _leaf_of(text)
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    except RecursionError:
        pass
    return _tuples(decoded(text, parameter))


def _leaf_of(text: str) -> Any:
    try:
        return msgspec.json.decode(text, type=str | int | float | bool | None)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def bounds_of(parameters: Mapping[str, str | None], example: Any, dashes: str = "") -> dict[str, Any]:
    """Return the keyword arguments of `StateTable.scan` that select entries, from a request.

    Args:
        parameters: Texts by the name of the parameter, ``key``, ``prefix``, ``from``, ``to`` and ``windows``.
        example: As in `key_of`.
        dashes: Prefix of the names in messages.

    Raises:
        DefinitionError: One is not a key of this type, or ``windows`` is not two times.
    """
    keys = {name: text for name in ("key", "prefix", "from", "to") if (text := parameters.get(name)) is not None}
    bounds = {f"{name}_" if name == "from" else name: key_of(keys[name], example, dashes + name) for name in keys}
    windows = parameters.get("windows")
    return bounds if windows is None else bounds | {"windows": windows_of(windows)}


def batch_or_time(text: str | None, parameter: str) -> int | dt.datetime | None:
    """Return the id of a batch or the time that a request names; ``None`` if it names none.

    Raises:
        DefinitionError: It is neither.
    """
    try:
        return None if text is None else _time(text)
    except ValueError as error:
        raise DefinitionError(
            f"{parameter}={text!r:.140}: give the id of a batch, or a time such as 2026-01-31T12:00:00Z"
        ) from error


def _convert(value: Any, example: Any) -> Any:
    if isinstance(example, tuple):
        if not isinstance(value, tuple):
            # The only further key column of a table.
            value = (value,) if len(example) == 1 else None
        if value is None or len(value) > len(example):
            raise ValueError("not a list of the parts")
        return tuple(None if part is None else _convert(part, of) for part, of in zip(value, example, strict=False))
    if example is None:
        return value
    kind: Any = Decimal if isinstance(example, Decimal) else type(example)
    return msgspec.convert(value, kind, strict=isinstance(value, bool) or kind is str)
