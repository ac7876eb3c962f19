"""Conversion of values from tables to the declared types of a state."""

from __future__ import annotations

import typing
from typing import Any

import msgspec


def as_declared(value: Any, type_: Any) -> Any:
    """Return a value in its declared type: an object of a class for Arrow's form of it.

    Raises:
        msgspec.ValidationError: It does not fit.
    """
    if type_ is None or type_ is Any or type_ is object:
        return value
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError:
        parts = list(value.values()) if isinstance(value, dict) else []
        if len(parts) == 1:
            # Spark's state tables have a struct with one field for a value.
            return msgspec.convert(parts[0], type_)
        if parts and (typing.get_origin(type_) is tuple or (isinstance(type_, type) and issubclass(type_, tuple))):
            # Arrow has no tuples: state tables have structs instead.
            return msgspec.convert(parts, type_)
        raise
