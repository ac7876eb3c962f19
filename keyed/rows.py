"""Rows: light, immutable records with named fields, the form in which values of a DataFrame reach a function.

A row is a tuple. `row_class` creates and caches its class per tuple of field names, so rows of one stream share one
class, unpacking and ``match`` work, and ``row.name`` costs the same as on a `collections.namedtuple`: the attributes
are the same getters written in C.

    >>> Departure = row_class(("carrier", "delay"))
    >>> departure = Departure(("UA", 4))
    >>> departure.delay, departure["delay"], departure[1]
    (4, 4, 4)
    >>> departure
    Row(carrier='UA', delay=4)

Unlike a namedtuple, a row takes any field names. A field hides a method of `tuple` of the same name (``count``,
``index``). Names that cannot be attributes (``class``, ``per cent``, ``__len__``, ``_make``) are read as
``row["class"]``.
"""

from __future__ import annotations

import keyword
from collections import namedtuple
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

from keyed.base.arguments import type_of
from keyed.errors import DefinitionError

_RESERVED = frozenset({"_asdict", "_fields", "_make", "_positions", "_replace"})


def fields_of(cls: type) -> tuple[str, ...] | None:
    """Return the field names of a row class or named tuple; ``None`` for any other class, whatever its attributes."""
    fields = getattr(cls, "_fields", None)
    return fields if issubclass(cls, tuple) and isinstance(fields, tuple) else None


def names_of(value: Any) -> tuple[str, ...]:
    """Return the names of the fields of a dictionary, row or object of a class with fields; none of a plain value."""
    if isinstance(value, Mapping):
        return tuple(value) if all(isinstance(name, str) for name in value) else ()
    return names_of_class(type(value))


def names_of_class(cls: type) -> tuple[str, ...]:
    """Return the names of the fields of a row class, named tuple, dataclass, attrs class or struct; none of others."""
    names = fields_of(cls) or getattr(cls, "__struct_fields__", None) or getattr(cls, "__dataclass_fields__", None)
    return tuple(names) if names else tuple(each.name for each in getattr(cls, "__attrs_attrs__", ()))


def members_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dictionary, row or object by name; ``None`` for a plain value."""
    if isinstance(value, dict | Mapping):
        return value if isinstance(value, dict) else dict(value)
    names = names_of(value)
    return {name: value[name] if isinstance(value, Row) else getattr(value, name) for name in names} or None


class Row(tuple[Any, ...]):
    """A tuple with named fields, equal to, and hashed as, the plain tuple of its values.

    Attributes:
        _fields: The field names in order.
    """

    __slots__ = ()
    _fields: ClassVar[tuple[str, ...]] = ()
    _positions: ClassVar[dict[str, int]] = {}

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

        @classmethod
        def _make(cls, values: Iterable[Any]) -> Self:
            """Make the row of ``values``; the same as calling the class."""

    def __getitem__(self, key: Any) -> Any:
        """Return the value of the field ``key``, a name, a position or a slice.

        Raises:
            KeyError: There is no field of this name.
            IndexError: There is no field at this position.
        """
        if key.__class__ is str:
            try:
                return tuple.__getitem__(self, self._positions[key])
            except KeyError:
                raise KeyError(f"{key!r} is not a field of the row; its fields are {', '.join(self._fields)}") from None
        return tuple.__getitem__(self, key)

    def __contains__(self, key: object) -> bool:
        """Return whether the row has a field of this name, as rows of Spark do; or, for other types, this value."""
        if key.__class__ is str:
            return key in self._positions
        return tuple.__contains__(self, key)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a field, or ``default`` without it."""
        position = self._positions.get(name)
        return default if position is None else tuple.__getitem__(self, position)

    def _asdict(self) -> dict[str, Any]:
        """Return the row as a dict. Rows inside it, also inside lists, tuples and dicts, become dicts too."""
        return {name: _plain(value) for name, value in zip(self._fields, self, strict=True)}

    def _replace(self, **values: Any) -> Self:
        """Return a copy of the row with some fields replaced.

        Raises:
            KeyError: A name is not a field of the row.
        """
        unknown = [name for name in values if name not in self._positions]
        if unknown:
            raise KeyError(f"{', '.join(unknown)}: not a field of the row; its fields are {', '.join(self._fields)}")
        return type(self)(values.get(name, value) for name, value in zip(self._fields, self, strict=True))

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in zip(self._fields, self, strict=False))})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Row classes are created on demand, so a process that reads the pickle has to create its own.
        return _restore, (self._fields, tuple(self))


@lru_cache(maxsize=4096)
def row_class(field_names: tuple[str, ...]) -> type[Row]:
    """Return the class of rows with these fields, the same class for the same names.

    Args:
        field_names: Distinct names, in the order of the values.

    Returns:
        A subclass of `Row` with ``_fields`` and ``__match_args__`` set.

    Raises:
        DefinitionError: A name occurs twice or is not a string.
    """
    for name in field_names:
        if not isinstance(name, str):
            raise DefinitionError(f"field name {name!r} is {type_of(name)}; rows need strings as field names")
    positions = {name: index for index, name in enumerate(field_names)}
    if len(positions) != len(field_names):
        twice = sorted({name for name in field_names if field_names.count(name) > 1})
        raise DefinitionError(f"the field name {', '.join(map(repr, twice))} occurs twice; rename the column")
    namespace: dict[str, Any] = {
        "__slots__": (),
        "__module__": __name__,
        "__qualname__": "Row",
        "__match_args__": field_names,
        "_fields": field_names,
        "_positions": positions,
    }
    getters = _getters(len(field_names))
    namespace.update((name, getters[i]) for i, name in enumerate(field_names) if _is_attribute(name))
    row_type: type[Row] = type("Row", (Row,), namespace)
    # The class itself makes rows from iterables at the speed of C: a class method would add a Python call per row.
    row_type._make = row_type  # type: ignore[method-assign]
    return row_type


def row(**values: Any) -> Row:
    """Return the row with these fields, for tests and examples: ``row(carrier="UA", delay=4)``."""
    return row_class(tuple(values))(values.values())


@lru_cache(maxsize=256)
def _getters(count: int) -> tuple[Any, ...]:
    """Borrow the attribute getters for positions 0 to ``count - 1`` from a namedtuple, which has them in C."""
    names = [f"f{i}" for i in range(count)]
    donor = namedtuple("donor", names)  # type: ignore[misc]  # noqa: PYI024
    return tuple(vars(donor)[name] for name in names)


def _is_attribute(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and name not in _RESERVED and not name.startswith("__")


def _plain(value: Any) -> Any:
    if isinstance(value, Row):
        return value._asdict()
    if value.__class__ is list or value.__class__ is tuple:
        return value.__class__(_plain(item) for item in value)
    if value.__class__ is dict:
        return {key: _plain(item) for key, item in value.items()}
    return value


def _restore(field_names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    return row_class(field_names)(values)
