"""The form of values in the overlay, so that a function and its state never share mutable objects.

What `take` gets from a function is stored as it is then, and what `give` gives is the function's own. Values that
cannot change are held as they come back from their bytes; of others the bytes are held, so that each call has the
effect that it would have if the batch ended there. Accumulators belong to the engine alone, so they are held as objects
that are changed in place.
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
        take: What is held of a value that a function gives.
        give: The value that a function gets of what is held.
        encode: What is held as bytes.
        decode: What is held of bytes.
        unchanged: Whether all of what is held is seen to be what `decode` makes of its bytes.
        plain: Classes whose values `take` gives back as they are, so that the call can be spared; it may add to them.
        gives_held: Whether `give` does nothing.
        in_place: Whether what is held may be changed where it is, and so counts as written once it was read.
    """

    take: Callable[[Any], Any]
    give: Callable[[Any], Any]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    unchanged: Callable[[Collection[Any]], bool]
    plain: AbstractSet[type] = frozenset()
    gives_held: bool = False
    in_place: bool = False


class _Encoded(bytes):
    """The bytes of a value, where values that cannot change are held beside them."""

    __slots__ = ()


def isolation_of(codec: ValueCodec, *, in_place: bool = False) -> Isolation:
    """Return how the values of a declared type are held.

    Args:
        codec: The codec of the type.
        in_place: Whether the function may change them where they are.
    """
    if codec.immutable:
        return _unchanging(codec)
    if in_place:
        return Isolation(
            *(_itself, _itself, codec.encode, codec.decode, codec.unchanged),
            plain={list, dict},
            gives_held=True,
            in_place=True,
        )
    if codec.by_value:
        return _by_value(codec)
    return Isolation(codec.encode, codec.decode, _itself, _itself, lambda _: True)


def owned(codec: ValueCodec) -> Isolation:
    """Return how accumulators are held, into which a copy of each value goes, and of which copies come out."""
    if codec.immutable:
        return isolation_of(codec)
    round_tripped = _round_tripped(codec, snapshot)
    return Isolation(round_tripped, round_tripped, codec.encode, codec.decode, codec.unchanged, in_place=True)


def _unchanging(codec: ValueCodec) -> Isolation:
    """Return how values that cannot change are held."""
    encode, decode, plain = codec.encode, codec.decode, set(codec.classes)
    if codec.exact is not None:
        stored = _round_tripped(codec, _itself)
        return Isolation(stored, _itself, encode, decode, codec.unchanged, plain, gives_held=True)

    def take(value: Any) -> Any:
        # Of each class one value is checked now, the others when they are written.
        encode(value)
        plain.add(value.__class__)
        return value

    return Isolation(take, _itself, encode, decode, codec.unchanged, plain, gives_held=True)


def _round_tripped(codec: ValueCodec, taken: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that gives a value as it comes back from its bytes; ``taken`` of it where that is the same."""
    exact: Callable[[Any], bool] = _is_exact if codec.by_value else codec.exact or (lambda _: True)

    def round_tripped(value: Any) -> Any:
        try:
            if exact(value):
                return taken(value)
        except (AttributeError, TypeError, IndexError):
            # It is not of the type, which encoding says.
            pass
        return codec.decode(codec.encode(value))

    return round_tripped


def _by_value(codec: ValueCodec) -> Isolation:
    """Return how values without a declared type are held: as they are, or their bytes."""

    def take(value: Any) -> Any:
        return value if _comes_back_as_it_is(value) else _Encoded(codec.encode(value))

    def give(held: Any) -> Any:
        return codec.decode(held) if held.__class__ is _Encoded else held

    def encode(held: Any) -> bytes:
        return bytes(held) if held.__class__ is _Encoded else codec.encode(held)

    def decode(data: bytes) -> Any:
        value = codec.decode(data)
        return value if _comes_back_as_it_is(value) else _Encoded(data)

    def unchanged(held: Collection[Any]) -> bool:
        return codec.unchanged([value for value in held if value.__class__ is not _Encoded])

    return Isolation(take, give, encode, decode, unchanged, _PLAIN)


#: Datetimes are not among them, because they come back in UTC.
_PLAIN = frozenset({type(None), bool, int, float, str, bytes, dt.date, dt.timedelta, Decimal, UUID})
_COLLECTIONS = frozenset({list, tuple, set, frozenset})
_all_plain = _PLAIN.issuperset


def _comes_back_as_it_is(value: Any) -> bool:
    """Return whether a value is immutable and not changed by being stored. For most the class decides."""
    cls = value.__class__
    if cls in _PLAIN:
        return True
    return (cls is tuple or issubclass(cls, Row)) and _all_plain(map(type, value))


def _is_exact(value: Any) -> bool:
    """Return whether a value without a declared type comes back as it was."""
    cls = value.__class__
    if cls in _PLAIN:
        return True
    if cls is dict:
        return all(map(_is_exact, value)) and all(map(_is_exact, value.values()))
    if cls in _COLLECTIONS or issubclass(cls, Row):
        return _all_plain(map(type, value)) or all(map(_is_exact, value))
    return False


def _itself(value: Any) -> Any:
    return value
