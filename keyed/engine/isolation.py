"""The form of values in the overlay, so that a function and its state never share mutable objects.

`freeze` stores a function's value at that moment, and `thaw` returns the function's own copy. Immutable values are held
as they would be decoded from their bytes. Of mutable values the bytes are held, so that each call has the same effect
as if the batch ended there. Accumulators belong only to the engine, so they are held as objects that are changed in
place.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from decimal import Decimal
from typing import Any
from uuid import UUID

import attrs

from keyed.codec.snapshots import snapshot
from keyed.codec.values import ValueCodec
from keyed.rows import Row


@attrs.frozen(eq=False)
class Isolation:
    """The form in which values are held.

    Attributes:
        freeze: Converts a function's value to its held form.
        thaw: Converts a held value to the function's value.
        encode: Converts a held value to bytes.
        decode: Converts bytes to a held value.
        unchanged: Returns true if all held values are known to equal `decode` of their bytes.
        frozen_classes: Classes whose values `freeze` returns unchanged, so that the call is skipped; it may add some.
        is_immutable: True if `thaw` does nothing.
        in_place: True if held values may be changed in place, and therefore count as written once they were read.
    """

    freeze: Callable[[Any], Any]
    thaw: Callable[[Any], Any]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    unchanged: Callable[[Collection[Any]], bool]
    frozen_classes: AbstractSet[type] = frozenset()
    is_immutable: bool = False
    in_place: bool = False


class _Encoded(bytes):
    """The bytes of a value, in a form that also holds immutable values as they are."""

    __slots__ = ()


def isolation_of(codec: ValueCodec, *, in_place: bool = False) -> Isolation:
    """Return the form in which the values of a declared type are held.

    Args:
        codec: The codec of the type.
        in_place: True if the function may change them in place.
    """
    if codec.immutable:
        return _unchanging(codec)
    if in_place:
        return Isolation(
            *(_itself, _itself, codec.encode, codec.decode, codec.unchanged),
            frozen_classes={list, dict},
            is_immutable=True,
            in_place=True,
        )
    if codec.by_value:
        return _by_value(codec)
    return Isolation(codec.encode, codec.decode, _itself, _itself, lambda _: True)


def owned(codec: ValueCodec) -> Isolation:
    """Return the form in which accumulators are held: values are copied into them, and out of them."""
    if codec.immutable:
        return isolation_of(codec)
    round_tripped = _round_tripped(codec, snapshot)
    return Isolation(round_tripped, round_tripped, codec.encode, codec.decode, codec.unchanged, in_place=True)


def _unchanging(codec: ValueCodec) -> Isolation:
    """Return the form in which immutable values are held."""
    encode, decode, frozen_classes = codec.encode, codec.decode, set(codec.classes)
    if codec.exact is not None:
        stored = _round_tripped(codec, _itself)
        return Isolation(stored, _itself, encode, decode, codec.unchanged, frozen_classes, is_immutable=True)

    def freeze(value: Any) -> Any:
        # One value of each class is checked now, the others when they are written.
        encode(value)
        frozen_classes.add(type(value))
        return value

    return Isolation(freeze, _itself, encode, decode, codec.unchanged, frozen_classes, is_immutable=True)


def _round_tripped(codec: ValueCodec, copy: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that decodes a value from its bytes, or returns ``copy`` of it if that is equal."""
    exact: Callable[[Any], bool] = _is_exact if codec.by_value else codec.exact or (lambda _: True)

    def round_tripped(value: Any) -> Any:
        try:
            if exact(value):
                return copy(value)
        except (AttributeError, TypeError, IndexError):
            # It does not have the declared type, and encoding raises the error.
            pass
        return codec.decode(codec.encode(value))

    return round_tripped


def _by_value(codec: ValueCodec) -> Isolation:
    """Return the form in which values without a declared type are held: unchanged, or their bytes."""

    def freeze(value: Any) -> Any:
        return value if _comes_back_as_it_is(value) else _Encoded(codec.encode(value))

    def thaw(held: Any) -> Any:
        return codec.decode(held) if type(held) is _Encoded else held

    def encode(held: Any) -> bytes:
        return bytes(held) if type(held) is _Encoded else codec.encode(held)

    def decode(data: bytes) -> Any:
        value = codec.decode(data)
        return value if _comes_back_as_it_is(value) else _Encoded(data)

    def unchanged(held: Collection[Any]) -> bool:
        return codec.unchanged([value for value in held if type(value) is not _Encoded])

    return Isolation(freeze, thaw, encode, decode, unchanged, _PLAIN)


#: Datetimes are not included, because they are decoded in UTC.
_PLAIN = frozenset({type(None), bool, int, float, str, bytes, dt.date, dt.timedelta, Decimal, UUID})
_COLLECTIONS = frozenset({list, tuple, set, frozenset})
_all_plain = _PLAIN.issuperset
#: The depth up to which tuples in tuples are looked at; their bytes are held beyond it.
_DEPTH = 4


def _comes_back_as_it_is(value: Any, depth: int = _DEPTH) -> bool:
    """Return true if a value is immutable and storing does not change it. For most values the class decides."""
    cls = type(value)
    if cls in _PLAIN:
        return True
    if cls is tuple:
        return _all_plain(map(type, value)) or (
            depth > 0 and all(_comes_back_as_it_is(item, depth - 1) for item in value)
        )
    return issubclass(cls, Row) and _all_plain(map(type, value))


def _is_exact(value: Any) -> bool:
    """Return true if a value without a declared type is decoded unchanged."""
    cls = type(value)
    if cls in _PLAIN:
        return True
    if cls is dict:
        return all(map(_is_exact, value)) and all(map(_is_exact, value.values()))
    if cls in _COLLECTIONS or issubclass(cls, Row):
        return _all_plain(map(type, value)) or all(map(_is_exact, value))
    return False


def _itself(value: Any) -> Any:
    return value
