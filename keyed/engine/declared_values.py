"""Values that come from tables as a state declares them."""

from __future__ import annotations

import typing
from typing import Any

import msgspec


def as_declared(value: Any, type_: Any) -> Any:
    """Return a value as the declared type has it: of what Arrow has for a class the class.

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
            # Spark's state tables have a struct of one field for a value.
            return msgspec.convert(parts[0], type_)
        if parts and (typing.get_origin(type_) is tuple or (isinstance(type_, type) and issubclass(type_, tuple))):
            # Arrow has no tuples: those of state tables are structs.
            return msgspec.convert(parts, type_)
        raise
