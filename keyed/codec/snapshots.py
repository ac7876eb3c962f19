"""Snapshots: copies of values, which later changes do not affect.

An immutable value is its own snapshot; other values are copied deeply. The class decides which, once per class; only
plain containers and rows are checked item by item.
"""

from __future__ import annotations

import copy
import datetime as dt
import enum
import numbers
import operator
from collections.abc import Callable
from decimal import Decimal
from inspect import getattr_static
from types import MemberDescriptorType, MethodType
from typing import Any
from uuid import UUID

from keyed.codec.fingerprints import inspect_type
from keyed.codec.keys import normalised
from keyed.codec.refusals import type_name
from keyed.codec.shapes import is_frozen, shape_of
from keyed.errors import EncodingError
from keyed.rows import Row, fields_of

UNCHANGING: set[type] = {
    *(type(None), bool, int, float, complex, str, bytes),
    *(dt.date, dt.datetime, dt.time, dt.timedelta, Decimal, UUID),
}
"""Classes whose instances cannot change, whatever they contain. More are added at their first value."""

_all_come_back = frozenset(UNCHANGING - {dt.datetime}).issuperset
_COLLECTIONS = frozenset({list, tuple, set, frozenset})
_all_unchanging = UNCHANGING.issuperset


def snapshot(value: Any) -> Any:
    """Return a snapshot of ``value``: an immutable value itself, any other value as a copy.

    Numbers, text, bytes, times, decimals, UUIDs, enums, and tuples, rows and frozen classes of them are immutable.

    Raises:
        EncodingError: It cannot be copied: for example it contains a lock, an open file or itself.
    """
    try:
        return _copy_of_value(value)
    except RecursionError:
        raise EncodingError(
            f"a value of type {type_name(type(value))} is nested too deep, or contains itself; flatten it"
        ) from None


def _copy_of_value(value: Any) -> Any:
    cls = type(value)
    if cls in UNCHANGING:
        return value
    return (_COPIES.get(cls) or _copy_of(cls))(value)


def as_stored(value: Any) -> Any:
    """Return ``value`` as a state without a declared type returns it: a snapshot, with datetimes in UTC.

    Times of a repeated hour compare by the instant.

    Raises:
        EncodingError: It cannot be copied.
    """
    cls = type(value)
    if cls is dt.datetime:
        return normalised(value).replace(fold=0)
    if cls in UNCHANGING:
        return value
    if cls in _COLLECTIONS or issubclass(cls, Row):
        return snapshot(value) if _all_come_back(map(type, value)) else cls(map(as_stored, value))
    if cls is dict:
        return {as_stored(key): as_stored(item) for key, item in value.items()}
    return snapshot(value)


def _tuple(value: Any) -> Any:
    if _all_unchanging(map(type, value)):
        return value
    parts = [item if type(item) in UNCHANGING else _copy_of_value(item) for item in value]
    if all(map(operator.is_, parts, value)):
        return value
    cls = type(value)
    return cls(parts) if cls is tuple or issubclass(cls, Row) else cls._make(parts)


def _list(value: Any) -> Any:
    return value.copy() if _all_unchanging(map(type, value)) else list(map(_copy_of_value, value))


def _dict(value: Any) -> Any:
    # Keys are hashed by their content, so they do not change.
    if _all_unchanging(map(type, value.values())):
        return value.copy()
    return {key: _copy_of_value(item) for key, item in value.items()}


def _anything(value: Any) -> Any:
    if isinstance(value, MethodType):
        raise EncodingError(f"{value.__name__} is a method that was not called; call it: {value.__name__}()")
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise EncodingError(
            f"a value of type {type_name(type(value))} cannot be taken as it is now, because it cannot be copied "
            f"({error}); give plain data, or a class of it"
        ) from error


def _itself(value: Any) -> Any:
    return value


# Members of a set are hashed by their content, so they do not change.
_COPIES: dict[type, Callable[[Any], Any]] = {
    tuple: _tuple,
    list: _list,
    dict: _dict,
    set: set.copy,
    frozenset: _itself,
    bytearray: bytearray,
}


def _copy_of(cls: type) -> Callable[[Any], Any]:
    """Return the snapshot function of a new class, or of rows, which have many classes."""
    if issubclass(cls, tuple):
        return _tuple if fields_of(cls) is not None else _anything
    if issubclass(cls, enum.Enum | numbers.Number | str | bytes | dt.date | dt.timedelta) or _is_unchanging(cls):
        UNCHANGING.add(cls)
        return _itself
    copy = _COPIES[cls] = _copy_of_fields(cls) if _has_only_fields(cls) else _anything
    return copy


def _is_unchanging(cls: type) -> bool:
    """Return true if a class is frozen, and its fields are declared as immutable types."""
    try:
        return is_frozen(cls) and shape_of(inspect_type(cls)).immutable
    except EncodingError:
        return False


def _has_only_fields(cls: Any) -> bool:
    """Return true if copying the attributes copies an instance: a plain dataclass or attrs class."""
    if not (hasattr(cls, "__dataclass_fields__") or hasattr(cls, "__attrs_attrs__")):
        return False
    ways = {"__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__"}
    return not any(ways & vars(base).keys() for base in cls.__mro__[:-1])


def _copy_of_fields(cls: Any) -> Callable[[Any], Any]:
    slots = [name for name in dir(cls) if isinstance(getattr_static(cls, name), MemberDescriptorType)]
    frozen = is_frozen(cls)

    def copied(value: Any) -> Any:
        before = {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})
        if frozen and _all_unchanging(map(type, before.values())):
            return value
        instance = object.__new__(cls)
        for name, item in before.items():
            object.__setattr__(instance, name, _copy_of_value(item))
        return instance

    return copied
