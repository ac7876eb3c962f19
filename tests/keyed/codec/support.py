"""Values for the codec's tests: strategies, a comparison that sees types, and bytes that no encoder wrote."""

import datetime as dt
import math
import pickle
from decimal import Decimal
from typing import Any, get_args, get_origin
from uuid import UUID

from hypothesis import strategies as st

from keyed.rows import Row, row_class

UTC_OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: dt.timezone(dt.timedelta(minutes=minutes)))
# Away from the ends of the calendar, where another time zone is another year than 1 to 9999.
AWARE = st.datetimes(dt.datetime(1, 1, 3), dt.datetime(9999, 12, 29), timezones=UTC_OFFSETS)
TIMES = st.times(timezones=st.none() | UTC_OFFSETS)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
# Escapes matter where 0, 1 and 2 stand side by side.
BYTES = st.binary() | st.lists(st.sampled_from([0, 1, 2, 255])).map(bytes)
ESCAPED_TEXT = TEXT | st.text(st.sampled_from("\0\1\2a"))
INTS = st.integers() | st.integers(-(2**70), 2**70) | st.sampled_from([2**63, 2**63 - 1, -(2**63), -(2**63) - 1, 2**64])
DECIMALS = st.decimals(allow_nan=False) | st.decimals(-1000, 1000, places=2)

KEY_LEAVES: dict[type, st.SearchStrategy[Any]] = {
    type(None): st.none(),
    bool: st.booleans(),
    int: INTS,
    float: st.floats(),
    str: ESCAPED_TEXT,
    bytes: BYTES,
    dt.datetime: AWARE,
    dt.date: st.dates(),
    dt.timedelta: st.timedeltas(),
    Decimal: DECIMALS,
    UUID: st.uuids(),
}
KEYS = st.recursive(st.one_of(*KEY_LEAVES.values()), lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=8)

VALUE_LEAVES: dict[type, st.SearchStrategy[Any]] = {
    **KEY_LEAVES,
    dt.datetime: AWARE | st.datetimes(),
    dt.time: TIMES,
    Decimal: DECIMALS | st.just(Decimal("NaN")),
}
_HASHABLE = st.recursive(
    st.one_of(*(leaf for type_, leaf in VALUE_LEAVES.items() if type_ not in {float, Decimal})),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)


def _of(cls: Any, *arguments: Any) -> Any:
    return cls[arguments if len(arguments) != 1 or cls is tuple else arguments[0]]


LEAF_TYPES = st.sampled_from([*VALUE_LEAVES])
# No floats and decimals: NaN as a key or element is never found again.
HASHABLE_TYPES = st.recursive(
    st.sampled_from([type_ for type_ in VALUE_LEAVES if type_ not in {float, Decimal}]),
    lambda inner: (
        st.lists(inner, max_size=2).map(lambda items: _of(tuple, *items)) | inner.map(lambda item: _of(frozenset, item))
    ),
    max_leaves=3,
)
TYPES = st.recursive(
    LEAF_TYPES | HASHABLE_TYPES,
    lambda inner: st.one_of(
        inner.map(lambda item: _of(list, item)),
        inner.map(lambda item: _of(tuple, item, ...)),
        inner.map(lambda item: item | None),
        st.lists(inner, max_size=3).map(lambda items: _of(tuple, *items)),
        HASHABLE_TYPES.map(lambda item: _of(set, item)),
        st.builds(lambda key, item: _of(dict, key, item), HASHABLE_TYPES, inner),
    ),
    max_leaves=4,
)


def values_of(type_: Any) -> st.SearchStrategy[Any]:
    """Values of a type that `TYPES` draws."""
    if type_ in VALUE_LEAVES:
        return VALUE_LEAVES[type_]
    origin, arguments = get_origin(type_), get_args(type_)
    if origin is tuple and arguments[-1:] != (...,):
        return st.tuples(*map(values_of, arguments))
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    if origin in {list, tuple, set, frozenset}:
        return st.lists(values_of(arguments[0]), max_size=3).map(origin)
    return st.one_of(*map(values_of, arguments))


@st.composite
def typed_values(draw: st.DrawFn) -> tuple[Any, Any]:
    """A type and a value of it."""
    type_ = draw(TYPES)
    return type_, draw(values_of(type_))


def _rows(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Row]:
    fields = st.dictionaries(TEXT, values, max_size=3)
    return fields.map(lambda named: row_class(tuple(named))(named.values()))


PLAIN = st.recursive(
    st.one_of(*VALUE_LEAVES.values(), _HASHABLE),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(TEXT, inner, max_size=4),
        st.dictionaries(_HASHABLE, inner, max_size=4),
        st.sets(_HASHABLE, max_size=4),
        _rows(inner),
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal and of the same types in all their parts; NaN is the same as NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Row):
        return one._fields == other._fields and same(tuple(one), tuple(other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, set | frozenset):
        # Equal elements of different types (1 and True) cannot stand in one set: compare them as text too.
        return one == other and sorted(map(_typed, one)) == sorted(map(_typed, other))
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, float):
        return math.copysign(1, one) == math.copysign(1, other) and one == other
    if isinstance(one, Decimal):
        return str(one) == str(other)
    return bool(one == other)


def _typed(value: Any) -> str:
    if isinstance(value, frozenset):
        return f"frozenset{sorted(map(_typed, value))}"
    if isinstance(value, tuple):
        return f"tuple{[*map(_typed, value)]}"
    if isinstance(value, dt.datetime):
        value = value.astimezone(dt.UTC) if value.tzinfo else value.replace(fold=0)
    if isinstance(value, dt.time):
        return f"time {value.utcoffset()} {value.replace(tzinfo=None)}"
    return f"{type(value).__name__} {value!r}"


class Dangerous:
    """An object that must never be unpickled: its pickles call `print`."""

    def __reduce__(self):
        return print, ("a pickle was executed",)


PICKLES = [pickle.dumps(value, protocol) for value in (Dangerous(), [Dangerous()], {"a": 1}) for protocol in range(6)]


def mutations(encoded: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Encodings with a few bytes replaced, cut out, or put in, and with the end cut off."""

    def mutate(data: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
        for position, length, replacement in edits:
            start = position % (len(data) + 1)
            data = data[:start] + replacement + data[start + length :]
        return data

    edit = st.tuples(st.integers(0, 200), st.integers(0, 3), st.binary(max_size=3))
    return st.builds(mutate, encoded, st.lists(edit, min_size=1, max_size=3))
