"""Aggregates of scripts, after the unit tests of ksqlDB's; where theirs differ, the values are DuckDB's."""

import math
from typing import Any

import pytest

from keyed import sql
from tests.support.data_files import read_data

#: An aggregate of the column ``v``, the type of the column, the values, and the result.
CASES: list[Any] = [
    *read_data("keyed/sql/expressions.json")["aggregates after ksqlDB"],
    ("MAX(v)", "BYTES", [b"C", b"F", b"B", b"E", b"A", b"D", b"B"], b"F"),
    ("MAX(v)", "BYTES", [b"\x80", b"\x01"], b"\x80"),
    ("MIN(v)", "DOUBLE", [math.nan, 2.0], 2.0),
]


@pytest.mark.parametrize("rows_per_batch", [2, 100])
def test_aggregates_have_the_values_of_their_rows(rows_per_batch):
    for call, type_, values, expected in CASES:
        text = (
            f"CREATE STREAM s (k INT KEY, v {type_}) WITH (FORMAT='JSON');"
            f"CREATE TABLE o AS SELECT k, {call} AS x FROM s GROUP BY k;"
        )
        rows = [{"k": 1, "v": value} for value in values]
        found = sql.script(text, {"s": rows}, rows_per_batch=rows_per_batch).table("o")[1]["x"]
        assert found == (pytest.approx(expected) if isinstance(expected, float) else expected), (call, values)
