"""Keys of map states as bytes, by their declared type.

`keyed.codec.keys` encodes them, so that a map iterates in the order of its keys: enums as their values, frozen classes
and named tuples as the tuple of their fields. Decoding a key creates them again.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import attrs
from msgspec import inspect

from keyed.codec.fingerprints import cached_by_type, describe_type, inspect_type
from keyed.codec.keys import decode_key, encode_key
from keyed.codec.refusals import type_name
from keyed.codec.shapes import ClassNode, class_of, is_frozen, shape_of, values_getter
from keyed.errors import CorruptionError, EncodingError

_PLAIN = (
    *(inspect.AnyType, inspect.BoolType, inspect.BytesType, inspect.DateTimeType, inspect.DateType),
    *(inspect.DecimalType, inspect.IntType, inspect.LiteralType, inspect.NoneType, inspect.StrType),
    *(inspect.TimeDeltaType, inspect.UUIDType),
)


@attrs.frozen(eq=False)
class KeyCodec:
    """Encodes and decodes the map keys of one declared type.

    Attributes:
        encode: ``(key) -> bytes``, in the order of the keys. Raises `EncodingError` if the key is not of the type.
        decode: ``(bytes) -> key``. Raises `CorruptionError`, and only that, if the bytes are malformed.
        fingerprint: The type as JSON, see `keyed.codec.fingerprints`.
    """

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    fingerprint: Any


@attrs.frozen
class _Form:
    """The conversion of a type's keys to plain keys, and back. ``None`` for plain keys."""

    plain: Callable[[Any], Any] | None = None
    restore: Callable[[Any], Any] | None = None


@cached_by_type
def map_key_codec(type_: Any) -> KeyCodec:
    """Return the codec of a map key's type.

    Args:
        type_: A type that `encode_key` supports (`object` for all of them), an enum, a frozen attrs class, frozen
            dataclass, named tuple or frozen msgspec Struct of these, or a tuple, union or literal of these.

    Raises:
        EncodingError: The type cannot be a map key.
    """
    fingerprint = describe_type(type_)
    if fingerprint == "object":
        return KeyCodec(encode_key, decode_key, fingerprint)
    node = inspect_type(type_)
    try:
        form, shape = _form(node), shape_of(node)
    except RecursionError:
        raise EncodingError(f"the type {type_name(type_)} cannot be a map key, because it contains itself") from None
    check, plain, restore = shape.check, form.plain, form.restore

    def encode(key: Any) -> bytes:
        if check(key):
            return encode_key(key)
        raise shape.refusal(key)

    def encode_plain(key: Any) -> bytes:
        if check(key):
            return encode_key(plain(key))  # type: ignore[misc]
        raise shape.refusal(key)

    def decode(data: bytes) -> Any:
        key = decode_key(data)
        try:
            if restore is not None:
                key = restore(key)
            if check(key):
                return key
        except Exception as error:
            # Constructors of the user's classes run here.
            raise CorruptionError(f"an encoded map key is not a {shape.name} ({error})") from error
        raise CorruptionError(f"an encoded map key is not a {shape.name}: {key!r:.200}")

    return KeyCodec(encode if plain is None else encode_plain, decode, fingerprint)


def _form(node: inspect.Type) -> _Form:
    if isinstance(node, _PLAIN):
        return _Form()
    if isinstance(node, inspect.FloatType):
        # An int in place of a float is the same key as the float.
        return _Form(float, _refuse_int)
    if isinstance(node, inspect.EnumType):
        return _enum(node.cls)
    if isinstance(node, inspect.VarTupleType):
        item = _form(node.item_type)
        return _Form(_each(item.plain), _each(item.restore))
    if isinstance(node, inspect.TupleType):
        return _fields([_form(item) for item in node.item_types], tuple)
    if isinstance(node, inspect.UnionType):
        return _union(node)
    if isinstance(node, (inspect.DataclassType, inspect.NamedTupleType, inspect.StructType)):
        return _class(node)
    if isinstance(node, inspect.CustomType) and node.cls is object:
        return _Form()
    kind = getattr(node, "cls", None) or type(node).__name__.removesuffix("Type").lower()
    raise EncodingError(
        f"the type {kind if isinstance(kind, str) else type_name(kind)} cannot be a map key: keys have to be ordered "
        "and hashable; use a tuple, text or a number"
    )


def _enum(cls: type[enum.Enum]) -> _Form:
    def restore(key: Any) -> enum.Enum:
        member = cls(key)
        # True equals 1, but is another key.
        if type(member.value) is not type(key):
            raise ValueError(f"{key!r} is not a value of {cls.__qualname__}")
        return member

    return _Form(lambda key: key.value, restore)


def _each(change: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    return None if change is None else lambda key: tuple(map(change, _tuple(key)))


def _fields(forms: list[_Form], make: Callable[[Any], Any]) -> _Form:
    """Return the form of a tuple or class whose fields have these forms."""
    plains = [form.plain or _as_it_is for form in forms]
    restores = [form.restore or _as_it_is for form in forms]

    def plain(values: Any) -> tuple[Any, ...]:
        return tuple(change(value) for change, value in zip(plains, values, strict=True))

    def restore(key: Any) -> Any:
        return make([change(value) for change, value in zip(restores, _tuple(key), strict=True)])

    needs_plain, needs_restore = any(form.plain for form in forms), any(form.restore for form in forms)
    if not needs_restore:
        return _Form(plain if needs_plain else None, None if make is tuple else lambda key: make(_tuple(key)))
    return _Form(plain if needs_plain else None, restore)


def _union(node: inspect.UnionType) -> _Form:
    members = [member for member in node.types if not isinstance(member, inspect.NoneType)]
    forms = [_form(member) for member in members]
    if len(members) == 1:
        return _Form(_unless_none(forms[0].plain), _unless_none(forms[0].restore))
    floats = [isinstance(member, inspect.FloatType) for member in members]
    if any(form.restore is not None and not is_float for form, is_float in zip(forms, floats, strict=True)):
        raise EncodingError(
            "a map key cannot be one of several types if one of them is an enum or a class, because its bytes do not "
            "tell which; declare one class, or None and one class"
        )
    if any(floats) and not any(isinstance(member, inspect.IntType) for member in members):
        return _Form(lambda key: float(key) if type(key) is int else key, _refuse_int)
    return _Form()


def _refuse_int(key: Any) -> Any:
    if type(key) is int:
        raise TypeError(f"the int {key} is where a float was written")
    return key


def _unless_none(change: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    return None if change is None else lambda key: None if key is None else change(key)


def _class(node: ClassNode) -> _Form:
    cls = class_of(node)
    if not is_frozen(cls):
        raise EncodingError(
            f"the class {type_name(cls)} cannot be a map key, because its instances can change; declare it with "
            "frozen=True, or use a tuple"
        )
    fields: Any = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else getattr(cls, "__attrs_attrs__", ())
    if not all(field.init for field in fields):
        raise EncodingError(
            f"the class {type_name(cls)} cannot be a map key, because it has fields with init=False, which cannot be "
            "restored from the key; make them properties"
        )
    names = [field.name for field in node.fields]
    forms = [_form(field.type) for field in node.fields]
    if issubclass(cls, tuple):
        return _fields(forms, cls._make)
    # attrs calls the parameter of `_name` `name`.
    aliases = {field.name: field.alias for field in getattr(cls, "__attrs_attrs__", ())}
    arguments = [aliases.get(name, name) for name in names]
    form = _fields(forms, lambda values: cls(**dict(zip(arguments, values, strict=True))))
    values_of, plain = values_getter(cls, names), form.plain
    return _Form(values_of if plain is None else lambda key: plain(values_of(key)), form.restore)


def _tuple(key: Any) -> Any:
    if type(key) is not tuple:
        raise TypeError(f"{key!r:.200} is not a tuple of fields")
    return key


def _as_it_is(value: Any) -> Any:
    return value
