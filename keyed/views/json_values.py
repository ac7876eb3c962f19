"""Keys out of the text of a request, and answers as JSON."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from operator import is_
from typing import Any
from uuid import UUID

import msgspec

from keyed.errors import DefinitionError

_NAMES_OF_FLOATS = {math.inf: "Infinity", -math.inf: "-Infinity"}
_TEXT = {bytes: "base64", dt.datetime: "an ISO 8601 time with its zone", dt.date: "an ISO 8601 date", UUID: "a UUID"}


def as_json(answer: Any) -> bytes:
    """Return an answer as JSON: times as ISO 8601, decimals as text, bytes as base64, classes as objects.

    Floats that JSON has not are text: ``"NaN"``, ``"Infinity"``, ``"-Infinity"``.
    """
    encoded = msgspec.json.encode(answer, enc_hook=repr)
    # They come out as null, and so they are looked for only where there is one.
    if b"null" not in encoded:
        return encoded
    plain = msgspec.to_builtins(answer, enc_hook=repr, str_keys=True)
    named = _with_named_floats(plain)
    return encoded if named is plain else msgspec.json.encode(named)


def _with_named_floats(plain: Any) -> Any:
    """Return a value with the names of floats that JSON has not; itself if there are none."""
    if isinstance(plain, float):
        return plain if math.isfinite(plain) else _NAMES_OF_FLOATS.get(plain, "NaN")
    if not isinstance(plain, dict | list | tuple):
        return plain
    values = list(plain.values() if isinstance(plain, dict) else plain)
    named = [*map(_with_named_floats, values)]
    if all(map(is_, named, values)):
        return plain
    return dict(zip(plain, named, strict=True)) if isinstance(plain, dict) else named


def windows_of(text: str) -> tuple[Any, Any]:
    """Return the times ``FROM/TO``, each milliseconds or an ISO 8601 time, as `StateTable.scan` takes them.

    Raises:
        DefinitionError: It is none of that.
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


def _time(text: str) -> Any:
    return int(text) if re.fullmatch(r"-?\d{1,18}", text, re.ASCII) else dt.datetime.fromisoformat(text)


def key_of(text: str, example: Any, parameter: str) -> Any:
    """Return the key, or first part of one, that a request names.

    Args:
        text: Text for keys that are text; JSON for all others, of keys with several parts a list, and ``null`` for the
            key of broadcast states.
        example: A key of the table, whose type decides; ``None`` if it has none.
        parameter: Where the text was, for messages.

    Raises:
        DefinitionError: It is no key of this type.
    """
    if example is None and text == "null":
        return None
    if example is None or isinstance(example, str):
        return text
    try:
        given = msgspec.json.decode(text)
    except msgspec.DecodeError:
        given = text
    try:
        return _converted(given, example)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        kind = type(example).__name__
        raise DefinitionError(
            f"{parameter}={text!r} is no key of this table: its keys have type {kind}, as in {example!r}; give "
            f"{_TEXT.get(type(example), 'JSON')}"
        ) from error


def bounds_of(given: Mapping[str, str | None], example: Any, dashes: str = "") -> dict[str, Any]:
    """Return what a request gives of the keyword arguments of `StateTable.scan` that say which entries.

    Args:
        given: Texts by the name of the parameter, ``key``, ``prefix``, ``from``, ``to`` and ``windows``.
        example: As in `key_of`.
        dashes: What stands before the names in messages.

    Raises:
        DefinitionError: One is no key of this type, or windows are no two times.
    """
    keys = {name: text for name in ("key", "prefix", "from", "to") if (text := given.get(name)) is not None}
    bounds = {f"{name}_" if name == "from" else name: key_of(keys[name], example, dashes + name) for name in keys}
    windows = given.get("windows")
    return bounds if windows is None else bounds | {"windows": windows_of(windows)}


def batch_or_time(text: str | None, parameter: str) -> int | dt.datetime | None:
    """Return the number of a batch or the time that a request names; ``None`` if it names none.

    Raises:
        DefinitionError: It is neither.
    """
    try:
        return None if text is None else _time(text)
    except ValueError as error:
        raise DefinitionError(
            f"{parameter}={text!r:.140}: give the number of a batch, or a time such as 2026-01-31T12:00:00Z"
        ) from error


def _converted(given: Any, example: Any) -> Any:
    if isinstance(example, tuple):
        if not isinstance(given, list) or len(given) > len(example):
            raise ValueError("not a list of the parts")
        return tuple(map(_converted, given, example))
    kind: Any = Decimal if isinstance(example, Decimal) else type(example)
    return msgspec.convert(given, kind, strict=isinstance(given, bool) or kind is str)
