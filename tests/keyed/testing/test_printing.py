"""Printed tests can be pasted: values, functions and imports."""

from __future__ import annotations

import datetime as dt
import enum
from decimal import Decimal
from typing import Any, NamedTuple

import attrs
import pytest

from keyed import KeyedProcessFunction
from keyed.testing import Falsified, Record, SecondRecord, assert_matches, strategies
from keyed.testing.printing import as_test, code_of


class Colour(enum.Enum):
    RED = "red"


class Place(NamedTuple):
    x: float


@attrs.frozen
class Paint:
    _colour: Colour
    at: Place | None = None
    day: dt.date = dt.date(2020, 1, 1)


class Takes(KeyedProcessFunction):
    """Takes arguments."""

    def __init__(self, first, second=2, *, third=None):
        self.first, self._second = first, second
        self.taken = third is not None

    def process_element(self, value, ctx):
        yield value


ODD = [
    Paint(Colour.RED, Place(1.5)),
    {Colour.RED: [Paint(Colour.RED)], "times": (dt.datetime(2020, 1, 1, tzinfo=dt.UTC),)},
    {"sums": Decimal("1.10"), "far": float("inf"), "no": (), "nothing": set(), "some": frozenset([Colour.RED])},
    [Record({"paint": None}, 3), SecondRecord(Place(0.0), None)],
]


@pytest.mark.parametrize("value", ODD, ids=str)
def test_a_value_comes_back_from_a_test_that_has_its_imports(value):
    made: dict[str, Any] = {}
    code = as_test("value", [f"return {code_of(value)}"], value)
    exec(code, made)
    assert made["test_value"]() == value


def test_a_function_is_made_with_the_arguments_that_it_has_kept():
    assert code_of(Takes(1)) == "Takes(first=1)"
    assert code_of(Takes(Colour.RED, second=3)) == "Takes(first=Colour.RED, second=3)"


def test_a_key_is_printed_though_it_is_a_lambda():
    rows = strategies.streams(strategies.rows(Paint), min_size=1)
    with pytest.raises(Falsified) as caught:
        assert_matches(
            Takes(Place(2.0)), lambda _: [], rows, key=lambda paint: (str(paint.at), Colour.RED.value), examples=5
        )
    made: dict[str, Any] = {}
    exec(caught.value.test, made)
    assert "key=lambda paint: (str(paint.at), Colour.RED.value)" in caught.value.test
    assert "Takes(first=Place(x=2.0))" in caught.value.test
    with pytest.raises(AssertionError):
        made["test_model"]()
