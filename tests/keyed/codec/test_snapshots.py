"""Snapshots: equal, of the same types, and of nothing that can change shared with the value."""

import copy
import enum
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import uuid4

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed.extending import snapshot
from keyed.rows import row


class Color(enum.Enum):
    RED = 1


class Pair(NamedTuple):
    a: Any
    b: Any


@attrs.frozen
class Frozen:
    a: int
    b: tuple[str, ...] = ()


@attrs.frozen
class FrozenAny:
    a: Any


@attrs.define
class Slotted:
    a: Any
    __hidden: Any = attrs.field(factory=list)


@dataclass
class Plain:
    a: Any


@dataclass(frozen=True)
class Cached:
    a: int
    b: list[int]


class Odd(list[Any]):
    extra: Any = None


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 1, 1.5, "a", b"a", date(2020, 1, 1), datetime(2020, 1, 1, tzinfo=UTC), Decimal(1), uuid4()),
        *((1, ("a", (2.0,))), frozenset({1}), row(a=1, b=(2,)), Pair(1, "b"), Color.RED, np.float64(1), np.int64(1)),
        *(Frozen(1, ("a",)), FrozenAny(1), Pair(Frozen(1), Color.RED)),
    ],
)
def test_what_cannot_change_is_its_own_snapshot(value: Any) -> None:
    assert snapshot(value) is value


@pytest.mark.parametrize(
    "make",
    [
        lambda inside: inside,
        lambda inside: [1, inside],
        lambda inside: {"a": inside},
        lambda inside: (1, inside),
        lambda inside: row(a=1, b=inside),
        lambda inside: Pair(1, inside),
        Slotted,
        Plain,
        lambda inside: Cached(1, inside),
        FrozenAny,
        lambda inside: Odd([inside]),
        lambda inside: OrderedDict(a=inside),
    ],
)
def test_what_can_change_is_copied_all_the_way_down(make: Any) -> None:
    inside: list[Any] = [[1], {2}]
    value = make(inside)
    before = copy.deepcopy(value)
    taken = snapshot(value)
    assert taken == before
    assert type(taken) is type(value)
    inside[0].append(3)
    inside[1].add(4)
    assert taken == before
    assert value != before


def test_all_attributes_are_copied() -> None:
    value = Slotted(1)
    assert snapshot(value)._Slotted__hidden is not value._Slotted__hidden  # type: ignore[attr-defined]
    plain = Plain(1)
    plain.more = [1]  # type: ignore[attr-defined]
    assert snapshot(plain).more == [1]
    assert snapshot(plain).more is not plain.more  # type: ignore[attr-defined]


plain = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(), st.binary(), st.floats(allow_nan=False)),
    lambda inside: st.one_of(
        st.lists(inside),
        st.tuples(inside, inside),
        st.dictionaries(st.text(), inside),
        st.sets(st.integers(), max_size=1),
        st.builds(lambda a, b: row(a=a, b=b), inside, inside),
    ),
    max_leaves=10,
)


@given(plain)
def test_a_snapshot_is_what_a_deep_copy_is(value: Any) -> None:
    taken = snapshot(value)
    assert repr(taken) == repr(copy.deepcopy(value))
    assert (taken is value) is (snapshot(taken) is taken)
