"""Bad rows of the local runtime's sources: diverted where the stream has `on_bad_row`, refused otherwise.

Rows are bad by the same list as on Spark (`keyed.streams.stream`). Elements of Python have two ways more to have a key
that cannot be stored: a datetime without a zone, and a text with a lone surrogate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from keyed.arrow.unreadable import UNREADABLE, raw_rows, unreadable_column, unreadable_rows
from keyed.codec.keys import encode_key
from keyed.errors import EncodingError, NullKeyError, RowError, TimestampError
from keyed.shown import shown
from keyed.streams import Source

__all__ = ["Limit", "bad_keys", "bad_times", "refuse", "without_unreadable"]

#: Gives the highest timestamp that a row may have now.
Limit = Callable[[], int]

_ANY_VALUE = frozenset({int, bool, bytes, float, Decimal, date, UUID})
_REMEDY = "filter such rows, or give keyed.stream(..., on_bad_row=OutputTag(...))"


def bad_keys(keys: Sequence[Any]) -> list[int]:
    """The places of keys that are null, in part or whole, or that are of a type for keys and cannot be encoded."""
    return [] if _are_good(keys) else [i for i, key in enumerate(keys) if _is_bad(key)]


def bad_times(timestamps: Sequence[int | None], limit: Limit | None) -> list[int]:
    """The places of timestamps that are missing or beyond the limit."""
    if limit is None:
        return [i for i, timestamp in enumerate(timestamps) if timestamp is None]
    highest = limit()
    return [i for i, timestamp in enumerate(timestamps) if timestamp is None or timestamp > highest]


def refuse(source: Source, operator: str, element: Any, key: Any, timestamp: int | None) -> None:
    """Raise for a bad row."""
    if key is None or (isinstance(key, tuple) and None in key):
        raise NullKeyError(f"operator {operator!r}: key {shown(key)} of {shown(element)} is null; {_REMEDY}")
    if _is_bad(key):
        raise RowError(
            f"operator {operator!r}: key {shown(key)} of {shown(element)} cannot be stored: {_reason(key)}; {_REMEDY}"
        )
    if timestamp is None:
        raise TimestampError(
            f"operator {operator!r}: {shown(element)} has no usable timestamp in {source.timestamp!r}, which is int "
            f"milliseconds or a datetime with a time zone; {_REMEDY}"
        )
    raise TimestampError(
        f"operator {operator!r}: timestamp {timestamp} of {shown(element)} is more than {source.max_ahead_ms} ms ahead "
        f"of the processing time; {_REMEDY}, or give another max_ahead="
    )


def without_unreadable(source: Source, operator: str, table: Any) -> tuple[Any, list[Any]]:
    """A table without the rows that have what Python has no value for, and those rows.

    Raises:
        RowError: There are such rows, and the stream refuses them.
    """
    found = unreadable_rows(table)
    if not found:
        return table, []
    import numpy as np
    import pyarrow as pa

    bad = table.take(pa.array(found))
    elements = raw_rows(bad)
    if source.on_bad_row is None:
        column = unreadable_column(bad.slice(0, 1))
        raise RowError(f"operator {operator!r}: column {column!r} {UNREADABLE} in {shown(elements[0])}; {_REMEDY}")
    good: Any = np.ones(table.num_rows, dtype="bool")
    good[found] = False
    return table.filter(pa.array(good)), elements


def _are_good(keys: Sequence[Any]) -> bool:
    """Whether no key is bad, if that can be said without looking at each."""
    types = set(map(type, keys))
    if types <= _ANY_VALUE:
        return True
    if types == {str}:
        try:
            "".join(keys).encode()
        except UnicodeEncodeError:
            return False
        return True
    if types == {datetime}:
        return all(key.tzinfo is UTC for key in keys)
    return types == {tuple} and all(
        type(parts[0]) is not tuple and _are_good(parts) for parts in zip(*keys, strict=False)
    )


def _is_bad(key: Any) -> bool:
    if key is None or (isinstance(key, tuple) and None in key):
        return True
    return isinstance(key, str | datetime | tuple) and _reason(key) is not None


def _reason(key: Any) -> str | None:
    """Why a key cannot be stored, ``None`` if it can."""
    try:
        encode_key(key)
    except EncodingError as error:
        return str(error)
    return None
