# ruff: noqa: E501 - statements stand on one line
"""Text of statements that is too large is refused, and long text that is not costs little."""

import tracemalloc

import pytest

from keyed import sql
from keyed.errors import SqlError

S = "CREATE STREAM s (k INT KEY, v INT, t STRING) WITH (FORMAT = 'JSON'); CREATE STREAM r (k INT KEY) WITH (FORMAT = 'JSON');"
ROWS = {"s": [{"k": 1, "v": 1, "t": "a" * 300 + "!"}, {"k": 2, "v": 2, "t": "b"}], "r": []}


@pytest.mark.parametrize(
    ("created", "message"),
    [
        (f"STREAM x AS SELECT k, {' + '.join(['v'] * 10_000)} AS x FROM s", "nested deeper than 1000"),
        (
            f"STREAM x AS SELECT k, {'(' * 1_000}v{')' * 1_000} AS x FROM s",
            "more than 500 brackets are inside each other",
        ),
        (f"STREAM x AS SELECT k, v{'->a' * 5_000} AS x FROM s", "-> takes a STRUCT"),
        (f"STREAM x AS SELECT k, {'9' * 5_000} AS x FROM s", "a column has no type BIGNUM; write CAST"),
        (f"STREAM x AS SELECT k FROM s LIMIT {'9' * 5_000}", "the number is larger than any time or count"),
        (
            f"TABLE x AS SELECT k, COUNT(*) AS n FROM s WINDOW TUMBLING (SIZE {'9' * 5_000} SECONDS) GROUP BY k",
            "the number is larger than any time or count",
        ),
    ],
    ids=range(6),
)
def test_text_that_is_too_large_is_refused_at_its_place(created, message):
    with pytest.raises(SqlError) as error:
        sql.script(f"{S}\nCREATE {created};", ROWS)
    assert message in str(error.value)
    assert (error.value.line, error.value.column) > (2, 18)


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT k, v FROM s WHERE {' OR '.join(f'v = {n}' for n in range(2_000))}",
        f"SELECT k, v FROM s WHERE {' AND '.join(['v < 9'] * 2_000)}",
        f"SELECT k, {'(' * 400}v{')' * 400} AS v FROM s",
        "SELECT k, regexp_matches(t, '^(a+)+$') OR true AS x FROM s",
    ],
    ids=range(4),
)
def test_long_conditions_and_exploding_patterns_run(query):
    assert len(sql.script(f"{S} CREATE STREAM x AS {query};", ROWS)["x"]) == 2


def test_a_long_text_costs_memory_in_proportion_to_it():
    text = f"{S} CREATE STREAM x AS SELECT k, '{'x' * 500_000}' AS x FROM s;"
    tracemalloc.start()
    try:
        sql.script(text, {"s": [], "r": []})
        assert tracemalloc.get_traced_memory()[1] < 40 * len(text)
    finally:
        tracemalloc.stop()
