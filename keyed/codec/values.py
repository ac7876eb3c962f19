"""Values of states as bytes, by their declared type.

`value_codec` creates the codec of a type once; its ``encode`` and ``decode`` are plain functions for hot loops. A
decoded value equals the encoded one and has the same types in all its parts, except that aware datetimes come back in
UTC, and ints as floats if floats are declared.

Byte layout, version 1, determined by the type alone (its fingerprint):

- A type all of whose parts are typed is written by msgspec: MessagePack; decimals, dates, times, durations and naive
  datetimes as text; UUIDs as 16 bytes; aware datetimes as MessagePack timestamps; enums by value; classes as maps by
  field name, named tuples and array-like Structs as arrays.
- A value of such a type with an int beyond 64 bits is written as the MessagePack extension type 20, which contains the
  value (classes as maps by field name, enums by value) as `keyed.codec.tagged` writes it.
- A type without or with untyped parts (``object``, ``Any``, bare ``list``) is written by `keyed.codec.tagged`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import chain
from operator import itemgetter
from typing import Any, get_args, get_origin

import attrs
import msgspec
from msgspec.msgpack import Decoder, Encoder, Ext

from keyed.base.arguments import shown
from keyed.codec.fingerprints import cached_by_type, describe_type, inspect_type
from keyed.codec.shapes import Shape, as_it_is, shape_of
from keyed.codec.tagged import decode_tagged, encode_tagged
from keyed.errors import CorruptionError, EncodingError
from keyed.rows import Row

UnchangedCheck = Callable[[Collection[Any]], bool]

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})


def unchanged_check_of(type_: Any) -> UnchangedCheck:
    """Return the check that values of a declared type come back from storage unchanged.

    It returns false for values that have to be checked one by one.
    """
    if type_ is object:
        return lambda values: _all_of(values, _PLAIN)
    if _is_plain(type_):
        return lambda values: _all_of(values, {type_})
    parts = get_args(type_)
    if type_ is list or (get_origin(type_) is list and _is_plain(parts[0])):
        classes = {*parts} or _PLAIN
        return lambda values: (
            {list}.issuperset(map(type, values)) and _all_of(list(chain.from_iterable(values)), classes)
        )
    if get_origin(type_) is tuple and parts and all(map(_is_plain, parts)):
        return _tuples(parts)
    return lambda values: not values


def _is_plain(type_: Any) -> bool:
    return isinstance(type_, type) and type_ in _PLAIN


def _tuples(parts: tuple[Any, ...]) -> UnchangedCheck:
    fields = [(itemgetter(i), {part}) for i, part in enumerate(parts)]

    def check(values: Collection[Any]) -> bool:
        if not ({tuple}.issuperset(map(type, values)) and {len(parts)}.issuperset(map(len, values))):
            return False
        return all(_all_of(list(map(field, values)), classes) for field, classes in fields)

    return check


def _all_of(values: Collection[Any], classes: Collection[type]) -> bool:
    types = set(map(type, values))
    if not types.issubset(classes):
        return False
    if str not in types:
        return True
    texts: Iterable[str] = values if len(types) == 1 else (value for value in values if value.__class__ is str)
    try:
        # Half a character, which no encoding has, cannot be stored.
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True


WIDE = 20
"""The extension type of values with ints beyond 64 bits."""
pack = Encoder(uuid_format="bytes").encode
unpack_any = Decoder().decode


@attrs.frozen(eq=False)
class ValueCodec:
    """Encodes and decodes the values of one declared type.

    Attributes:
        encode: ``(value) -> bytes``. Raises `EncodingError` if the value is not of the type.
        decode: ``(bytes) -> value``. Raises `CorruptionError`, and only that, if the bytes are malformed.
        fingerprint: The type as JSON, see `keyed.codec.fingerprints`.
        immutable: True if a value never changes, so that it may be shared.
        by_value: True if that depends on the value, because parts of the type have no type.
        exact: Returns true if a value of the type comes back identical, not only equal; None if all do. It does not
            check untyped parts.
        classes: Exact classes whose instances are all of the type, as far as they are known.
        unchanged: Returns true if a fast check of many values shows that decoding gives the same values back.
    """

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    fingerprint: Any
    immutable: bool
    by_value: bool
    exact: Callable[[Any], bool] | None
    classes: frozenset[type]
    unchanged: UnchangedCheck


@cached_by_type
def value_codec(type_: Any) -> ValueCodec:
    """Return the codec of a type.

    Args:
        type_: None, bool, int, float, str, bytes, datetime, date, time, timedelta, Decimal, UUID, an enum, an attrs
            class, dataclass, named tuple, TypedDict or msgspec Struct, or a list, dict, tuple, set, frozenset, union or
            literal of these. `object` accepts any plain data, see `keyed.codec.tagged`, and `Row` any row.

    Raises:
        EncodingError: The type cannot be encoded.
    """
    fingerprint = describe_type(type_)
    if isinstance(type_, type) and issubclass(type_, Row):
        shape = Shape("Row", lambda value: isinstance(value, Row), typed=False, immutable=False)
    else:
        shape = shape_of(inspect_type(type_))
    if shape.typed:
        encode, decode = _typed_functions(type_, shape)
    elif fingerprint == "object" and shape.name == "object":
        encode, decode = encode_tagged, decode_tagged
    else:
        encode, decode = _tagged_functions(type_, shape)
    classes = shape.classes or frozenset()
    return ValueCodec(
        encode, decode, fingerprint, shape.immutable, not shape.typed, shape.exact, classes, unchanged_check_of(type_)
    )


def _typed_functions(type_: Any, shape: Shape) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    unpack, tree, check = Decoder(type_).decode, shape.tree or as_it_is, shape.check
    _forget_caches(inspect_type(type_), set())
    only = next(iter(shape.classes)) if shape.classes and len(shape.classes) == 1 and not shape.parts else None

    def recover(value: Any, error: Exception) -> bytes:
        if isinstance(error, OverflowError):
            return pack(Ext(WIDE, encode_tagged(tree(value))))
        raise EncodingError(f"{shown(value)} cannot be encoded as {shape.name}: {error}") from error

    def encode_leaf(value: Any) -> bytes:
        if type(value) is only:
            try:
                return pack(value)
            except Exception as error:  # noqa: BLE001  # msgspec raises several types; all are translated
                return recover(value, error)
        if not check(value):
            raise shape.refusal(value)
        # An int for a float.
        return pack(tree(value))

    def encode_direct(value: Any) -> bytes:
        try:
            if check(value):
                return pack(value)
        except Exception as error:  # noqa: BLE001
            return recover(value, error)
        raise shape.refusal(value)

    def encode_tree(value: Any) -> bytes:
        try:
            if check(value):
                return pack(tree(value))
        except Exception as error:  # noqa: BLE001
            return recover(value, error)
        raise shape.refusal(value)

    def decode(data: bytes) -> Any:
        try:
            return unpack(data)
        except Exception as error:  # noqa: BLE001  # validators of the user's classes run here
            return _decode_wide(data, type_, shape, error)

    encode = encode_leaf if only is not None else encode_direct if shape.direct else encode_tree
    return (_verified(encode, decode, shape) if shape.verify else encode), decode


def _forget_caches(node: Any, seen: set[Any]) -> None:
    """Remove msgspec's caches from classes: they cannot be pickled, so the classes of a program could not.

    Existing decoders keep their own references.
    """
    if isinstance(node, list | tuple):
        for each in node:
            _forget_caches(each, seen)
        return
    cls = getattr(node, "cls", None)
    if isinstance(cls, type):
        if cls in seen:
            return
        seen.add(cls)
        if "__msgspec_cache__" in vars(cls):
            del cls.__msgspec_cache__  # type: ignore[attr-defined]
    for part in ("fields", "type", "types", "item_type", "item_types", "key_type", "value_type"):
        _forget_caches(getattr(node, part, ()), seen)


def _decode_wide(data: bytes, type_: Any, shape: Shape, error: Exception) -> Any:
    """Decode bytes that the typed decoder refused: a value with an int beyond 64 bits, or malformed bytes."""
    try:
        extension = unpack_any(data)
        if isinstance(extension, Ext) and extension.code == WIDE:
            return msgspec.convert(decode_tagged(bytes(extension.data)), type_)
    except Exception as wide_error:  # noqa: BLE001
        error = wide_error
    raise CorruptionError(f"an encoded value is not a {shape.name} ({error})") from error


def _tagged_functions(type_: Any, shape: Shape) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    check, tree = shape.check, shape.tree

    def encode(value: Any) -> bytes:
        try:
            if check(value):
                return encode_tagged(value if tree is None else tree(value))
        except (RecursionError, TypeError) as error:
            raise EncodingError(f"{shown(value)} cannot be encoded as {shape.name}: {error}") from error
        raise shape.refusal(value)

    def decode(data: bytes) -> Any:
        value = decode_tagged(data)
        try:
            if tree is not None:
                return msgspec.convert(value, type_)
            if check(value):
                return value
        except Exception as error:
            raise CorruptionError(f"an encoded value is not a {shape.name} ({error})") from error
        raise CorruptionError(f"an encoded value is not a {shape.name}")

    return (_verified(encode, decode, shape) if shape.verify else encode), decode


def _verified(encode: Callable[[Any], bytes], decode: Callable[[bytes], Any], shape: Shape) -> Callable[[Any], bytes]:
    """Return ``encode`` with a check for types whose constraints, validators and ``__post_init__`` run in decoding."""

    def encode_verified(value: Any) -> bytes:
        data = encode(value)
        try:
            decoded = decode(data)
        except CorruptionError as error:
            raise EncodingError(
                f"{shown(value)} would be refused when it is read back as {shape.name}: {error.__cause__ or error}"
            ) from error
        if decoded != value and encode(decoded) != data:
            raise EncodingError(
                f"{shown(value)} would change when it is read back as {shape.name}, to {shown(decoded)}; its "
                "__post_init__ must not change a finished value"
            )
        return data

    return encode_verified
