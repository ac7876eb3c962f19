"""Scalar functions that DuckDB has too: the same values over random rows."""

import math

import duckdb
from hypothesis import given, settings
from hypothesis import strategies as st

from keyed import sql

#: Functions of the same meaning, by their names: calls in ksqlDB's SQL and in DuckDB's, over the columns of `COLUMNS`.
SAME = {
    "ABS": [("ABS(i)", "abs(i)"), ("ABS(x)", "abs(x)"), ("ABS(d)", "abs(d)")],
    "CEIL": [("CEIL(x)", "ceil(x)"), ("CEIL(d)", "ceil(d)")],
    "FLOOR": [("FLOOR(x)", "floor(x)"), ("FLOOR(d)", "floor(d)")],
    "SIGN": [("SIGN(i)", "sign(i)"), ("SIGN(x)", "sign(x)")],
    "SQRT": [("SQRT(ABS(x))", "sqrt(abs(x))")],
    "CBRT": [("CBRT(x)", "cbrt(x)")],
    "EXP": [("EXP(x / 100)", "exp(x / 100)")],
    "LN": [("LN(ABS(x) + 1)", "ln(abs(x) + 1)")],
    "POWER": [("POWER(x, 2)", "pow(x, 2)")],
    "PI": [("PI() + x", "pi() + x")],
    "SIN": [("SIN(x)", "sin(x)")],
    "COS": [("COS(x)", "cos(x)")],
    "TAN": [("TAN(x)", "tan(x)")],
    "ATAN": [("ATAN(x)", "atan(x)")],
    "ATAN2": [("ATAN2(x, 3)", "atan2(x, 3)")],
    "TANH": [("TANH(x)", "tanh(x)")],
    "DEGREES": [("DEGREES(x)", "degrees(x)")],
    "RADIANS": [("RADIANS(x)", "radians(x)")],
    "COALESCE": [("COALESCE(i, j)", "coalesce(i, j)"), ("COALESCE(s, t, 'n')", "coalesce(s, t, 'n')")],
    "IFNULL": [("IFNULL(s, t)", "ifnull(s, t)")],
    "NULLIF": [("NULLIF(i, j)", "nullif(i, j)")],
    "GREATEST": [("GREATEST(i, j)", "greatest(i, j)"), ("GREATEST(s, t)", "greatest(s, t)")],
    "LEAST": [("LEAST(i, j)", "least(i, j)"), ("LEAST(s, t)", "least(s, t)")],
    "UCASE": [("UCASE(s)", "upper(s)")],
    "LCASE": [("LCASE(s)", "lower(s)")],
    "TRIM": [("TRIM(s)", "trim(s)")],
    "LEN": [("LEN(s)", "length(s)")],
    "SUBSTRING": [("SUBSTRING(s, 2)", "substring(s, 2)"), ("SUBSTRING(s, 1, 2)", "substring(s, 1, 2)")],
    "CONCAT": [("CONCAT(s, t)", "concat(s, t)")],
    "CONCAT_WS": [("CONCAT_WS('-', s, t)", "concat_ws('-', s, t)")],
    "REPLACE": [("REPLACE(s, 'a', 'bb')", "replace(s, 'a', 'bb')")],
    "INSTR": [("INSTR(s, 'a')", "coalesce(instr(s, 'a'), 0)")],
    "LPAD": [("LPAD(s, 3, 'xy')", "lpad(s, 3, 'xy')")],
    "RPAD": [("RPAD(s, 3, 'xy')", "rpad(s, 3, 'xy')")],
    "SPLIT": [("SPLIT(s, 'a')", "string_split(s, 'a')")],
    "REGEXP_REPLACE": [("REGEXP_REPLACE(s, '[ab]+', 'x')", "regexp_replace(s, '[ab]+', 'x', 'g')")],
    "REGEXP_SPLIT_TO_ARRAY": [("REGEXP_SPLIT_TO_ARRAY(s, 'a')", "regexp_split_to_array(s, 'a')")],
    "MD5": [("MD5(s)", "md5(s)")],
    "CHR": [("CHR(ABS(i) % 90 + 33)", "chr(abs(i) % 90 + 33)")],
    "ARRAY_LENGTH": [("ARRAY_LENGTH(l)", "len(l)")],
    "ARRAY_MAX": [("ARRAY_MAX(l)", "list_max(l)")],
    "ARRAY_MIN": [("ARRAY_MIN(l)", "list_min(l)")],
    "ARRAY_SORT": [("ARRAY_SORT(l)", "list_sort(l, 'ASC', 'NULLS LAST')")],
    "FROM_UNIXTIME": [("CAST(FROM_UNIXTIME(b) AS BIGINT)", "epoch_ms(epoch_ms(b))")],
    "FORMAT_DATE": [("FORMAT_DATE(FROM_DAYS(i), 'yyyy-MM-dd')", "strftime(date '1970-01-01' + i, '%Y-%m-%d')")],
    "FORMAT_TIMESTAMP": [
        (
            "FORMAT_TIMESTAMP(FROM_UNIXTIME(b), 'yyyy-MM-dd HH:mm:ss.SSS')",
            "strftime(epoch_ms(b), '%Y-%m-%d %H:%M:%S.%g')",
        )
    ],
    "FROM_DAYS": [("UNIX_DATE(FROM_DAYS(i))", "date_diff('day', date '1970-01-01', date '1970-01-01' + i)")],
}
COLUMNS = {"i": "INT", "j": "INT", "b": "BIGINT", "x": "DOUBLE", "d": "DECIMAL(6, 2)", "s": "STRING", "t": "STRING"}
DUCK = {"INT": "INTEGER", "STRING": "VARCHAR"}
CALLS = [call for calls in SAME.values() for call in calls]

small = st.none() | st.integers(-500, 20_000)
texts = st.none() | st.text("abAB %_1", max_size=6)
rows = st.fixed_dictionaries(
    {
        "i": small,
        "j": small,
        "b": st.none() | st.integers(0, 4_000_000_000_000),
        "x": st.none() | st.integers(-4000, 4000).map(lambda n: n / 8),
        "d": st.none() | st.decimals(-9999, 9999, places=2),
        "s": texts,
        "t": texts,
        "l": st.none() | st.lists(st.none() | st.integers(-5, 5), max_size=4),
    }
)


def plain(value):
    if isinstance(value, str):
        return {"NaN": math.nan, "Infinity": math.inf}.get(value, value)
    return value if value is None or isinstance(value, list) else float(value)


def same(mine, theirs):
    if isinstance(mine, float) and isinstance(theirs, float):
        return math.isclose(mine, theirs, rel_tol=1e-12, abs_tol=1e-12)
    return mine == theirs


@settings(max_examples=settings().max_examples // 2)
@given(st.lists(rows, min_size=1, max_size=8))
def test_functions_have_the_values_that_duckdb_has(given_rows):
    declared = ", ".join(f"{name} {type_}" for name, type_ in COLUMNS.items())
    selected = ", ".join(f"{mine} AS c{place}" for place, (mine, _) in enumerate(CALLS))
    text = f"CREATE STREAM s ({declared}, l ARRAY<INT>) WITH (KAFKA_TOPIC='s', FORMAT='JSON');"
    text += f"CREATE STREAM out AS SELECT {selected} FROM s;"
    found = sql.script(text, topics={"s": [(None, row, 0) for row in given_rows]}, rows_per_batch=8)["out"]
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        typed = ", ".join(f"{name} {DUCK.get(type_, type_)}" for name, type_ in COLUMNS.items())
        connection.execute(f"CREATE TABLE s ({typed}, l INTEGER[])")
        connection.executemany(
            "INSERT INTO s VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [[row[name] for name in (*COLUMNS, "l")] for row in given_rows],
        )
        expected = connection.sql(f"SELECT {', '.join(theirs for _, theirs in CALLS)} FROM s").fetchall()
    for row, record, values in zip(given_rows, found, expected, strict=True):
        for place, (mine, theirs) in enumerate(CALLS):
            a, b = plain(record.value[f"C{place}"]), plain(values[place])
            assert same(a, b), f"{mine} is {a}, {theirs} is {b}, for {row}"
