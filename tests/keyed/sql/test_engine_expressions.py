"""Expressions in the engine of the columns: DuckDB and Spark SQL give what the functions of Python give."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keyed import sql
from keyed.errors import SqlError
from keyed.sql.engine_expressions import EngineColumns, columns_of
from keyed.sql.expressions import Column, RowScope, guarded
from keyed.sql.given_rows import arrow_kinds, plain_time
from keyed.sql.grammar import parse
from keyed.sql.sql_types import BIGINT, BOOLEAN, DATE, DOUBLE, INTEGER, STRING, TIMESTAMP, decimal
from keyed.sql.syntax import Computed

COLUMNS = {"I": INTEGER, "J": INTEGER, "B": BIGINT, "C": BIGINT, "D": DOUBLE, "E": DOUBLE, "S": STRING, "T": STRING}
COLUMNS |= {"P": BOOLEAN, "M": decimal(6, 2), "N": decimal(20, 5), "A": TIMESTAMP, "F": DATE, "W": INTEGER}
ARROW = {INTEGER: pa.int32(), BIGINT: pa.int64(), DOUBLE: pa.float64(), STRING: pa.string(), BOOLEAN: pa.bool_()}
#: W is declared as an INTEGER and has long integers, of which a record has the lowest 32 bits.
DECIMALS = {decimal(6, 2): pa.decimal128(6, 2), decimal(20, 5): pa.decimal128(20, 5)}
OTHERS = {**DECIMALS, TIMESTAMP: pa.timestamp("us", "UTC"), DATE: pa.date32()}
FIELDS: Any = {name: pa.int64() if name == "W" else {**ARROW, **OTHERS}[type_] for name, type_ in COLUMNS.items()}
SCHEMA = pa.schema(FIELDS)

INTS = st.sampled_from([0, 1, -1, 2, 7, -7, 10, 2**31 - 1, -(2**31)]) | st.integers(-(2**31), 2**31 - 1)
LONGS = st.sampled_from([0, 1, -1, 3, -5, 2**53 + 1, 2**63 - 1, -(2**63)]) | st.integers(-(2**63), 2**63 - 1)
DOUBLES = (
    st.sampled_from([0.0, -0.0, 1.0, -1.5, 0.1, 1e308, -1e308, 5e-324, math.inf, -math.inf, math.nan]) | st.floats()
)
TEXTS = st.sampled_from(
    ["", "a", "A", "ab", "a%", "b_c", "it's", "\\", "ä", "😀", "a\nb", "%", " a ", "\t a\n", "a\n", "😀😀b"]
) | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4)
CELLS = {INTEGER: INTS, BIGINT: LONGS, DOUBLE: DOUBLES, STRING: TEXTS, BOOLEAN: st.booleans()}
MOMENTS = st.sampled_from([0, 1, -1, -999, -1000, 1_700_000_000_000_000, 1_577_836_800_000_000]) | st.integers(
    -(2**50), 2**50
)
CELLS |= {
    TIMESTAMP: MOMENTS.map(lambda us: dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)),
    DATE: st.integers(-30_000, 30_000).map(lambda days: dt.date(1970, 1, 1) + dt.timedelta(days)),
    decimal(6, 2): st.sampled_from([0, 1, 150, -250, 999999]).map(lambda n: Decimal(n).scaleb(-2)),
    decimal(20, 5): st.sampled_from([0, 100_000, 150_000, 150_001, -(10**20) + 1]).map(lambda n: Decimal(n).scaleb(-5)),
}
ROWS = st.lists(
    st.tuples(*(st.none() | (LONGS if name == "W" else CELLS[type_]) for name, type_ in COLUMNS.items())),
    min_size=1,
    max_size=6,
)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def names(*types: Any) -> st.SearchStrategy[str]:
    return st.sampled_from([name for name, type_ in COLUMNS.items() if type_ in types])


LITERALS = {
    INTEGER: st.sampled_from([0, 1, 2, 3, 7, 100, -4, 2**31 - 1]).map(str),
    BIGINT: st.sampled_from([2**31, 2**53 + 1, 2**63 - 1]).map(str),
    DOUBLE: st.sampled_from(["1.5", "0.1", "2E3", "1E308", "-2.5"]),
    STRING: TEXTS.map(quoted),
    BOOLEAN: st.sampled_from(["TRUE", "FALSE"]),
}


def texts(type_: Any, depth: int) -> st.SearchStrategy[str]:
    """Expressions of a type, as text."""
    plain = st.one_of(names(type_), names(type_), LITERALS[type_])
    if not depth:
        return plain

    def of(kind: Any) -> st.SearchStrategy[str]:
        return texts(kind, depth - 1)

    def built(form: str, *parts: Any) -> st.SearchStrategy[str]:
        return st.tuples(*(of(each) if not isinstance(each, st.SearchStrategy) else each for each in parts)).map(
            lambda found: form.format(*found)
        )

    sign = st.sampled_from("+-*")
    found = [
        plain,
        built("COALESCE({}, {})", type_, type_),
        built("IFNULL({}, {})", type_, type_),
        built("(CASE WHEN {} THEN {} ELSE {} END)", BOOLEAN, type_, type_),
        built("(CASE WHEN {} THEN {} WHEN {} THEN {} END)", BOOLEAN, type_, BOOLEAN, type_),
    ]
    if type_ == INTEGER:
        found += [built("({} {} {})", INTEGER, sign, INTEGER)] * 2
        found += [built("({} {} {})", INTEGER, st.sampled_from("/%"), INTEGER)]
        found += [built("LEN({})", STRING), built("ABS({})", INTEGER)]
    if type_ == BIGINT:
        found += [built("({} {} {})", BIGINT, sign, BIGINT), built("({} {} {})", INTEGER, sign, BIGINT)]
        found += [built("({} {} {})", BIGINT, st.sampled_from("/%"), kind) for kind in (INTEGER, BIGINT)]
        found += [built("CAST({} AS BIGINT)", INTEGER), built("ABS({})", BIGINT)]
    if type_ == DOUBLE:
        found += [built("({} {} {})", DOUBLE, sign, kind) for kind in (DOUBLE, INTEGER, BIGINT)]
        found += [built("({} {} {})", DOUBLE, st.sampled_from("/%"), kind) for kind in (DOUBLE, INTEGER)]
        found += [built("ABS({})", DOUBLE), built("CAST({} AS DOUBLE)", BIGINT), built("(-{})", names(DOUBLE))]
    if type_ == STRING:
        found += [built("({} + {})", STRING, STRING), built("CONCAT({}, {}, {})", STRING, STRING, STRING)]
        found += [built("CAST({} AS STRING)", INTEGER), built("CAST({} AS STRING)", BIGINT)]
        found += [built("TRIM({})", STRING), built("REPLACE({}, {}, {})", STRING, LITERALS[STRING], STRING)]
        found += [built(f"{name}({{}})", STRING) for name in ("UCASE", "LCASE")]
        place = st.sampled_from(["0", "1", "2", "5", "-1", "-3"])
        found += [built("SUBSTRING({}, {})", STRING, place), built("SUBSTRING({}, {}, {})", STRING, place, place)]
    if type_ == BOOLEAN:
        compare = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
        pairs: list[Any] = [
            (INTEGER, INTEGER),
            (BIGINT, INTEGER),
            (BIGINT, BIGINT),
            (DOUBLE, DOUBLE),
            (DOUBLE, INTEGER),
        ]
        pairs += [(STRING, STRING)]
        money = names(*DECIMALS) | st.sampled_from(["1.50", "2.5", "0.00001", "-2.50", "7"])
        pairs += [(names(*DECIMALS), money), (names(*DECIMALS), INTEGER), (names(BIGINT), money)]
        pairs += [(names(TIMESTAMP), names(TIMESTAMP) | st.sampled_from(["'1970-01-01T00:00:00.001'", "'2020'"]))]
        pairs += [(names(DATE), names(DATE) | st.sampled_from(["'1970-01-02'", "'2001'"]))]
        found += [built("({} {} {})", a, compare, b) for a, b in pairs]
        found += [built("({} {} {})", BOOLEAN, st.sampled_from(["=", "<>", "AND", "OR"]), BOOLEAN)] * 2
        found += [built("(NOT {})", BOOLEAN)]
        found += [built("({} IS NULL)", kind) for kind in (INTEGER, DOUBLE, STRING, BOOLEAN)]
        found += [built("({} IS NOT NULL)", kind) for kind in (BIGINT, STRING)]
        found += [built("({} BETWEEN {} AND {})", kind, kind, kind) for kind in (INTEGER, DOUBLE, STRING)]
        found += [built("({} IN ({}, {}))", kind, LITERALS[kind], LITERALS[kind]) for kind in (INTEGER, BIGINT, STRING)]
        pattern = st.sampled_from(["%", "a%", "%a", "%b%", "", "a", "it's%", "ä%", "%😀%"]).map(quoted)
        found += [built("({} LIKE {})", STRING, pattern), built("({} NOT LIKE {})", STRING, pattern)]
    return st.one_of(found)


MONEY = st.sampled_from(["M", "N", "I", "1.50", "3", "(M + N)", "(M * I)", "COALESCE(M, N)", "(M - 0.001)"])
DECIMAL_RESULTS = st.tuples(MONEY, st.sampled_from("+-*"), MONEY).map(lambda parts: f"({' '.join(parts)})")
DECIMAL_RESULTS |= st.tuples(texts(BOOLEAN, 1), MONEY, MONEY).map(
    lambda p: f"(CASE WHEN {p[0]} THEN {p[1]} ELSE {p[2]} END)"
)
EXPRESSIONS = st.one_of([texts(type_, depth) for type_ in ARROW for depth in (1, 2, 3)]) | DECIMAL_RESULTS
DECLARED = ", ".join(f"{name} {type_}" for name, type_ in COLUMNS.items())


def node_of(expression: str) -> tuple[Any, Any]:
    """The expression of a script, and its text."""
    script = f"CREATE STREAM g ({DECLARED}) WITH (FORMAT='JSON'); CREATE STREAM o AS SELECT {expression} AS x FROM g;"
    text, statements = parse(script)
    query: Any = statements[1]
    return query.query, text


def translated(expression: str, dialect: Any) -> tuple[Any, str, Any]:
    """An expression in SQL, ``None`` if it runs in Python; the condition of rows that do so; and Python's function."""
    query, text = node_of(expression)
    scope = RowScope(text, [Column(name, type_, "G") for name, type_ in COLUMNS.items()])
    node = query.items[0].value
    engine = EngineColumns(dialect, columns_of(arrow_kinds(SCHEMA)))
    found: Any = engine.rewritten(query, COLUMNS, scope.compile, grouped=False).items[0].value
    text, unless = None, "FALSE"
    if isinstance(found, Computed):
        text = engine.expressions[found.place]
        unless = unless if found.unless is None else engine.expressions[found.unless]
    return text, unless, guarded(scope.compile(node).of)


def as_records(row: Any) -> tuple[Any, ...]:
    """A row as its record is read."""
    cells = [plain_time(cell) if isinstance(cell, dt.date) else cell for cell in row]
    if cells[-1] is not None:
        cells[-1] = (cells[-1] + 2**31) % 2**32 - 2**31
    return tuple(cells)


def same(a: Any, b: Any) -> bool:
    """Equal values of one type; NaN equals NaN, and zeros have a sign."""
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return type(a) is type(b) and a == b and str(a) == str(b)


def agrees(found: Any, expected: Any) -> bool:
    """Whether the engine has Python's value, or leaves the row to Python."""
    assert found["python"] in (True, False)
    return found["python"] or same(found["x"], expected)


def table_of(rows: Any) -> pa.Table:
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)],
        schema=SCHEMA,
    )


@settings(max_examples=2 * settings().max_examples)
@example("(D * 2.5)", [(1, 1, 1, 1, 1e308, 0.0, "a", "a", True, None, None, None, None, 2**31)])
@example("(W + 1)", [(1, 1, 1, 1, 1e308, 0.0, "a", "a", True, None, None, None, None, 2**31 - 1)])
@example("(B * C)", [(1, 1, -(2**63), -1, 0.0, 0.0, "a", "a", True, None, None, None, None, None)])
@example("(D % E)", [(1, 1, 1, 1, math.inf, 2.0, "a", "a", True, None, None, None, None, None)])
@example("(M * I)", [(-1, 1, 1, 1, 0.0, 2.0, "a", "a", True, Decimal("0.00"), None, None, None, None)])
@given(EXPRESSIONS, ROWS)
def test_duckdb_computes_what_python_does(expression, rows):
    text, unless, of = translated(expression, "duckdb")
    if text is None:
        return
    with duckdb.connect() as connection:
        connection.register("given", table_of(rows))
        found = connection.table("given").project(f"{text} AS x, {unless} AS python").to_arrow_table().to_pylist()
    expected = [of(as_records(row)) for row in rows]
    assert all(map(agrees, found, expected)), (expression, text, found, expected)


def test_most_random_expressions_are_computed_by_the_engine():
    counts = [0, 0]

    @settings(max_examples=300, database=None, derandomize=True)
    @given(EXPRESSIONS)
    def count(expression):
        counts[translated(expression, "duckdb")[0] is None] += 1

    count()
    assert counts[0] > 0.6 * sum(counts)


@pytest.mark.slow
@settings(max_examples=max(4, settings().max_examples // 5), deadline=None)
@example(
    ["(B * C)", "(B + C)", "(B - C)", "(W + 1)", "(M = N)"],
    [(1, 1, -(2**63), -1, 0.0, 0.0, "a", "a", True, Decimal("1.50"), Decimal("1.50000"), None, None, 2**31 - 1)],
)
@given(st.lists(EXPRESSIONS, min_size=20, max_size=30), ROWS)
def test_spark_computes_what_python_does(spark, expressions, rows):
    pairs = [(each, *translated(each, "spark")) for each in expressions]
    pairs = [pair for pair in pairs if pair[1] is not None]
    frame = spark.createDataFrame(table_of(rows)).coalesce(1)
    columns = [(f"{text} AS x{n}", f"{unless} AS python{n}") for n, (_, text, unless, _) in enumerate(pairs)]
    found = frame.selectExpr(*(each for pair in columns for each in pair)).toArrow()
    for n, (expression, text, _, of) in enumerate(pairs):
        values = [{"x": row[f"x{n}"], "python": row[f"python{n}"]} for row in found.to_pylist()]
        expected = [of(as_records(row)) for row in rows]
        assert all(map(agrees, values, expected)), (expression, text, values, expected)


# In scripts.

SALES = "CREATE STREAM sales (title STRING KEY, tickets INT, price DOUBLE, note STRING) WITH (FORMAT = 'JSON');"
ROWS_OF_SALES: list[dict[str, Any]] = [
    {
        "title": f"film {n % 7}" if n % 11 else None,
        "tickets": n % 9 if n % 5 else None,
        "price": [1.5, math.nan, None, 2.25, 8.0][n % 5],
        "note": [None, "a", "it's", "ab", "Äß😀"][n % 5],
        "ROWTIME": 1000 * n,
    }
    for n in range(200)
]
COLUMNS_OF_SALES: Any = {
    "title": pa.string(),
    "tickets": pa.int64(),
    "price": pa.float64(),
    "note": pa.string(),
    "ROWTIME": pa.int64(),
}
TABLE = pa.Table.from_pylist(ROWS_OF_SALES, pa.schema(COLUMNS_OF_SALES))
QUERIES = {
    "projection": """CREATE STREAM o AS SELECT title, tickets * 2 + 1 AS twice, price / 2, note LIKE 'a%' AS is_a,
        UCASE(note + '!') AS loud, CASE WHEN price > 2 THEN 'dear' ELSE note END AS kind FROM sales
        WHERE tickets > 4 OR note = 'ab';""",
    "cases": """CREATE STREAM o AS SELECT title, UCASE(note) AS u, SUBSTRING(note, -2) AS s, LEN(note) AS n,
        tickets / (tickets - 2) AS q FROM sales WHERE LCASE(note) = 'äß😀' OR SUBSTRING(note, 1, 1) = 'a';""",
    "star": "CREATE STREAM o AS SELECT *, ROWTIME AS at, tickets + 1 FROM sales WHERE tickets BETWEEN 2 AND 5;",
    "partition": "CREATE STREAM o AS SELECT tickets + 1 AS k, title, tickets * 3 FROM sales PARTITION BY tickets + 1;",
    "aggregates": """CREATE TABLE o AS SELECT title, SUM(tickets * 2) AS sum, COUNT(*) FILTER (WHERE price > 1.5) AS n,
        AVG(price * 2) AS mean, SUM(tickets * 2) + 1 AS more FROM sales WHERE price < 5 GROUP BY title
        HAVING SUM(tickets * 2) > 3;""",
    "groups": """CREATE TABLE o AS SELECT tickets % 3 AS k, COUNT(*) AS n, MAX(tickets % 3 + 1) FROM sales
        GROUP BY tickets % 3;""",
    "windows": """CREATE TABLE o AS SELECT title, COUNT(*) AS n FROM sales WINDOW TUMBLING (SIZE 20 SECONDS)
        WHERE tickets > 6 GROUP BY title EMIT FINAL;""",
    "lists": "CREATE STREAM o AS SELECT title, EXPLODE(ARRAY[tickets * 2, tickets + 1]) AS n FROM sales;",
    "lambdas": """CREATE STREAM o AS SELECT title, TRANSFORM(ARRAY[1, 2], tickets => tickets * 2) AS a, tickets * 2 AS b
        FROM sales WHERE tickets = 3;""",
    "two queries": """CREATE STREAM o AS SELECT title, tickets FROM sales WHERE tickets > 7;
        CREATE STREAM p AS SELECT title, tickets * 2 AS n FROM o WHERE tickets * 2 > 1;
        CREATE STREAM q AS SELECT title, price FROM sales;""",
    "inserted": """CREATE STREAM other (title STRING KEY, tickets INT, price DOUBLE, note STRING) WITH (FORMAT='JSON');
        CREATE STREAM o AS SELECT title, tickets * 2 AS n FROM sales WHERE tickets > 3;
        INSERT INTO sales SELECT * FROM other;""",
    "joined": """CREATE STREAM o AS SELECT title, tickets * 2 AS n FROM sales WHERE tickets > 6;
        CREATE STREAM j AS SELECT a.title, a.n FROM o a JOIN sales b WITHIN 5 SECONDS ON a.title = b.title;""",
    "another of its topic": """CREATE STREAM second (title STRING KEY, tickets INT) WITH (FORMAT = 'JSON',
        KAFKA_TOPIC = 'SALES'); CREATE STREAM o AS SELECT title, tickets * 2 AS n FROM sales WHERE tickets > 6;
        CREATE STREAM p AS SELECT title, tickets * 5 AS n FROM second WHERE tickets > 6;""",
}
#: Those whose expressions no engine computes.
IN_PYTHON = {"inserted", "joined", "another of its topic", "lists"}


def written(result: sql.ScriptResult) -> dict[str, str]:
    return {name: repr(records) for name, records in result.records.items()}


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("size", [1, 70])
def test_a_script_over_columns_writes_what_it_does_over_rows(tmp_path, name, size):
    script = SALES + QUERIES[name]
    expected = written(sql.script(script, {"sales": ROWS_OF_SALES}))
    pq.write_table(TABLE, tmp_path / "sales.parquet", row_group_size=30)
    for rows in (TABLE, tmp_path / "sales.parquet"):
        assert written(sql.script(script, {"sales": rows}, rows_per_batch=size)) == expected


@pytest.mark.parametrize("name", QUERIES)
def test_explain_says_what_the_engine_computes(name):
    script = SALES + QUERIES[name] + "EXPLAIN o;"
    for rows, engines in ((TABLE, name not in IN_PYTHON), (ROWS_OF_SALES, False)):
        steps = sql.script(script, {"sales": rows}).answers[0].rows
        assert any(step["step"] == "compute" and "DuckDB" in step["detail"] for step in steps) is engines


def test_a_condition_may_change_between_runs_over_columns(tmp_path):
    first = SALES + "CREATE STREAM o AS SELECT title, tickets * 2 AS n FROM sales WHERE tickets > 4;"
    sql.script(first, {"sales": TABLE[:100]}, checkpoint=tmp_path, rows_per_batch=7)
    second = first.replace("> 4", "> 2").replace("* 2", "* 3")
    found = sql.script(second, {"sales": TABLE}, checkpoint=tmp_path)
    expected = [row["tickets"] * 3 for row in ROWS_OF_SALES[100:] if (row["tickets"] or 0) > 2]
    assert [record.value["N"] for record in found["o"]] == expected


@pytest.mark.parametrize("where", ["tickets > 4", "tickets > 100", "tickets IS NULL"])
def test_rows_that_no_query_needs_are_read_and_counted_as_over_rows(tmp_path, where):
    rows = [{**row, "ROWTIME": -1 if n % 13 == 0 else row["ROWTIME"]} for n, row in enumerate(ROWS_OF_SALES)]
    table = pa.Table.from_pylist(rows, TABLE.schema)
    script = SALES + f"CREATE STREAM o AS SELECT title, tickets, ROWOFFSET AS at FROM sales WHERE {where};"
    results = []
    for kind, given_rows in (("list", rows), ("table", table)):
        found = []
        for end in (3, 50, 120, 200):
            result = sql.script(script, {"sales": given_rows[:end]}, checkpoint=tmp_path / kind, rows_per_batch=5)
            found.append(repr(result["o"]))
        results.append([*found, sql.script(script, {"sales": given_rows}).skipped])
    assert results[0] == results[1]
    # A checkpoint of one way goes on by the other.
    more = [*rows, {**rows[1], "tickets": 5, "ROWTIME": 10**6}]
    both = [
        sql.script(script, {"sales": given_rows}, checkpoint=tmp_path / kind)
        for kind, given_rows in (("table", more), ("list", pa.Table.from_pylist(more, TABLE.schema)))
    ]
    assert repr(both[0]["o"]) == repr(both[1]["o"])


def test_columns_that_duckdb_does_not_read_are_left_to_python():
    table = pa.table(
        {
            "Tickets": pa.array([1, 5], pa.int32()),
            "tags": pa.array([["a"], []], pa.list_(pa.string())),
            "far": pa.array([1, 2], pa.decimal256(70)),
            "kind": pa.array(["x", "y"]).dictionary_encode(),
        }
    )
    script = """
    CREATE STREAM sales (`Tickets` INT, tickets INT, tags ARRAY<STRING>, kind STRING, far STRING)
        WITH (FORMAT = 'JSON');
    CREATE STREAM o AS SELECT `Tickets` + 1 AS a, tickets * 2 AS b, tags, kind + '!' AS c FROM sales
        WHERE `Tickets` > 1;
    EXPLAIN o;
    """
    expected = written(sql.script(script, {"sales": table.to_pylist()}))
    result = sql.script(script, {"sales": table})
    assert written(result) == expected
    assert {"step": "compute", "detail": "in DuckDB: WHERE and 2 other expressions"} in result.answers[0].rows


def test_an_expression_that_is_wrong_is_refused_at_its_place():
    with pytest.raises(SqlError, match=r"line 1, column \d+.*do not compare"):
        sql.script(SALES + "CREATE STREAM o AS SELECT title FROM sales WHERE tickets = note;", {"sales": TABLE})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["projection", "cases", "aggregates", "windows", "two queries"])
def test_spark_leaves_out_the_rows_that_no_query_needs(spark, name):
    script = SALES + QUERIES[name] + "EXPLAIN o;"
    frame = spark.createDataFrame(TABLE).coalesce(1)
    found, expected = sql.script(script, {"sales": frame}), sql.script(script, {"sales": ROWS_OF_SALES})
    assert any("Spark SQL" in step["detail"] for step in found.answers[0].rows)
    for output, records in expected.records.items():
        assert sorted(map(repr, found[output])) == sorted(map(repr, records))
    assert found.run is not None
    read = max(counters.get("rows_in", 0) for counters in found.run.metrics.values())
    passing = sum((row["tickets"] or 0) > 4 or row["note"] == "ab" for row in ROWS_OF_SALES)
    if name == "projection":
        assert read == passing < len(ROWS_OF_SALES)
    if name == "two queries":
        assert read >= len(ROWS_OF_SALES)
