"""Values that Python has none for are found, wherever they are in a column."""

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed.arrow.read import raw_rows, raw_values, table_rows, unreadable_column, unreadable_rows

POISON = b"caf\xe9"
TEXT = pa.array(["a", None, POISON, "é"], pa.binary()).view(pa.string())
LATE = pa.array([0, 253402300799999999, 253402300800000000, None], pa.int64())
EARLY = pa.array([-62135596800000000, -62135596800000001, None, 0], pa.int64())


def lists(values, offsets=(0, 1, 3, 4)):
    return pa.ListArray.from_arrays(list(offsets), values)


def maps(keys, values, offsets):
    return pa.MapArray.from_arrays(offsets, keys, values)


@pytest.mark.parametrize(
    ("column", "bad"),
    [
        (TEXT, [2]),
        (TEXT.slice(1), [1]),
        (TEXT.dictionary_encode(), [2]),
        (LATE.cast(pa.timestamp("us")), [2]),
        (LATE.cast(pa.timestamp("us", "UTC")), [2]),
        (EARLY.cast(pa.timestamp("us")), [1]),
        (pa.array([253402300799, 253402300800], pa.int64()).cast(pa.timestamp("s")), [1]),
        (pa.array([2932896, 2932897, -719162, -719163], pa.int32()).cast(pa.date32()), [1, 3]),
        (pa.array([2**63 - 1, -(2**63)], pa.int64()).cast(pa.timestamp("ns")), []),
        (lists(TEXT), [1]),
        (lists(lists(TEXT), [0, 0, 1, 3]), [2]),
        (pa.StructArray.from_arrays([TEXT, LATE], ["s", "n"]), [2]),
        (maps(pa.array(list("abcd")), TEXT, [0, 1, 3, 4]), [1]),
        (maps(TEXT.take(pa.array([0, 2])), pa.array([1, 2]), [0, 1, 2]), [1]),
        (pa.FixedSizeListArray.from_arrays(TEXT, 2), [1]),
        (pa.array([1.5, None]), []),
        (pa.array([], pa.string()), []),
        (pa.nulls(2), []),
    ],
)
def test_rows_with_such_a_value_are_found(column, bad):
    table = pa.table({"n": range(len(column)), "c": column})
    assert unreadable_rows(table) == bad
    for row in range(len(column)):
        assert unreadable_column(table.slice(row, 1)) == ("c" if row in bad else None)
        if row not in bad:
            assert raw_rows(table.slice(row, 1)) == table_rows(table.slice(row, 1))
    assert len(raw_rows(table)) == len(column)


@given(st.lists(st.binary(max_size=3), max_size=40), st.integers(0, 40))
def test_what_python_does_not_decode_is_found(texts, start):
    column = pa.array(texts, pa.binary()).view(pa.string()).slice(start)

    def decodes(text):
        try:
            text.decode()
        except UnicodeDecodeError:
            return False
        return True

    assert unreadable_rows(pa.table({"c": column})) == [i for i, text in enumerate(texts[start:]) if not decodes(text)]


def test_it_is_shown_as_it_came():
    assert raw_values(TEXT) == ["a", None, "caf\\xe9", "é"]
    last = dt.datetime(9999, 12, 31, 23, 59, 59, 999999)
    assert raw_values(LATE.cast(pa.timestamp("us"))) == [dt.datetime(1970, 1, 1), last, 253402300800000000, None]
    assert raw_values(pa.array([2932897], pa.int32()).cast(pa.date32())) == [2932897]
    assert raw_values(lists(TEXT)) == [["a"], [None, "caf\\xe9"], ["é"]]
    assert raw_values(pa.StructArray.from_arrays([TEXT], ["s"]))[2] == ("caf\\xe9",)
    assert raw_values(maps(pa.array(["k"]), TEXT.slice(2, 1), [0, 1])) == [{"k": "caf\\xe9"}]
