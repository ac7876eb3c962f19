# ruff: noqa: E501 - statements stand on one line
"""Further cases after ksqlDB's functional tests; each names the case."""

from decimal import Decimal

import pytest

from keyed import sql
from keyed.errors import DefinitionError, SourceError, SqlError

IN = "CREATE STREAM s (k STRING KEY, a INT, b BIGINT, t STRING, l ARRAY<INT>, m MAP<STRING, INT>) WITH (KAFKA_TOPIC='in', VALUE_FORMAT='JSON');"


def test_topics_are_named_in_any_case_and_take_records_of_outputs():
    text = "CREATE STREAM readings (id INT KEY, v INT) WITH (VALUE_FORMAT='JSON'); CREATE STREAM out AS SELECT * FROM readings;"
    first = sql.script(text, topics={"readings": [(1, '{"v": 2}'), (2, {"V": 3}, None)]})["out"]
    assert first == [sql.OutputRecord(1, {"v": 2}, 0), sql.OutputRecord(2, {"v": 3}, 0)]
    assert sql.script(text, topics={"READINGS": first})["out"] == first
    assert sql.script(text, topics={"readings": []})["out"] == []


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([(1, {}, "0")], "a timestamp is a number of milliseconds"),
        ([(1, {}, 0, None, None, None, 5)], r"a window is \(start, end\)"),
    ],
)
def test_a_record_that_is_none_is_an_error(records, message):
    with pytest.raises(DefinitionError, match=message):
        sql.script(IN + "CREATE STREAM out AS SELECT * FROM s;", topics={"in": records})


def test_a_pattern_of_java_is_a_bad_row_and_no_text_of_its_own():
    text = IN + "CREATE STREAM out AS SELECT k, FORMAT_TIMESTAMP(FROM_UNIXTIME(b), 'yyyy-MM-dd') AS x FROM s;"
    found = sql.script(text, topics={"in": [("k", {"b": 0}, 0)]})
    assert (found["out"], found.skipped) == ([], {"out": {"an expression fails": 1}})


@pytest.mark.parametrize("name", ["collect_list", "collect_set"])
def test_a_setting_limits_collected_values(name):
    """collect-list and collect-set, "with limit of 1"."""
    text = IN + f"CREATE TABLE out AS SELECT k, {name}(a) AS x FROM s GROUP BY k;"
    records = [("k", {"a": number}, 0) for number in (0, 100)]
    setting = f"ksql.functions.{name}.limit"
    for before, properties in (("", {setting: "1"}), (f"SET '{setting}' = '1';", None)):
        found = sql.script(before + text, topics={"in": records}, properties=properties, rows_per_batch=1)
        assert [each.value["x"] for each in found["out"]] == [[0], [0]]
    with pytest.raises(SqlError, match="is 'x'; set it to a number from 1"):
        sql.script(text, properties={setting: "x"})
    with pytest.raises(SqlError, match="SUM has no limit of values; COLLECT_LIST, COLLECT_SET have one"):
        sql.script(text.replace(name, "sum"), properties={"ksql.functions.sum.limit": "1"})


@pytest.mark.parametrize("stamp", ["x", None])
def test_a_setting_refuses_records_without_a_timestamp(stamp):
    """timestamp-extractor, "source throw on invalid timestamp extractor with format"."""
    text = """
    CREATE STREAM s (k STRING KEY, ts STRING) WITH (KAFKA_TOPIC='in', VALUE_FORMAT='JSON', TIMESTAMP='ts', TIMESTAMP_FORMAT='%Y-%m-%d');
    CREATE STREAM out AS SELECT k, ts FROM s;
    """
    topics = {"in": [("k", {"ts": stamp}, 5)]}
    assert sql.script(text, topics=topics).skipped == {"s": {"no usable timestamp": 1}}
    with pytest.raises(SourceError, match=r"s: topic in, record 0 has no usable timestamp"):
        sql.script(text, topics=topics, properties={"ksql.timestamp.throw.on.invalid": "true"})


@pytest.mark.parametrize("nullable", ["OPTIONAL", "WRAPPER"])
def test_protobuf_represents_nulls_if_it_is_asked_to(nullable):
    """protobuf, "protobuf primitives with null and nullable as optional"."""
    options = f"VALUE_FORMAT='PROTOBUF_NOSR', VALUE_PROTOBUF_NULLABLE_REPRESENTATION='{nullable}'"
    text = f"""
    CREATE STREAM s (k STRING KEY, i INT, t STRING) WITH (KAFKA_TOPIC='in', {options});
    CREATE STREAM out WITH ({options}) AS SELECT * FROM s;
    """
    rows = [{"i": None, "t": ""}, {"i": 0, "t": None}]
    found = sql.script(text, topics={"in": [("k", row, 0) for row in rows]})
    assert [each.value for each in found["out"]] == rows
    with pytest.raises(SqlError, match="must be 'OPTIONAL' or 'WRAPPER'"):
        sql.script(text.replace(f"'{nullable}'", "'NULL'"))
    with pytest.raises(SqlError, match="is for the formats PROTOBUF, and VALUE_FORMAT is JSON"):
        sql.script(text.replace("PROTOBUF_NOSR", "JSON"))


def test_parameters_of_a_decimal_come_in_any_order():
    """protobuf, "protobuf inference - partial schema"."""
    parameters = '{ value: "4", key: "precision" }, { value: "2", key: "scale" }'
    schema = (
        'syntax = "proto3"; import "confluent/type/decimal.proto"; message A {'
        f"confluent.type.Decimal c = 1 [(confluent.field_meta) = {{ params: [{parameters}]}}];}}"
    )
    text = "CREATE STREAM s (k STRING KEY) WITH (KAFKA_TOPIC='in', VALUE_FORMAT='PROTOBUF'); CREATE STREAM out AS SELECT * FROM s;"
    found = sql.script(text, topics={"in": [("k", {"c": 10.01}, 0)]}, schemas={"in": {"value": schema}})
    assert [each.value for each in found["out"]] == [{"c": Decimal("10.01")}]


def test_values_in_kafkas_own_format_are_bytes_or_data():
    """kafka, "INT"."""
    text = "CREATE STREAM s (k INT KEY, v INT) WITH (KAFKA_TOPIC='in', FORMAT='KAFKA'); CREATE STREAM o AS SELECT * FROM s;"
    records = [(b"\0\0\0\1", b"\0\0\0\7", 0), (2, 8, 1), (3, {"v": 9}, 2)]
    found = sql.script(text, topics={"in": records})["o"]
    assert [(each.key, each.value["v"]) for each in found] == [(1, 7), (2, 8), (3, 9)]


def test_delimited_values_are_bytes_text_or_data():
    text = "CREATE STREAM s (k INT KEY, v STRING, w INT) WITH (KAFKA_TOPIC='in', FORMAT='DELIMITED'); CREATE STREAM o AS SELECT * FROM s;"
    records = [(1, b'"a,b",1', 0), ("2", "c,2", 1), (3, {"v": "d,", "W": 3}, 2), (4, {"v": None}, 3)]
    found = sql.script(text, topics={"in": records})["o"]
    assert [(each.key, *each.value.values()) for each in found] == [
        (1, "a,b", 1),
        (2, "c", 2),
        (3, "d,", 3),
        (4, None, None),
    ]


def test_headers_are_declared_in_any_case():
    """headers, "Can create and query stream with HEADERS column"."""
    text = "CREATE STREAM s (k VARCHAR(STRING) KEY, h ARRAY<STRUCT<key STRING, value BYTES>> HEADERS) WITH (KAFKA_TOPIC='in', FORMAT='JSON');"
    text += "CREATE STREAM o AS SELECT k, h[1]->KEY AS name FROM s;"
    (record,) = sql.script(text, topics={"in": [("k", {}, 0, 0, 0, [("abc", b"x")])]})["o"]
    assert record.value == {"name": "abc"}


@pytest.mark.parametrize("topics", [{"in": [], "MADE": []}, [("made", "k", {"a": 1}, 0)]])
def test_records_of_a_topic_that_a_query_writes_are_refused(topics):
    """joins, "table join pipeline"."""
    text = IN + "CREATE STREAM o WITH (KAFKA_TOPIC='made') AS SELECT k, a FROM s;"
    with pytest.raises(DefinitionError, match=r"(?i)'made'.*a query writes that topic; give the records that it reads"):
        sql.script(text, topics=topics)


@pytest.mark.parametrize("window", ["TUMBLING (SIZE 1 SECOND)", "SESSION (1 SECOND)"])
def test_a_windowed_table_has_its_rows_after_the_end_of_the_input(window, tmp_path):
    text = IN + f"CREATE TABLE out AS SELECT k, COUNT(*) AS n FROM s WINDOW {window} GROUP BY k;"
    run = sql.script(text, topics={"in": [("k", {"a": 1}, 5), ("k", {"a": 1}, 7)]}, tables=tmp_path).run
    assert run is not None
    with run.tables as tables:
        assert tables.sql("SELECT k, n FROM out").to_pylist() == [{"k": "k", "n": 2}]


def test_final_results_of_equal_times_come_in_the_order_of_their_windows():
    text = (
        IN
        + "CREATE TABLE out AS SELECT k, COUNT(*) AS n FROM s WINDOW HOPPING (SIZE 3 SECONDS, ADVANCE BY 1 SECOND, GRACE PERIOD 0 SECONDS) GROUP BY k EMIT FINAL;"
    )
    found = sql.script(text, topics={"in": [(k, {}, 5000) for k in ("b", "a")]})["out"]
    assert [each.window and each.window[0] for each in found] == [3000, 3000, 4000, 4000, 5000, 5000]


def test_a_stream_over_a_topic_that_a_query_writes_is_refused_without_records():
    """session-windows, "session start stream"."""
    text = (
        IN
        + "CREATE STREAM o WITH (KAFKA_TOPIC='made') AS SELECT k, a FROM s; CREATE STREAM p (k STRING KEY, a INT) WITH (KAFKA_TOPIC='made', VALUE_FORMAT='JSON'); CREATE STREAM q AS SELECT * FROM p;"
    )
    with pytest.raises(DefinitionError, match="p, which a query reads, has no rows; give them"):
        sql.script(text, topics=[("in", "k", {"a": 1}, 0)])
    found = sql.script(text, topics=[("in", "k", {"a": 1}, 0), ("made", "m", {"a": 2}, 0)])
    assert [each.key for each in found["q"]] == ["m"]
