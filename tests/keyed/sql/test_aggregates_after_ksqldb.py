"""Aggregates of scripts, after the unit tests of ksqlDB's; where theirs differ, the values are DuckDB's."""

import math
from typing import Any

import pytest

from keyed import sql

TOP = [10.0, 30.0, 45.0, 10.0, 50.0, 60.0, 20.0, 60.0, 80.0, 35.0, 25.0]
#: An aggregate of the column ``v``, the type of the column, the values, and the result.
CASES: list[tuple[str, str, list[Any], Any]] = [
    ("STDDEV_SAMPLE(v)", "BIGINT", [1, 2, 3, 4, 5], 1.5811388300841898),
    ("STDDEV_SAMP(v)", "INT", [3, 5, 6, 7], 1.707825127659933),
    ("STDDEV_SAMPLE(v)", "DOUBLE", [10.2, 13.4, 14.5, 17.8], 3.1351501824739856),
    ("STDDEV_SAMPLE(v)", "INT", [0, 0, 0], 0.0),
    ("STDDEV_SAMPLE(v)", "INT", [None], None),
    ("STDDEV_SAMPLE(v)", "INT", [60, 64, 70, None], 5.033222956847166),
    # Large values that differ by little.
    ("STDDEV_SAMP(v)", "BIGINT", [1_700_000_000_001, 1_700_000_000_002, 1_700_000_000_003], 1.0),
    ("AVG(v)", "BIGINT", [1, 1, 1, 1, 1], 1.0),
    ("AVG(v)", "INT", [None], None),
    ("AVG(v)", "INT", [1, 1, 1, None], 1.0),
    ("MAX(v)", "DOUBLE", [None, 3.0, 5.0, 8.0, 2.2, 3.5, 4.6, 5.0, None], 8.0),
    ("MAX(v)", "BYTES", [b"C", b"F", b"B", b"E", b"A", b"D", b"B"], b"F"),
    ("MAX(v)", "BYTES", [b"\x80", b"\x01"], b"\x80"),
    ("MIN(v)", "DOUBLE", [math.nan, 2.0], 2.0),
    ("MAX(v)", "STRING", ["\uffee", "😀"], "😀"),
    ("TOPK(v, 3)", "DOUBLE", TOP, [80.0, 60.0, 60.0]),
    ("TOPK(v, 3)", "DOUBLE", [10.0], [10.0]),
    ("COLLECT_LIST(v)", "STRING", ["b", None, "a", "b"], ["b", None, "a", "b"]),
    ("COLLECT_SET(v)", "STRING", ["b", None, "a", "b"], ["a", "b"]),
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
