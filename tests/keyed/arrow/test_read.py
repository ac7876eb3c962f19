"""Columns as plain Python values: maps are dictionaries at any depth, with every pyarrow."""

import pyarrow as pa
import pytest

from keyed.arrow.read import plain_values
from keyed.errors import RowError

MAP = pa.map_(pa.string(), pa.int64())
PART = {"a": 1, "b": None}


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (MAP, [PART, {}, None]),
        (pa.list_(MAP), [[PART, None], [], None]),
        (pa.struct([("m", MAP), ("n", pa.int64())]), [{"m": PART, "n": 1}, {"m": None, "n": None}, None]),
        (pa.map_(pa.int64(), pa.struct([("x", pa.list_(MAP))])), [{1: {"x": [PART]}, 2: None}, None]),
        (pa.list_(pa.struct([("n", pa.int64())])), [[{"n": 1}], None]),
        (pa.int64(), [1, None]),
    ],
    ids=str,
)
def test_maps_are_dictionaries_at_any_depth(type_, values):
    assert plain_values(pa.array(values, type_)) == values


def test_a_key_twice_is_refused():
    with pytest.raises(RowError, match="a map has a key twice"):
        plain_values(pa.array([[("a", 1), ("a", 2)]], MAP))
