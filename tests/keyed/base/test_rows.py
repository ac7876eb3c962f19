"""Rows: tuples with named fields, whatever the names are."""

import copy
import pickle
from collections import namedtuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed.errors import DefinitionError
from keyed.rows import Row, row, row_class

NAMES = st.lists(st.text(max_size=8) | st.sampled_from(["count", "index", "class", "_make", "__len__"]), unique=True)

Departure: Any = row_class(("carrier", "delay"))


@given(NAMES)
def test_every_field_is_read_by_name_and_by_position(names):
    values = list(range(len(names)))
    made = row_class(tuple(names))(values)
    assert [made[name] for name in names] == [made[i] for i in values] == list(made) == values
    assert made._fields == tuple(names)
    assert len(made) == len(names)
    assert made._asdict() == dict(zip(names, values, strict=True))
    assert pickle.loads(pickle.dumps(made)) == made


def test_fields_are_attributes_and_match():
    departure = Departure(("UA", 4))
    assert (departure.carrier, departure.delay) == ("UA", 4)
    match departure:
        case Departure(carrier, delay):
            assert (carrier, delay) == ("UA", 4)
    carrier, delay = departure
    assert (carrier, delay) == ("UA", 4)


def test_a_field_hides_a_method_of_tuple():
    made: Any = row(count=1, index=2)
    assert (made.count, made.index) == (1, 2)


def test_names_that_cannot_be_attributes_are_read_as_items():
    made = row_class(("class", "per cent", "_make", "_fields", "__len__", "__class__"))(range(6))
    assert [made["class"], made["per cent"], made["_make"], made["_fields"], made["__len__"]] == [0, 1, 2, 3, 4]
    assert (len(made), type(made)._make(range(6)), isinstance(made, Row)) == (6, made, True)


def test_an_attribute_is_read_in_c_as_that_of_a_namedtuple():
    assert type(vars(Departure)["carrier"]) is type(vars(namedtuple("n", "a"))["a"])  # noqa: PYI024


def test_classes_are_cached_per_names():
    assert row_class(("a", "b")) is row_class(("a", "b"))
    assert row_class(("a", "b")) is not row_class(("b", "a"))


def test_a_row_equals_and_hashes_as_its_tuple():
    assert Departure(("UA", 4)) == ("UA", 4)
    assert hash(Departure(("UA", 4))) == hash(("UA", 4))
    assert {("UA", 4): 1}[Departure(("UA", 4))] == 1
    assert Departure(("UA", 4)) < ("UB", 0)


def test_rows_are_made_from_columns():
    columns = [["UA", "AA"], [4, 5]]
    assert list(map(Departure._make, zip(*columns, strict=True))) == [("UA", 4), ("AA", 5)]
    assert all(type(made) is Departure for made in map(Departure, zip(*columns, strict=True)))


def test_asdict_reaches_rows_inside():
    made = row(a=row(b=1), c=[row(d=2)], e=(row(f=3), 4), g={"h": row(i=5)}, j={6})
    assert made._asdict() == {"a": {"b": 1}, "c": [{"d": 2}], "e": ({"f": 3}, 4), "g": {"h": {"i": 5}}, "j": {6}}


def test_replace_gives_a_changed_copy():
    departure = Departure(("UA", 4))
    assert departure._replace(delay=5) == ("UA", 5)
    assert type(departure._replace(delay=5)) is Departure
    assert departure == ("UA", 4)
    with pytest.raises(KeyError, match="delays: not a field of the row; its fields are carrier, delay"):
        departure._replace(delays=5)


def test_a_row_travels_as_data():
    made = row(a=1, b=row(c=[2]))
    for copied in (copy.deepcopy(made), copy.copy(made), *(pickle.loads(pickle.dumps(made, p)) for p in range(6))):
        assert copied == made
        assert copied._fields == ("a", "b")
        assert type(copied) is type(made)
        assert copied.b._fields == ("c",)


def test_a_row_reads_well():
    assert repr(row(carrier="UA", delay=4)) == "Row(carrier='UA', delay=4)"
    assert repr(row()) == "Row()"


def test_slices_are_plain_tuples():
    assert row(a=1, b=2, c=3)[1:] == (2, 3)
    assert type(row(a=1, b=2)[:]) is tuple


def test_a_missing_field_is_named():
    departure = Departure(("UA", 4))
    with pytest.raises(KeyError, match="'origin' is not a field of the row; its fields are carrier, delay"):
        departure["origin"]
    with pytest.raises(AttributeError, match="origin"):
        departure.origin  # noqa: B018
    with pytest.raises(IndexError):
        departure[2]


def test_rows_do_not_change_and_are_small():
    departure = Departure(("UA", 4))
    with pytest.raises(AttributeError):
        departure.carrier = "AA"
    with pytest.raises(AttributeError):
        departure.other = 1
    assert not hasattr(departure, "__dict__")


def test_names_that_occur_twice_or_are_no_text_are_refused():
    with pytest.raises(DefinitionError, match="'a' occurs twice"):
        row_class(("a", "b", "a"))
    with pytest.raises(DefinitionError, match="field name 1 is an int"):
        row_class((1,))


def test_in_asks_for_a_field_as_with_rows_of_spark():
    made = row(carrier="UA", delay=4)
    assert "carrier" in made
    assert "UA" not in made
    assert 4 in made
    assert None not in made


def test_get_gives_a_field_or_the_default():
    made = row(carrier="UA", delay=None)
    assert (made.get("carrier"), made.get("delay", 3), made.get("x"), made.get("x", 3)) == ("UA", None, None, 3)
    field: Any = row(get=1).get
    assert field == 1
