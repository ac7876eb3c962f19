# ruff: noqa: E501 - statements stand on one line
"""What scripts refuse, and how: clauses of other engines, and text that is too large or reaches out."""

import tracemalloc

import pytest

from keyed import sql
from keyed.errors import SqlError

S = "CREATE STREAM s (k INT KEY, v INT, t STRING) WITH (FORMAT = 'JSON'); CREATE STREAM r (k INT KEY) WITH (FORMAT = 'JSON');"
ROWS = {"s": [{"k": 1, "v": 1, "t": "a" * 300 + "!"}, {"k": 2, "v": 2, "t": "b"}], "r": []}


def refused(query, kind="STREAM"):
    """The message of the error, which has its place."""
    with pytest.raises(SqlError) as error:
        sql.script(f"{S}\nCREATE {kind} x AS {query};", ROWS)
    assert (error.value.line, error.value.column) > (2, 18)
    return str(error.value)


@pytest.mark.parametrize(
    ("query", "remedy"),
    [
        ("WITH big AS (SELECT k FROM s) SELECT * FROM big", "write CREATE STREAM big AS SELECT ..."),
        ("SELECT k, COUNT(*) AS n FROM s GROUP BY ROLLUP(k, v)", "a CREATE TABLE ... AS SELECT ... GROUP BY ... for each"),
        ("SELECT k, COUNT(*) AS n FROM s GROUP BY CUBE (k, v)", "CUBE is not supported; write a CREATE TABLE"),
        ("SELECT k, COUNT(*) AS n FROM s GROUP BY GROUPING SETS ((k), (v))", "GROUPING is not supported; write a CREATE TABLE"),
        ("SELECT k FROM s UNION ALL SELECT k FROM r", "write an INSERT INTO for each query: INSERT INTO target SELECT ..."),
        ("SELECT k FROM (SELECT k FROM s)", "write CREATE STREAM name AS SELECT ... before it, and FROM name"),
        ("SELECT k, (SELECT max(k) FROM r) AS m FROM s", "create a table of it, and write JOIN name ON ..."),
        ("SELECT k FROM s WHERE k IN (SELECT k FROM r)", "create a table of it, and write JOIN name ON ..."),
        ("SELECT s.k FROM s JOIN r FOR SYSTEM_TIME AS OF s.at AS q ON s.k = q.k", "write FROM stream JOIN table ON stream.column = table.key"),
        ("SELECT k, sum(v) OVER (PARTITION BY k) AS n FROM s", "write GROUP BY with WINDOW"),
        ("SELECT k FROM s ORDER BY v", 'tables.sql("SELECT ... ORDER BY ...")'),
        ("SELECT k FROM s LIMIT 3", "QUALIFY row_number() OVER (PARTITION BY ... ORDER BY ...) <= n, or query the table"),
        ("SELECT DISTINCT k FROM s", "write CREATE TABLE name AS SELECT x, COUNT(*) ... GROUP BY x"),
    ],
)  # fmt: skip
def test_clauses_of_other_engines_name_the_statement_to_write(query, remedy):
    assert remedy in refused(query)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (f"SELECT k, {' + '.join(['v'] * 10_000)} AS x FROM s", "nested deeper than 1000"),
        (f"SELECT k, {'(' * 1_000}v{')' * 1_000} AS x FROM s", "more than 500 brackets are inside each other"),
        (f"SELECT k, v{'->a' * 5_000} AS x FROM s", "-> takes a STRUCT"),
        (f"SELECT k, {'9' * 5_000} AS x FROM s", "a column has no type BIGNUM; write CAST"),
        (f"SELECT k FROM s LIMIT {'9' * 5_000}", "the number is larger than any time or count"),
        ("SELECT k, regexp_matches(t, '((a{1,1000}){1,1000}){1,1000}') AS x FROM s", "invalid repetition size"),
        ("SELECT k, read_text('/etc/passwd') AS x FROM s", "read_text is refused"),
        ("SELECT k, (FROM read_csv('/etc/passwd')) AS x FROM s", "read_csv is refused"),
        ("SELECT k, list_transform([1], lambda x: (FROM 'a.csv')) AS x FROM s", "a query inside of an expression"),
        ("SELECT k FROM '/etc/passwd'", "expected the name of a stream or table"),
        ("SELECT k, getenv('HOME') AS x FROM s", "getenv is refused"),
        ("SELECT k, current_setting('memory_limit') AS x FROM s", "current_setting is refused"),
        ("SELECT k, getvariable('a') AS x FROM s", "getvariable is refused"),
        ("SELECT k, random() AS x FROM s", "random is refused"),
        ("SELECT k, v FROM s; ATTACH 'x.db'", "expected a statement"),
        ("SELECT k, v FROM s; COPY s TO '/tmp/x'", "expected a statement"),
    ],
    ids=range(16),
)
def test_text_that_is_too_large_or_reaches_out_is_refused_at_its_place(query, message):
    assert message in refused(query)


@pytest.mark.parametrize(
    ("window", "message"),
    [
        ("TUMBLING (SIZE 0 SECONDS)", "the time is 0; give at least 1 MILLISECOND"),
        ("SESSION (0 SECONDS)", "the time is 0; give at least 1 MILLISECOND"),
        ("HOPPING (SIZE 1 DAY, ADVANCE BY 0 SECONDS)", "the time is 0; give at least 1 MILLISECOND"),
        ("HOPPING (SIZE 80000 SECONDS, ADVANCE BY 1 MILLISECOND)", "a row would be in 80000000 windows"),
        ("HOPPING (SIZE 1 SECOND, ADVANCE BY 1 DAY)", "ADVANCE BY is at most SIZE"),
        ("TUMBLING (SIZE 999999999999 YEARS)", "the time is too long"),
        (f"TUMBLING (SIZE {'9' * 5_000} SECONDS)", "the number is larger than any time or count"),
    ],
    ids=range(7),
)
def test_windows_of_no_or_of_endless_size_are_refused(window, message):
    assert message in refused(f"SELECT k, COUNT(*) AS n FROM s WINDOW {window} GROUP BY k", "TABLE")


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
