"""What the overlay holds of the values of a state, so that a function and the state never share what can change.

What `take` gets from a function is stored as it is then, and what `give` gives is the function's own. Values that
cannot change are held as they are; of others their bytes are, so that each call has the effect that it would have if
the batch ended there. Accumulators belong to the engine alone, so they are held as objects that are changed in place.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import attrs

from keyed.codec.snapshots import snapshot
from keyed.codec.values import ValueCodec
from keyed.rows import Row


@attrs.frozen(eq=False)
class Holding:
    """How values are held.

    Attributes:
        take: What is held of a value that a function gives.
        give: The value that a function gets of what is held.
        encode: What is held as bytes.
        decode: What is held of bytes.
        as_it_is: Whether `take` and `give` do nothing.
        in_place: Whether what is held may be changed where it is, and so counts as written once it was read.
    """

    take: Callable[[Any], Any]
    give: Callable[[Any], Any]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    as_it_is: bool = False
    in_place: bool = False


class _Encoded(bytes):
    """The bytes of a value, where values that cannot change are held beside them."""

    __slots__ = ()


def holding_of(codec: ValueCodec, *, in_place: bool = False) -> Holding:
    """How the values of a declared type are held.

    Args:
        codec: The codec of the type.
        in_place: Whether the function may change them where they are.
    """
    if codec.immutable or in_place:
        return Holding(_itself, _itself, codec.encode, codec.decode, as_it_is=True, in_place=in_place)
    if codec.by_value:
        return _by_value(codec)
    return Holding(codec.encode, codec.decode, _itself, _itself)


def owned(codec: ValueCodec) -> Holding:
    """How accumulators are held, into which a copy of each value goes, and of which copies come out."""
    if codec.immutable:
        return holding_of(codec)
    return Holding(snapshot, snapshot, codec.encode, codec.decode, in_place=True)


def _by_value(codec: ValueCodec) -> Holding:
    """How values without a declared type are held: as they are, or their bytes."""

    def take(value: Any) -> Any:
        return value if _comes_back_as_it_is(value) else _Encoded(codec.encode(value))

    def give(held: Any) -> Any:
        return codec.decode(held) if held.__class__ is _Encoded else held

    def encode(held: Any) -> bytes:
        return bytes(held) if held.__class__ is _Encoded else codec.encode(held)

    def decode(data: bytes) -> Any:
        value = codec.decode(data)
        return value if _comes_back_as_it_is(value) else _Encoded(data)

    return Holding(take, give, encode, decode)


#: Datetimes are not among them, because they come back in UTC.
_PLAIN = frozenset({type(None), bool, int, float, str, bytes, dt.date, dt.timedelta, Decimal, UUID})
_all_plain = _PLAIN.issuperset


def _comes_back_as_it_is(value: Any) -> bool:
    """Whether a value can neither change nor be changed by being stored. Most are told by their class."""
    cls = value.__class__
    if cls in _PLAIN:
        return True
    return (cls is tuple or issubclass(cls, Row)) and _all_plain(map(type, value))


def _itself(value: Any) -> Any:
    return value
