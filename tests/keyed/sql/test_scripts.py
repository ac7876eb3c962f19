# ruff: noqa: E501 - statements stand on one line
"""Scripts, record by record: cases after ksqlDB's functional tests, and the rules of inputs and outputs."""

import os
import signal
from contextlib import suppress
from decimal import Decimal

import pytest

from keyed import sql
from keyed.errors import DefinitionError, SqlError, TableOverflowError
from keyed.expressions import engine
from keyed.metrics import Prometheus

READINGS = (
    "CREATE STREAM readings (id INT KEY, name STRING, amount BIGINT) WITH (KAFKA_TOPIC='in', VALUE_FORMAT='JSON');"
)
USERS = (
    "CREATE TABLE users (id INT PRIMARY KEY, region STRING, age INT) WITH (KAFKA_TOPIC='users', VALUE_FORMAT='JSON');"
)


def written(text, records, name="OUT", **options):
    """The records of an output as tuples: key, value, timestamp, and the window if there is one."""
    result = sql.script(text, topics=records, **({"rows_per_batch": 1} | options))
    return [
        (upper(each.key), upper(each.value), each.timestamp, *((each.window,) if each.window else ()))
        for each in result[name]
    ]


def upper(row):
    """A row with its names in upper case: names match in any."""
    return {name.upper(): upper(cell) for name, cell in row.items()} if isinstance(row, dict) else row


def reading(key, name, amount, time=0):
    return ("in", key, {"name": name, "amount": amount}, time)


def test_a_projection_filters_and_computes():
    text = (
        READINGS
        + "CREATE STREAM out AS SELECT id, UCASE(name) AS n, amount / 2 AS half FROM readings WHERE amount > 1;"
    )
    found = written(text, [reading(1, "a", 5), reading(2, "b", 1), reading(3, None, 7, 9)])
    assert found == [(1, {"N": "A", "HALF": 2.5}, 0), (3, {"N": None, "HALF": 3.5}, 9)]


def test_a_record_of_a_stream_without_value_is_skipped():
    found = sql.script(READINGS + "CREATE STREAM out AS SELECT id, name FROM readings;", topics=[("in", 1, None, 5)])
    assert found["out"] == []
    assert found.skipped == {"readings": {"the format cannot read them": 1}}


def test_partition_by_replaces_the_key():
    text = READINGS + "CREATE STREAM out AS SELECT * FROM readings PARTITION BY name;"
    assert written(text, [reading(1, "a", 5)]) == [("a", {"ID": 1, "AMOUNT": 5}, 0)]


def test_an_aggregate_emits_each_change():
    text = READINGS + "CREATE TABLE out AS SELECT name, COUNT(*) AS n, SUM(amount) AS s FROM readings GROUP BY name;"
    found = written(text, [reading(1, "a", 5), reading(2, "b", 1), reading(3, "a", 7, 9), reading(4, None, 1)])
    assert found == [("a", {"N": 1, "S": 5}, 0), ("b", {"N": 1, "S": 1}, 0), ("a", {"N": 2, "S": 12}, 9)]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("COUNT(amount)", 3),
        ("SUM(amount)", 9),
        ("AVG(amount)", 3.0),
        ("MIN(amount)", 2),
        ("MAX(amount)", 5),
        ("LATEST_BY_OFFSET(amount)", 2),
        ("LATEST_BY_OFFSET(amount, false)", None),
        ("EARLIEST_BY_OFFSET(amount)", 5),
        ("COLLECT_LIST(amount)", [5, 2, 2, None]),
        ("COLLECT_SET(amount)", [2, 5]),
        ("COUNT_DISTINCT(amount)", 2),
        ("TOPK(amount, 2)", [5, 2]),
        ("SUM(amount) + COUNT(*)", 13),
        ("COUNT(DISTINCT amount)", 2),
        ("COUNT(*) FILTER (WHERE amount > 2)", 1),
        ("COUNT(DISTINCT amount) FILTER (WHERE amount < 5)", 1),
        ("STDDEV_SAMP(amount)", pytest.approx(3**0.5)),
        ("STDDEV_SAMPLE(amount)", pytest.approx(3**0.5)),
    ],
)
def test_aggregates(call, expected):
    text = READINGS + f"CREATE TABLE out AS SELECT name, {call} AS x FROM readings GROUP BY name;"
    found = written(text, [reading(1, "a", each) for each in (5, 2, 2, None)])
    assert found[-1][1] == {"X": expected}


def test_having_emits_a_tombstone_when_a_row_no_longer_fits():
    text = (
        READINGS
        + "CREATE TABLE out AS SELECT name, SUM(amount) AS s FROM readings GROUP BY name HAVING SUM(amount) > 2;"
    )
    found = written(text, [reading(1, "a", 1), reading(1, "a", 5), reading(1, "a", -5)])
    assert found == [("a", {"S": 6}, 0), ("a", None, 0)]


def test_a_key_of_several_columns_is_a_dictionary():
    text = (
        READINGS
        + "CREATE TABLE out WITH (KEY_FORMAT='JSON') AS SELECT name, id, COUNT(*) FROM readings GROUP BY name, id;"
    )
    assert written(text, [reading(1, "a", 1)]) == [({"NAME": "a", "ID": 1}, {"KSQL_COL_0": 1}, 0)]


def test_tumbling_and_hopping_windows():
    rows = [reading(1, "a", 1, 0), reading(1, "a", 2, 999), reading(1, "a", 3, 1500)]
    tumbling = (
        "CREATE TABLE out AS SELECT id, SUM(amount) AS s FROM readings WINDOW TUMBLING (SIZE 1 SECOND) GROUP BY id;"
    )
    assert written(READINGS + tumbling, rows) == [
        (1, {"S": 1}, 0, (0, 1000)),
        (1, {"S": 3}, 999, (0, 1000)),
        (1, {"S": 3}, 1500, (1000, 2000)),
    ]
    hopping = tumbling.replace("TUMBLING (SIZE 1 SECOND)", "HOPPING (SIZE 2 SECONDS, ADVANCE BY 1 SECOND)")
    assert written(READINGS + hopping, rows)[-2:] == [(1, {"S": 6}, 1500, (0, 2000)), (1, {"S": 3}, 1500, (1000, 3000))]


def test_a_late_row_is_dropped_after_the_grace_period():
    text = READINGS + (
        "CREATE TABLE out AS SELECT id, COUNT(*) AS n FROM readings "
        "WINDOW TUMBLING (SIZE 10 MILLISECONDS, GRACE PERIOD 5 MILLISECONDS) GROUP BY id;"
    )
    rows = [reading(1, "a", 1, time) for time in (0, 14, 9, 15, 8)]
    assert [(value["N"], window) for _, value, _, window in written(text, rows)] == [
        (1, (0, 10)),
        (1, (10, 20)),
        (2, (0, 10)),
        (2, (10, 20)),
    ]


def test_emit_final_emits_each_window_once():
    text = READINGS + (
        "CREATE TABLE out AS SELECT id, COUNT(*) AS n, WINDOWSTART AS w FROM readings "
        "WINDOW TUMBLING (SIZE 2 MILLISECONDS) GROUP BY id EMIT FINAL;"
    )
    rows = [reading(1, "a", 1, time) for time in (0, 1, 2, 1, 5)]
    assert written(text, rows) == [(1, {"N": 2, "W": 0}, 1, (0, 2)), (1, {"N": 1, "W": 2}, 2, (2, 4))]


def test_a_session_that_grows_is_replaced():
    text = (
        READINGS + "CREATE TABLE out AS SELECT id, COUNT(*) AS n FROM readings WINDOW SESSION (10 SECONDS) GROUP BY id;"
    )
    rows = [reading(1, "a", 1, time) for time in (0, 30_000, 8_000)]
    assert written(text, rows) == [
        (1, {"N": 1}, 0, (0, 0)),
        (1, {"N": 1}, 30_000, (30_000, 30_000)),
        (1, None, 0, (0, 0)),
        (1, {"N": 2}, 8_000, (0, 8_000)),
    ]


def test_an_aggregate_of_a_table_undoes_replaced_rows():
    text = USERS + "CREATE TABLE out AS SELECT region, COUNT(*) AS n, SUM(age) AS s FROM users GROUP BY region;"
    rows = [("users", 1, {"region": "eu", "age": 10}), ("users", 1, {"region": "us", "age": 20}), ("users", 1, None)]
    assert [(key, value) for key, value, *_ in written(text, rows)] == [
        ("eu", {"N": 1, "S": 10}),
        ("eu", None),
        ("us", {"N": 1, "S": 20}),
        ("us", None),
    ]


def test_a_filtered_table_deletes_rows_that_no_longer_fit():
    text = USERS + "CREATE TABLE out AS SELECT id, age FROM users WHERE age > 10;"
    rows = [("users", 1, {"age": 20}), ("users", 1, {"age": 5}), ("users", 2, {"age": 5})]
    assert [(key, value) for key, value, *_ in written(text, rows)] == [(1, {"AGE": 20}), (1, None)]


def test_stream_table_join():
    text = READINGS + USERS
    text += "CREATE STREAM out AS SELECT r.id AS id, amount, region FROM readings r {} JOIN users u ON r.id = u.id;"
    rows = [reading(1, "a", 1, 0), ("users", 1, {"region": "eu"}, 1), reading(1, "a", 2, 2)]
    matched = (1, {"AMOUNT": 2, "REGION": "eu"}, 2)
    assert written(text.format("INNER"), rows) == [matched]
    assert written(text.format("LEFT"), rows) == [(1, {"AMOUNT": 1, "REGION": None}, 0), matched]


def test_stream_stream_join_within_a_time():
    text = READINGS + READINGS.replace("readings", "others").replace("'in'", "'other'")
    text += "CREATE STREAM out AS SELECT a.id AS id, a.name, b.name FROM readings a {} JOIN others b WITHIN {} ON a.id = b.id;"
    rows = [reading(1, "x", 1, 0), ("other", 1, {"name": "y"}, 900), ("other", 1, {"name": "z"}, 1100)]
    both = (1, {"A_NAME": "x", "B_NAME": "y"}, 900)
    assert written(text.format("", "1 SECOND"), rows) == [both]
    assert written(text.format("LEFT", "1 SECOND"), rows) == [both]
    # An unmatched row waits until no partner can come.
    final = written(
        text.format("LEFT", "1 SECOND GRACE PERIOD 0 SECONDS"),
        [*rows[1:], reading(2, "q", 1, 1200), reading(3, "r", 1, 9000)],
    )
    assert final == [(2, {"A_NAME": "q", "B_NAME": None}, 1200)]


def test_table_table_join():
    text = USERS + USERS.replace("users", "others")
    text += (
        "CREATE TABLE out AS SELECT a.id AS id, a.age AS a, b.age AS b FROM users a FULL JOIN others b ON a.id = b.id;"
    )
    text = text.replace("a.id AS id", "ROWKEY AS id")
    rows = [("users", 1, {"age": 1}, 5), ("others", 1, {"age": 2}, 3), ("users", 1, None, 6), ("others", 1, None, 7)]
    assert written(text, rows) == [
        (1, {"A": 1, "B": None}, 5),
        (1, {"A": 1, "B": 2}, 5),
        (1, {"A": None, "B": 2}, 6),
        (1, None, 7),
    ]


def test_queries_read_the_outputs_of_others_and_insert_into_them():
    text = READINGS + (
        "CREATE STREAM big AS SELECT id, amount FROM readings WHERE amount > 10;"
        "CREATE TABLE out AS SELECT id, COUNT(*) AS n FROM big GROUP BY id;"
        "INSERT INTO big SELECT id, -amount AS amount FROM readings WHERE amount < 0;"
    )
    assert written(text, [reading(1, "a", 11), reading(1, "a", 5), reading(1, "a", -1)]) == [
        (1, {"N": 1}, 0),
        (1, {"N": 2}, 0),
    ]


def test_delimited_records():
    text = "CREATE STREAM s (id INT, x DOUBLE, t STRING) WITH (KAFKA_TOPIC='in', VALUE_FORMAT='DELIMITED');"
    text += "CREATE STREAM out AS SELECT id, x + 1 AS x, t FROM s;"
    assert written(text, [("in", None, "1,2.5,a b"), ("in", None, '2,,"c,d"'), ("in", None, "3")]) == [
        (None, {"ID": 1, "X": 3.5, "T": "a b"}, 0),
        (None, {"ID": 2, "X": None, "T": "c,d"}, 0),
    ]


def test_a_key_of_several_columns_keeps_its_nulls():
    text = READINGS + "CREATE STREAM out WITH (KEY_FORMAT='JSON') AS SELECT * FROM readings PARTITION BY name, amount;"
    assert written(text, [reading(1, None, None)]) == [({"NAME": None, "AMOUNT": None}, {"ID": 1}, 0)]


def test_partition_by_puts_the_old_key_after_the_values():
    text = READINGS + "CREATE STREAM out WITH (VALUE_FORMAT='DELIMITED') AS SELECT * FROM readings PARTITION BY name;"
    assert written(text, [reading(1, "a", 5)]) == [("a", {"AMOUNT": 5, "ID": 1}, 0)]


def test_a_right_join_has_the_key_of_either_side():
    text = USERS + USERS.replace("users", "others")
    text += "CREATE TABLE out AS SELECT a.id AS id, b.age AS b FROM users a RIGHT JOIN others b ON a.id = b.id;"
    assert written(text, [("others", 1, {"age": 2}, 3)]) == [(1, {"B": 2}, 3)]


def test_streams_take_rows_by_column():
    result = sql.script(
        READINGS + "CREATE STREAM out AS SELECT id, amount FROM readings;",
        streams={"readings": [{"id": 1, "amount": 2, "ROWTIME": 7}]},
    )
    assert result["out"] == [sql.OutputRecord(1, {"amount": 2}, 7)]
    with pytest.raises(DefinitionError, match=r"no column 'amont'; did you mean amount\?"):
        sql.script(READINGS + "CREATE STREAM o AS SELECT id, name FROM readings;", streams={"readings": [{"amont": 2}]})


def test_topics_are_merged_by_timestamp():
    text = READINGS + USERS
    text += "CREATE STREAM out AS SELECT r.id AS id, region FROM readings r JOIN users u ON r.id = u.id;"
    found = sql.script(text, topics={"in": [(1, {"name": "a"}, 5)], "users": [(1, {"region": "eu"}, 4)]})
    assert found["OUT"] == [sql.OutputRecord(1, {"region": "eu"}, 5)]


@pytest.mark.parametrize("rows_per_batch", [1, 2, 100])
def test_results_do_not_depend_on_batches(rows_per_batch):
    text = READINGS + (
        "CREATE TABLE t AS SELECT name, COUNT(*) AS n, SUM(amount) AS s FROM readings WINDOW TUMBLING (SIZE 1 SECOND) GROUP BY name;"
    )
    rows = [reading(each, "abc"[each % 3], each, each * 70) for each in range(50)]
    tables = [sql.script(text, topics=rows, rows_per_batch=n).table("t") for n in (1, rows_per_batch)]
    assert tables[0] == tables[1]
    assert sum(row["n"] for row in tables[0].values()) == 50


def test_state_survives_a_restart(tmp_path):
    text = READINGS + "CREATE TABLE out AS SELECT name, COUNT(*) AS n FROM readings GROUP BY name;"
    rows = [reading(1, "a", 1), reading(1, "a", 1)]
    assert len(written(text, rows, checkpoint=tmp_path / "c")) == 2
    assert written(text, [*rows, reading(1, "a", 1)], checkpoint=tmp_path / "c") == [("a", {"N": 3}, 0)]


def test_tables_can_be_read_as_state_tables(tmp_path):
    text = READINGS + "CREATE TABLE out AS SELECT name, COUNT(*) AS n FROM readings GROUP BY name;"
    found = sql.script(text, topics=[reading(1, "a", 1)], tables=tmp_path / "tables")
    assert found.run is not None
    with found.run.tables as tables:
        assert "out" in tables


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELEC 1;", "line 1, column 1: expected a statement; did you mean SELECT?"),
        ("CREATE STREAM s (a INT) WITH (FORMT='JSON');", "unknown option FORMT; did you mean FORMAT?"),
        ("CREATE STREAM s (a INT) WITH (FORMAT='JSN');", "unknown format JSN; did you mean JSON?"),
        ("CREATE TABLE t (a INT PRIMARY KEY) WITH (FORMAT='JSON', WINDOW_TYPE='HOPPING', WINDOW_SIZE='2 BOB');", "write it as '30 SECONDS'"),
        ("CREATE STREAM s (a IN) WITH (FORMAT='JSON');", "unknown type IN; did you mean INT?"),
        ("CREATE TABLE t (a INT) WITH (FORMAT='JSON');", "a table needs a PRIMARY KEY"),
        (READINGS + "CREATE STREAM o AS SELECT id, nme FROM readings;", "unknown column nme; did you mean name?"),
        (READINGS + "CREATE STREAM o AS SELECT id FROM reading;", "unknown stream or table reading; did you mean readings?"),
        (READINGS + "CREATE STREAM o AS SELECT id, UCAS(name) FROM readings;", "unknown function ucas; did you mean UCASE?"),
        (READINGS + "CREATE STREAM o AS SELECT id, name + amount AS x FROM readings;", "+ does not take the types VARCHAR, BIGINT; use CAST"),
        (READINGS + "CREATE STREAM o AS SELECT name FROM readings;", "the projection lacks the key"),
        (READINGS + "CREATE TABLE o AS SELECT id, name, COUNT(*) FROM readings GROUP BY id;", "LATEST_BY_OFFSET(name)"),
        (READINGS + "CREATE TABLE o AS SELECT id, COUNT(*) FROM readings GROUP BY id EMIT FINAL;", "EMIT FINAL needs a WINDOW"),
        (READINGS + "CREATE STREAM o AS SELECT id, COUNT(*) FROM readings GROUP BY id;", "write CREATE TABLE"),
        (USERS + "CREATE TABLE o AS SELECT region, MIN(age) FROM users GROUP BY region;", "MIN is for streams"),
        (READINGS + "CREATE TABLE o AS SELECT id, AVGG(amount) FROM readings GROUP BY id;", "unknown function AVGG; did you mean AVG?"),
        (READINGS + "SELECT * FROM readings EMIT CHANGES;", "a script has no SELECT alone: write CREATE STREAM"),
        (READINGS + "CREATE STREAM o AS SELECT * FROM (SELECT 1);", "a subquery in FROM is not supported"),
    ],
)  # fmt: skip
def test_errors_name_the_place_and_the_remedy(text, message):
    with pytest.raises(SqlError) as caught:
        sql.script(text)
    shown = str(caught.value)
    assert message in shown
    line, column = caught.value.line, caught.value.column
    assert shown.startswith(f"line {line}, column {column}: ")
    assert shown.rsplit("\n", maxsplit=1)[-1].strip() == "^"


def test_nothing_runs_before_the_whole_script_is_checked():
    def records():
        raise AssertionError
        yield

    with pytest.raises(SqlError):
        sql.script(READINGS + "CREATE STREAM o AS SELECT id, nope FROM readings;", topics={"in": records()})


def evaluated(expression):
    """The value of an expression over one row: id 3, name 'Ann', amount 10."""
    found = written(
        READINGS + f"CREATE STREAM out AS SELECT id, {expression} AS x FROM readings;", [reading(3, "Ann", 10)]
    )
    return found[0][1]["X"]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("amount / 4", 2.5),
        ("amount // id", 3),
        ("amount % id", 1),
        ("TRY(amount // 0)", None),
        ("2147483647::BIGINT + id", 2147483650),
        ("amount + 0.5", Decimal("10.5")),
        ("CAST(amount AS DOUBLE) / 4", 2.5),
        ("name || '!'", "Ann!"),
        ("CASE WHEN amount > 5 THEN 'big' ELSE 'small' END", "big"),
        ("CASE name WHEN 'Bob' THEN 1 END", None),
        ("CAST('12' AS INT)", 12),
        ("TRY_CAST('twelve' AS INT)", None),
        ("CAST(amount AS STRING)", "10"),
        ("SUBSTRING(name, 2)", "nn"),
        ("SUBSTRING(name, -2, 1)", "n"),
        ("LEN(name) BETWEEN 1 AND 3", True),
        ("name LIKE 'A%'", True),
        ("name LIKE '_n'", False),
        ("id IN (1, 2, 3)", True),
        ("name IS NULL", False),
        ("COALESCE(CAST(NULL AS STRING), name)", "Ann"),
        ("ARRAY[1, 2, 3][-1]", 3),
        ("ARRAY[1, 2, 3][4]", None),
        ("MAP('a' := 1)['a']", 1),
        ("STRUCT(a := 1, b := name)->b", "Ann"),
        ("LIST_TRANSFORM(ARRAY[1, 2], lambda x: x * amount)", [10, 20]),
        ("FILTER(ARRAY[1, 2], lambda x: x > 1)", [2]),
        ("REDUCE(ARRAY[1, 2], lambda s, x: s + x)", 3),
        ("ROUND(2.5)", Decimal(3)),
        ("REGEXP_EXTRACT(name, '(A)(n+)', 2)", "nn"),
        ("EXTRACTJSONFIELD('{\"a\": {\"b\": [1, 2]}}', '$.a.b[1]')", "2"),
        ("SPLIT('a,b', ',')", ["a", "b"]),
        ("TO_JSON(STRUCT(a := amount, b := ARRAY[1.50]))::VARCHAR", '{"a":10,"b":[1.5]}'),
        ("GREATEST(FROM_DAYS(1), '1970-01-05')", 4),
        ("FORMAT_TIMESTAMP(FROM_UNIXTIME(0), '%Y-%m-%d %H:%M')", "1970-01-01 00:00"),
        ("PARSE_DATE('02/01/1970', '%d/%m/%Y')", 1),
    ],
)
def test_expressions(expression, value):
    found = evaluated(expression)
    assert found == value
    assert type(found) is type(value)


def test_the_first_record_that_cannot_be_read_is_logged(caplog):
    text = READINGS + "CREATE TABLE o AS SELECT id, COUNT(*) AS n FROM readings GROUP BY id;"
    records = [(1, "not JSON", 0), (1, "[]", 1), (1, '{"NAME": "a", "AMOUNT": 1}', 2)]
    found = sql.script(text, topics={"in": records}, rows_per_batch=1)
    assert [record.value for record in found["o"]] == [{"n": 1}]
    (said,) = [record.getMessage() for record in caplog.records if "skips a row" in record.getMessage()]
    assert said.startswith(
        "readings skips a row, as it will others: the format cannot read them: topic in, record 0: JSON is malformed"
    )


@pytest.mark.parametrize("rows_per_batch", [1, 3, 20])
def test_a_late_row_of_a_join_with_a_grace_period_is_emitted_at_once(rows_per_batch):
    text = (
        "CREATE STREAM l (id BIGINT KEY, a STRING) WITH (KAFKA_TOPIC='l', VALUE_FORMAT='JSON');"
        "CREATE STREAM r (id BIGINT KEY, b STRING) WITH (KAFKA_TOPIC='r', VALUE_FORMAT='JSON');"
        "CREATE STREAM out AS SELECT l.id, a, b FROM l LEFT JOIN r WITHIN 1 MINUTE GRACE PERIOD 1 MINUTE ON l.id = r.id;"
    )
    rows = [("l", 0, {"A": "A"}, 0), ("r", 0, {"B": "a"}, 60_000), ("l", 1, {"A": "B"}, 330_000)]
    rows += [("l", 2, {"A": "C"}, 90_000), ("r", 2, {"B": "c"}, 90_000), ("l", 3, {"A": "D"}, 60_000)]
    assert sorted(written(text, rows, rows_per_batch=rows_per_batch), key=repr) == [
        (0, {"A": "A", "B": "a"}, 60_000),
        (2, {"A": "C", "B": None}, 90_000),
        (3, {"A": "D", "B": None}, 60_000),
    ]


def test_a_stream_row_joins_the_table_rows_that_came_before_it_in_its_batch():
    text = READINGS + USERS
    text += "CREATE STREAM out AS SELECT r.id, amount, age FROM readings r LEFT JOIN users u ON r.id = u.id;"
    rows = [reading(1, "a", 1, 0), ("users", 1, {"region": "x", "age": 30}, 1), reading(1, "a", 2, 1)]
    for rows_per_batch in (1, 3):
        found = written(text, rows, rows_per_batch=rows_per_batch)
        assert [value["AGE"] for _, value, _ in found] == [None, 30]


def test_skipped_records_are_an_exported_metric(tmp_path):
    text = READINGS + "CREATE STREAM out AS SELECT id, name FROM readings;"
    file = tmp_path / "script.prom"
    result = sql.script(
        text, topics=[("in", 1, b"{", 5), ("in", 1, b"[]", 5), reading(1, "a", 1)], metrics=Prometheus(file=file)
    )
    assert result.skipped == {"readings": {"the format cannot read them": 2}}
    assert 'keyed_rows_skipped_total{query="out"} 2' in file.read_text()


def test_groups_of_a_join_by_a_foreign_key_lose_rows_whose_key_changes():
    text = """
    CREATE TABLE u (k STRING PRIMARY KEY, n INT, r STRING) WITH (KAFKA_TOPIC = 'u', VALUE_FORMAT = 'JSON');
    CREATE TABLE v (k STRING PRIMARY KEY, w INT) WITH (KAFKA_TOPIC = 'v', VALUE_FORMAT = 'JSON');
    CREATE TABLE b AS SELECT l.k AS k, l.n AS n, r.w AS w FROM u l LEFT JOIN v r ON l.r = r.k;
    CREATE TABLE g AS SELECT n, COUNT(*) AS c FROM b GROUP BY n;
    """
    records = [("u", "a", {"N": 1, "R": "x"}, 1), ("u", "a", {"N": 2, "R": "y"}, 2), ("u", "a", {"N": 3, "R": None}, 3)]
    found = sql.script(text, topics=[*records, ("u", "a", None, 4)], rows_per_batch=1)
    assert [(each.key, each.value) for each in found["b"]] == [
        *[("a", {"n": n, "w": None}) for n in (1, 2, 3)],
        ("a", None),
    ]
    assert found.table("g") == {}


@pytest.mark.parametrize(
    ("window", "place"),
    [
        ("", ""),
        ("WINDOW TUMBLING (SIZE 10 SECONDS)", ", window from 10000 to 20000"),
        ("WINDOW SESSION (10 SECONDS)", ", window from 12000 to 13000"),
    ],
)
@pytest.mark.parametrize("emit", ["CHANGES", "FINAL"])
@pytest.mark.parametrize(
    ("type_", "value", "reason"),
    [
        ("BIGINT", 2**62, "the sum 9223372036854775809 does not fit into 64 bits"),
        ("DECIMAL(38, 0)", Decimal("9" * 38), "a sum of decimals has more than 38 digits"),
    ],
)
def test_a_sum_that_does_not_fit_ends_the_query_with_its_table_key_window_and_column(
    window, place, type_, value, reason, emit
):
    text = f"""
    CREATE STREAM s (k STRING KEY, v {type_}) WITH (KAFKA_TOPIC = 's', VALUE_FORMAT = 'JSON');
    CREATE TABLE o AS SELECT k, COUNT(*) AS n, SUM(v) AS total FROM s {window} GROUP BY k {f"EMIT {emit}" * bool(window)};
    """
    records = [(key, {"V": 1}, 12_000) for key in "abcdefgh"] + [("f", {"V": value}, 13_000)] * 2
    with pytest.raises(TableOverflowError) as caught:
        sql.script(text, topics={"s": records}, rows_per_batch=100)
    assert f"table o, key k = 'f'{place}, column total: {reason}" in str(caught.value)


@pytest.mark.parametrize("window", ["TUMBLING (SIZE 10 SECONDS{})", "SESSION (2 SECONDS{})"])
@pytest.mark.parametrize("rows_per_batch", [1, 100])
def test_a_final_window_is_a_row_of_the_table_from_its_end_for_its_retention_and_none_without(
    window, rows_per_batch, tmp_path
):
    def kept(retention, folder):
        text = f"""
        CREATE STREAM s (k STRING KEY, v INT) WITH (KAFKA_TOPIC = 's', VALUE_FORMAT = 'JSON');
        CREATE TABLE o AS SELECT k, SUM(v) AS total, COUNT_DISTINCT(v) AS values FROM s
        WINDOW {window.format(retention)} GROUP BY k HAVING SUM(v) > 1 EMIT FINAL;
        """
        records = [(key, {"V": at}, 1000 * at) for at in (1, 2, 31, 61, 62) for key in "ab"]
        result = sql.script(text, topics={"s": records}, rows_per_batch=rows_per_batch, tables=tmp_path / folder)
        found = sorted((each.timestamp, each.key, each.value["total"], each.value["values"]) for each in result["o"])
        wanted = ((2000, 3, 2), (31_000, 31, 1), (62_000, 123, 2))
        assert found == [(at, key, *of) for at, *of in wanted for key in "ab"]
        assert result.run is not None
        with result.run.tables as tables:
            return {name: [row.value["total"] for row in tables[name].scan()] for name in tables}

    assert kept("", "none") == {}
    assert sorted(kept(", RETENTION 40 SECONDS", "some")["o"]) == [31, 31, 123, 123]


def test_the_states_of_joins_are_no_tables(tmp_path):
    text = (
        USERS
        + """
    CREATE TABLE regions (name STRING PRIMARY KEY, size INT) WITH (KAFKA_TOPIC='regions', VALUE_FORMAT='JSON');
    CREATE TABLE o AS SELECT users.id AS id, size FROM users JOIN regions ON users.region = regions.name;
    """
    )
    topics = [("regions", "r", {"size": 3}, 0), ("users", 1, {"region": "r", "age": 2}, 1)]
    run = sql.script(text, topics=topics, tables=str(tmp_path)).run
    assert run is not None
    with run.tables as tables:
        assert sorted(tables) == ["o", "regions", "users"]


def test_a_forked_process_opens_databases_of_its_own_and_closes_none_of_its_parent():
    """Closing one there ends the process: threads of the database are in the parent alone."""
    text = READINGS + "CREATE STREAM out AS SELECT id, CAST(name AS INT) AS n FROM readings;"
    records = [reading(1, "7", 1), reading(2, "x", 1)]
    right = [(1, {"N": 7}, 0)]
    assert written(text, records, rows_per_batch=10) == right
    before = list(engine._databases.values())
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        status = 1
        with suppress(BaseException):
            kept = [each for held in engine._inherited if isinstance(held, dict) for each in held.values()]
            found = written(text, records, rows_per_batch=10)
            status = 0 if kept == before and len(kept) == 2 and found == right else 2
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_nan_is_one_key_of_a_table():
    text = (
        "CREATE STREAM s (k DOUBLE, j INT) WITH (FORMAT = 'JSON'); CREATE TABLE g AS SELECT {0}, COUNT(*) AS n FROM s"
    )
    for keys in ("k", "k, j"):
        rows = [{"k": float("nan"), "j": 1}] * 2
        found = sql.script(text.format(keys) + f" GROUP BY {keys};", {"s": rows}, rows_per_batch=1).table("g")
        assert list(found.values()) == [{"n": 2}]


def test_times_are_no_keys():
    text = "CREATE STREAM s (k TIMESTAMP) WITH (FORMAT = 'JSON'); CREATE TABLE g AS SELECT k, COUNT(*) AS n FROM s"
    with pytest.raises(SqlError, match=r"a TIMESTAMP cannot be a key; use its milliseconds, as in epoch_ms\(at\)"):
        sql.script(text + " GROUP BY k;", {"s": []})


def test_a_key_may_be_any_text():
    text = """
    CREATE STREAM s (k STRING KEY, n INT) WITH (KAFKA_TOPIC = 's', VALUE_FORMAT = 'JSON');
    CREATE TABLE t AS SELECT k, COUNT(*) AS c FROM s GROUP BY k;
    """
    keys = ["none", "None", "null", "", "('none',)", "a"]
    found = sql.script(text, topics={"s": [(key, {"N": 1}, n) for n, key in enumerate(keys * 2)]})
    assert {key: row["c"] for key, row in found.table("t").items()} == dict.fromkeys(keys, 2)
