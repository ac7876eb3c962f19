"""Digest of the rows that a checkpoint has consumed, to check that a source still begins with them.

There is a digest for the first thousand rows, and one for the last thousand. A row's digest is the same for all kinds
of sources: dictionaries, rows, a DataFrame. It is BLAKE2b over the ``repr`` of the row's plain form: numbers are
compared by value and times by instant, a null equals a missing field, and objects other than data count by their type.
The digest of several rows is BLAKE2b over their digests.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import blake2b
from math import isfinite
from typing import Any

import attrs

#: Number of rows at either end that are compared.
ROWS = 1000


@attrs.frozen
class Consumed:
    """The digests of the first and of the last consumed rows."""

    first: bytes
    last: bytes


class Tracker:
    """Tracks the consumed rows.

    Args:
        count: Number of rows that were consumed before.
        first: The first `ROWS` of them.
        last: The last `ROWS` of them.
    """

    def __init__(self, count: int = 0, first: Iterable[Any] = (), last: Iterable[Any] = ()) -> None:
        self._first = [_digest(row) for row in first]
        self._last = deque((_digest(row) for row in last), ROWS)
        self._digest_of_first = _joined(self._first)
        assert len(self._first) == len(self._last) == min(count, ROWS)

    def add(self, count: int, rows: Callable[[int, int], Iterable[Any]]) -> None:
        """Record a batch.

        Args:
            count: Number of its rows.
            rows: Returns the rows from an index up to, not including, another one.
        """
        missing = min(ROWS - len(self._first), count)
        if missing:
            self._first += [_digest(row) for row in rows(0, missing)]
            self._digest_of_first = _joined(self._first)
        self._last.extend(_digest(row) for row in rows(max(0, count - ROWS), count))

    def consumed(self) -> Consumed:
        """Return the digests for the checkpoint."""
        return Consumed(self._digest_of_first, _joined(self._last))


def _joined(digests: Iterable[bytes]) -> bytes:
    return blake2b(b"".join(digests), digest_size=16).digest()


def _digest(row: Any) -> bytes:
    try:
        plain = repr(_plain(row))
    except RecursionError:
        # It contains itself, or is nested too deep.
        plain = "..."
    return blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _plain(value: Any) -> Any:
    kind = value.__class__
    if kind is str or kind is int or kind is bool or value is None or kind is bytes:
        return value
    if kind is float or kind is Decimal:
        # NaN is pandas' null.
        if value.is_nan() if kind is Decimal else value != value:  # noqa: PLR0124
            return None
        return int(value) if isfinite(value) and value == int(value) else str(value)
    return _plain_data(value)


def _plain_data(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat() if value.tzinfo else value.isoformat()
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, Mapping):
        return _fields(value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _fields(zip(value._fields, value, strict=True))
    if isinstance(value, list | tuple | deque):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(_plain(item)) for item in value)
    if attrs.has(type(value)):
        return _fields((field.name, getattr(value, field.name)) for field in attrs.fields(type(value)))
    if dataclasses.is_dataclass(value):
        return _fields((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    text = repr(value)
    # A memory address does not identify a value.
    return type(value).__qualname__ if " at 0x" in text else text


def _fields(items: Iterable[tuple[Any, Any]]) -> Any:
    plain = [(str(name), _plain(value)) for name, value in items]
    return sorted(((name, value) for name, value in plain if value is not None), key=lambda item: item[0])
