"""The one form that values of any kind have in JSON."""

from __future__ import annotations

import datetime as dt
import math
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from typing import Any

import msgspec

from keyed.rows import names_of_class

_NAMES_OF_FLOATS = {math.inf: "Infinity", -math.inf: "-Infinity"}
_OTHERS = frozenset({type(None), bool, int, str, bytes, dt.datetime, dt.date, dt.time, Decimal})


def as_json(value: Any, unknown: Callable[[Any], str] = repr) -> bytes:
    """Return a value as JSON: times as ISO 8601, decimals as text, bytes as base64, classes as objects.

    Floats without a JSON form are text: ``"NaN"``, ``"Infinity"``, ``"-Infinity"``. A map is an object if its keys are
    single values; otherwise, as with tuples, it is a list of ``[key, value]``.

    Args:
        value: The value.
        unknown: Returns the text of a value of a type without a form in JSON. It may raise.
    """
    try:
        encoded = _encoder(unknown)(value)
    except _NoText:
        return msgspec.json.encode(_plain(value, unknown))
    # msgspec encodes NaN and infinities as null, or as Python's text in keys, so a value that may hold one is
    # searched.
    has_odd_key = encoded.find(b'"nan"') >= 0 or encoded.find(b'inf"') >= 0
    if not has_odd_key and (encoded.find(b"null") < 0 or _is_finite(value)):
        return encoded
    return msgspec.json.encode(_plain(value, unknown))


@lru_cache
def _encoder(unknown: Callable[[Any], str]) -> Callable[[Any], bytes]:
    return msgspec.json.Encoder(enc_hook=partial(_simple, unknown)).encode


def _is_finite(value: Any) -> bool:
    """Return true if a value has no float that JSON lacks; objects of classes are not searched."""
    if value.__class__ is not dict and value.__class__ is not list:
        return False
    for each in value.values() if value.__class__ is dict else value:
        kind = each.__class__
        if kind not in _OTHERS and not (math.isfinite(each) if kind is float else _is_finite(each)):
            return False
    return True


class _NoText(Exception):
    """A key of a map that is not a single value."""


def _simple(unknown: Callable[[Any], str], value: Any) -> str:
    """Return the text of a value that JSON lacks, or of a key."""
    kind = type(value)
    if value is None or issubclass(kind, bool | tuple | list | dict | frozenset | set) or names_of_class(kind):
        raise _NoText
    return unknown(value)


def _plain(value: Any, unknown: Callable[[Any], str]) -> Any:
    """Return a value in its JSON form. What imitates another type is of its own type."""
    kind = type(value)
    if value is None or (issubclass(kind, str | int | msgspec.Raw) and not issubclass(kind, Enum)):
        return value
    if issubclass(kind, float):
        return value if math.isfinite(value) else _NAMES_OF_FLOATS.get(value, "NaN")
    if issubclass(kind, dict):
        pairs = [[_plain(key, unknown), _plain(item, unknown)] for key, item in value.items()]
        texts = {_text_of(key): item for key, item in pairs}
        return pairs if None in texts or len(texts) < len(pairs) else texts
    if issubclass(kind, list | tuple | set | frozenset | deque):
        return [_plain(item, unknown) for item in value]
    if names := names_of_class(kind):
        return {name: _plain(getattr(value, name), unknown) for name in names}
    if issubclass(kind, Enum):
        return _plain(value.value, unknown)
    return msgspec.to_builtins(value, enc_hook=unknown)


def _text_of(key: Any) -> str | None:
    """Return the text of a map's key in its JSON form; ``None`` if it is not a single value."""
    if isinstance(key, list | dict):
        return None
    return key if isinstance(key, str) else msgspec.json.encode(key).decode()
