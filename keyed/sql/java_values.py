"""The order and equality of values in Java, as keys for Python."""

from __future__ import annotations

import math
from typing import Any

_SIGNED = bytes(byte ^ 0x80 for byte in range(256))


def java_order(value: Any) -> Any:
    """Return a key of ``compareTo``: NaN is the greatest double, texts are compared by units, bytes are signed.

    Raises:
        TypeError: Such values have no order.
    """
    match value:
        case float():
            is_nan = math.isnan(value)
            return is_nan, 0.0 if is_nan else value, math.copysign(1, value)
        case str():
            return value.encode("utf-16-be", "surrogatepass")
        case bytes():
            return value.translate(_SIGNED)
        case list() | dict():
            raise TypeError(f"{value!r} has no order")
    return value


def java_identity(value: Any) -> Any:
    """Return a key of ``equals``, under which NaN equals itself, and zero differs from negative zero."""
    match value:
        case bool():
            return "bool", value
        case float() if math.isnan(value) or (value == 0 and math.copysign(1, value) < 0):
            return "double", repr(value)
        case list():
            return "list", *map(java_identity, value)
        case dict():
            return "map", frozenset((key, java_identity(each)) for key, each in value.items())
    return value
