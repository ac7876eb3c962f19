# ruff: noqa: E501 - statements stand on one line
"""Further cases after ksqlDB's functional tests; each names the case."""

from decimal import Decimal

import pytest

from keyed import sql
from keyed.errors import DefinitionError, SourceError, SqlError

IN = "CREATE STREAM s (k STRING KEY, a INT, b BIGINT, t STRING, l ARRAY<INT>, m MAP<STRING, INT>) WITH (KAFKA_TOPIC='in', VALUE_FORMAT='JSON');"


def computed(expression, **row):
    """The value of an expression over one row."""
    text = IN + f"CREATE STREAM out AS SELECT k, {expression} AS x FROM s;"
    (record,) = sql.script(text, topics={"in": [("k", row, 0)]})["out"]
    return record.value["x"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        # split, "split all characters by using the '' delimiter", and "regexp_split_to_array"
        ("REGEXP_SPLIT_TO_ARRAY('aabcda', '(ab|cd)')", ["a", "", "a"]),
        # split-to-map
        ("SPLIT_TO_MAP('apple:green/banana:yellow:1', '/', ':')", {"apple": "green", "banana": "yellow"}),
        # url, "encode a url parameter", "decode a url parameter"
        ("URL_ENCODE_PARAM('?foo $bar+')", "%3Ffoo+%24bar%2B"),
        ("URL_DECODE_PARAM('%3Ffoo+%24bar%2B')", "?foo $bar+"),
        # stringtimestamp, with DuckDB's patterns
        ("STRINGTOTIMESTAMP('2020-05-11T21:58:33', '%Y-%m-%dT%H:%M:%S')", 1589234313000),
        # create_array, "construct a list from compatible mismatching elements"
        ("ARRAY[NULL, 10, '2', a, b]", [None, 10, 2, 1, 2]),
        # transform-array, "apply transform lambda function to array"
        ("LIST_TRANSFORM(ARRAY[5, CAST(NULL AS INT)], lambda x: x + 5)", [10, None]),
        # array, "entries sorted"; slice; to_json_string
        ("ENTRIES(MAP('b' := a, 'a' := 3), true)", [{"K": "a", "V": 3}, {"K": "b", "V": 1}]),
        ("SLICE(ARRAY[1, 2, 3], 2, 3)", [2, 3]),
        ("TO_JSON_STRING(ARRAY[1, a])", "[1,1]"),
        ("TO_JSON_STRING(t)", "null"),
        # in, "boolean - valid", "int - valid", "array - valid", "struct - valid"
        ("true IN ('t')", True),
        ("4 IN ('4')", True),
        ("ARRAY[a, 3] IN (ARRAY['1', 3])", True),
        ("STRUCT(A := a, B := b) IN (STRUCT(A := '1', B := 2))", True),
    ],
)
def test_expressions(expression, expected):
    assert computed(expression, a=1, b=2) == expected


def test_a_null_key_of_several_columns_is_a_null():
    """multi-col-keys, "select * from stream"; partition-by, "multiple columns including ROWTIME"."""
    text = "CREATE STREAM s (j INT KEY, k INT KEY, v INT) WITH (KAFKA_TOPIC='in', FORMAT='JSON'); CREATE STREAM out AS SELECT * FROM s;"
    records = [({"J": 1, "K": 2}, {"V": 0}, 0), ({"J": None}, {"V": 0}, 0), (None, {"V": 0}, 0)]
    found = sql.script(text, topics={"in": records})["out"]
    assert [record.key for record in found] == [{"j": 1, "k": 2}, {"j": None, "k": None}, {"j": None, "k": None}]
    text = IN + "CREATE STREAM out WITH (KEY_FORMAT='JSON') AS SELECT * FROM s PARTITION BY k, a;"
    (record,) = sql.script(text, topics={"in": [(None, {"b": 1}, 0)]})["out"]
    assert record.key == {"k": None, "a": None}


def test_all_columns_with_a_new_key_have_the_key_that_is_computed():
    """partition-by, "key expression"."""
    text = IN + "CREATE STREAM out WITH (KEY_FORMAT='JSON') AS SELECT * FROM s PARTITION BY (k || 'x');"
    (record,) = sql.script(text, topics={"in": [("k", {"a": 1}, 0)]})["out"]
    assert record.key == "kx"
    assert (record.value["k"], record.value["a"]) == ("k", 1)


def test_the_key_of_a_left_join_is_the_column_of_either_side():
    """multi-joins, "stream-stream-table - left-inner"; joins, "left join - with right join column in projection"."""
    text = IN + IN.replace("STREAM s", "STREAM o").replace("'in'", "'other'")
    rows = [("in", "k", {"a": 1}, 0), ("other", "k", {"a": 2}, 1)]
    found = sql.script(
        text + "CREATE STREAM out AS SELECT o.k AS k, s.a, o.a FROM s LEFT JOIN o WITHIN 1 SECOND ON s.k = o.k;",
        topics=rows,
    )
    assert [(each.key, each.value) for each in found["out"]] == [("k", {"s_a": 1, "o_a": 2})]


def test_the_added_key_of_an_outer_join_is_not_among_the_columns_of_the_next_join():
    """multi-joins, "stream-stream-table - full-inner - select *" and "outer-outer"; joins, "generated column name clashes"."""
    text = "".join(
        f"CREATE STREAM {name} (id INT KEY, v INT) WITH (KAFKA_TOPIC='{name}', VALUE_FORMAT='JSON');" for name in "abc"
    )
    rows = [(name, 0, {"v": place}, place) for place, name in enumerate("cba")]
    full, within = "FROM a FULL JOIN b WITHIN 1 SECOND ON a.id = b.id", "WITHIN 1 SECOND ON a.id = c.id;"
    found = sql.script(text + f"CREATE STREAM out AS SELECT * {full} JOIN c {within}", topics=rows)["out"]
    assert found[-1] == sql.OutputRecord(0, {"a_v": 2, "b_id": 0, "b_v": 1, "c_id": 0, "c_v": 0}, 2)
    outer = sql.script(text + f"CREATE STREAM out AS SELECT ROWKEY, a.v, c.v {full} FULL JOIN c {within}", topics=rows)
    assert outer["out"][-1] == sql.OutputRecord(0, {"a_v": 2, "c_v": 0}, 2)
    clashing = text.replace("id INT", "ROWKEY INT").replace("v INT", "ROWKEY_1 INT")
    clashing += f"CREATE STREAM out AS SELECT ROWKEY_2, a.ROWKEY_1 AS v {full.replace('id', 'ROWKEY')};"
    assert sql.script(clashing, topics=[("a", 0, {"ROWKEY_1": 5}, 0), ("a", 1, {}, 10**8)]).table("out") == {
        0: {"v": 5}
    }


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


T = "CREATE TABLE {} (id {} PRIMARY KEY, v INT) WITH (KAFKA_TOPIC='t', VALUE_FORMAT='JSON', KEY_FORMAT='AVRO');"
SOURCE = "CREATE SOURCE STREAM r (k STRING KEY, v INT) WITH (KAFKA_TOPIC='r', VALUE_FORMAT='JSON');"
KAFKA = "CREATE STREAM {0} (id BIGINT KEY, n STRING) WITH (KAFKA_TOPIC='{0}', VALUE_FORMAT='KAFKA');"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (IN + "CREATE STREAM o AS SELECT k, ROWTIME FROM s;", "ROWTIME is a column that each source has; give it another alias"),
        (IN + "CREATE STREAM o AS SELECT k FROM s;", "no columns beside the key"),
        (IN + "CREATE STREAM o AS SELECT k, a FROM s PARTITION BY ();", "PARTITION BY takes an expression, or NULL"),
        (IN + "CREATE STREAM o WITH (KEY_FORMAT='JSON') AS SELECT k, a FROM s PARTITION BY NULL;", "KEY_FORMAT is for a key"),
        (IN + "CREATE STREAM o AS SELECT k, 9223372036854775808 AS l FROM s;", "no type HUGEINT; write CAST"),
        (IN + "CREATE STREAM o AS SELECT k, -9223372036854775809 AS l FROM s;", "no type HUGEINT; write CAST"),
        (IN + "CREATE STREAM o AS SELECT x.k, x.a FROM s x JOIN s y WITHIN 1 HOUR ON x.k = y.k;", "s does not join itself"),
        (IN + "CREATE STREAM o WITH (VALUE_FORMAT='AVRO') AS SELECT k, a AS `1a` FROM s;", "does not support the name 1a"),
        ("CREATE STREAM s (k ARRAY<MAP<STRING, INT>> KEY, a INT) WITH (FORMAT='AVRO');", "of column k, is not supported"),
        ("CREATE STREAM s (k VARCHAR (KEY)) WITH (FORMAT='JSON');", "expected a whole number"),
        ("CREATE STREAM s (a INT) WITH (FORMAT='JSON', VALUE_AVRO_SCHEMA_FULL_NAME='x');", "is for formats with a schema"),
        ("CREATE STREAM s (a INT) WITH (FORMAT='AVRO', VALUE_AVRO_SCHEMA_FULL_NAME=' ');", "is empty"),
        ("CREATE STREAM s (a INT) WITH (FORMAT='AVRO', VALUE_SCHEMA_ID=1);", "and so does the list"),
        ("CREATE STREAM s (a INT, h BYTES HEADER('x')) WITH (FORMAT='JSON'); INSERT INTO s (h) VALUES (NULL);", "is of headers"),
        (T.format("x", "INT") + T.format("y", "BIGINT") + "CREATE TABLE o AS SELECT x.id, x.v FROM x JOIN y ON x.id = y.id;", "are of types INT and BIGINT; use CAST"),
        (
            "".join(T.format(each, "INT") for each in "xyz") + "CREATE TABLE o AS SELECT x.id, y.v FROM x JOIN y ON x.id = y.id JOIN z ON x.v = z.id;",
            "is the first join of its query"
        ),
        (T.format("x", "INT").replace("WITH (", "WITH (WINDOW_TYPE='SESSION', ") + "CREATE TABLE o AS SELECT * FROM x;", "a windowed table is not read"),
        (KAFKA.format("x") + KAFKA.format("y") + "CREATE STREAM o AS SELECT * FROM x JOIN y WITHIN 1 HOUR ON x.id = y.id;", "does not support JOIN"),
        (SOURCE + "DROP STREAM r DELETE TOPIC;", "the topic of r, a SOURCE, is read only"),
        (SOURCE + SOURCE.replace("SOURCE", "OR REPLACE"), "CREATE OR REPLACE is not for a SOURCE"),
        (SOURCE.replace("SOURCE", "OR REPLACE SOURCE"), "CREATE OR REPLACE is not for a SOURCE")
    ]
)  # fmt: skip
def test_refused_statements(text, message):
    with pytest.raises(SqlError, match=r"line 1, column \d+: ") as error:
        sql.script(text)
    assert message in str(error.value)


def test_numbers_at_the_ends_of_their_range_are_literals():
    assert computed("-9223372036854775808", a=1) == -(2**63)
    assert computed("9223372036854775807", a=1) == 2**63 - 1


def test_a_pattern_of_java_is_a_bad_row_and_no_text_of_its_own():
    assert computed("FORMAT_TIMESTAMP(FROM_UNIXTIME(b), '%Y')", b=0) == "1970"
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


@pytest.mark.parametrize("rows_per_batch", [1, 2, 4])
def test_structs_of_any_batch_are_read(rows_per_batch):
    """more-complex-struct, "complex struct select star"; DuckDB refuses structs of a slice."""
    types = "a STRUCT<x INT, y ARRAY<STRUCT<z INT>>, w STRUCT<v STRUCT<u INT>>>, m MAP<STRING, STRUCT<q INT>>, l ARRAY<STRUCT<q STRING>>"
    text = f"CREATE STREAM s (k INT KEY, {types}) WITH (FORMAT='JSON');"
    text += "CREATE STREAM o AS SELECT k, a->x AS x, a->w->v->u AS u, a->y[1]->z AS z, m['u']->q AS q, l[1]->q AS t FROM s WHERE a->x <> 3;"
    rows = [
        {"k": i, "a": {"x": i, "y": [{"z": i}], "w": {"v": {"u": i}}}, "m": {"u": {"q": i}}, "l": [{"q": str(i)}, None]}
        for i in range(9)
    ]
    result = sql.script(text, {"s": rows}, rows_per_batch=rows_per_batch)
    wanted = [{"x": i, "u": i, "z": i, "q": i, "t": str(i)} for i in range(9) if i != 3]
    assert ([each.value for each in result["o"]], result.skipped) == (wanted, {})


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("COALESCE(SUM(a), 0)", 5),
        ("CAST(SUM(a) AS DOUBLE) / 2", 2.5),
        ("CASE WHEN (SUM(a) > 1) AND (COUNT(*) IN (1, 2)) THEN (1) ELSE (2) END", 1),
        ("EXTRACT(year FROM epoch_ms(MAX(b)))", 1970),
        ("NULLIF(COUNT(a), 1)", None),
    ],
)
def test_expressions_around_aggregates(expression, expected):
    text = IN + f"CREATE TABLE out AS SELECT k, {expression} AS x FROM s GROUP BY k HAVING COUNT(*) IN (1);"
    assert sql.script(text, topics={"in": [("k", {"a": 5, "b": 1}, 0)]}).table("out") == {"k": {"x": expected}}


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


@pytest.mark.parametrize("rows_per_batch", [1, 100])
def test_times_of_a_day_are_times_in_expressions_and_milliseconds_elsewhere(rows_per_batch):
    """time, "casting - time to string" and "greater than - time string"; greatest, "test greatest with times"."""
    text = "CREATE STREAM s (k TIME KEY, t TIME, u STRUCT<m MAP<STRING, TIME>, l ARRAY<TIME>>) WITH (KAFKA_TOPIC='in', FORMAT='JSON');"
    text += "CREATE STREAM s2 (k TIME KEY, t TIME) WITH (KAFKA_TOPIC='in', FORMAT='JSON');"
    text += "CREATE STREAM o AS SELECT k, t, CAST(t AS STRING) AS s, GREATEST(t, k) AS g, hour(t) AS h, u->m['x']::STRING AS x, u->l AS l FROM s WHERE t > '00:00:01';"
    text += "CREATE TABLE p AS SELECT k, MAX(t) AS m, CAST(MIN(t) AS STRING) AS n FROM s GROUP BY k HAVING MAX(t) >= k;"
    text += "CREATE STREAM q AS SELECT a.t AS k, CAST(b.t AS STRING) AS t FROM s a JOIN s2 b WITHIN 1 DAY ON a.t = b.t;"
    first = {"t": 3_605_000, "u": {"m": {"x": 3000}, "l": [1000, None]}}
    records = [(1000, first, 0), (1000, {"t": 500}, 1), (2000, {"t": 1}, 2)]
    result = sql.script(text, topics={"in": records}, rows_per_batch=rows_per_batch)
    row = {"t": 3_605_000, "s": "01:00:05", "g": 3_605_000, "h": 1, "x": "00:00:03", "l": [1000, None]}
    assert [(each.key, each.value) for each in result["o"]] == [(1000, row)]
    assert result.table("p") == {1000: {"m": 3_605_000, "n": "00:00:00.5"}}
    found = {each.key: each.value for each in result["q"]}
    assert found == {3_605_000: {"t": "01:00:05"}, 500: {"t": "00:00:00.5"}, 1: {"t": "00:00:00.001"}}


def test_a_bad_row_among_times_of_a_day_is_one_row():
    text = "CREATE STREAM s (k STRING KEY, t TIME) WITH (KAFKA_TOPIC='in', FORMAT='JSON'); CREATE STREAM o AS SELECT k, t + INTERVAL 1 HOUR AS t, CAST(k AS TIME) AS n FROM s;"
    result = sql.script(text, topics={"in": [(k, {"t": 1000}, 0) for k in ("00:00:01", "lots", "23:59:59.5")]})
    assert [each.value for each in result["o"]] == [{"t": 3_601_000, "n": 1000}, {"t": 3_601_000, "n": 86_399_500}]
    assert result.skipped == {"o": {"an expression fails": 1}}


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("REGEXP_EXTRACT('[a-z]+', t)", "takes the text first, and the pattern after it"),
        ("STRUCT()", "a STRUCT has a field or more"),
    ],
)
def test_calls_that_mean_something_else_in_duckdb_are_refused(expression, message):
    with pytest.raises(SqlError, match=message):
        computed(expression, t="x")


@pytest.mark.parametrize(
    "clauses",
    ["(a + b) AS x, SUM(a + b) AS y FROM s GROUP BY a + b", "a + b AS x, SUM((a + b)) AS y FROM s GROUP BY ((a + b))"],
)
def test_brackets_around_an_expression_do_not_matter(clauses):
    """group-by, "complex UDAF params matching GROUP BY"."""
    text = IN + f"CREATE TABLE out AS SELECT {clauses}; CREATE STREAM p AS SELECT a, b FROM s PARTITION BY (a);"
    result = sql.script(text, topics={"in": [("k", {"a": 1, "b": 2}, 0)]})
    assert (result.table("out"), [each.key for each in result["p"]]) == ({3: {"y": 3}}, [1])


def test_headers_are_declared_in_any_case():
    """headers, "Can create and query stream with HEADERS column"."""
    text = "CREATE STREAM s (k VARCHAR(STRING) KEY, h ARRAY<STRUCT<key STRING, value BYTES>> HEADERS) WITH (KAFKA_TOPIC='in', FORMAT='JSON');"
    text += "CREATE STREAM o AS SELECT k, h[1]->KEY AS name FROM s;"
    (record,) = sql.script(text, topics={"in": [("k", {}, 0, 0, 0, [("abc", b"x")])]})["o"]
    assert record.value == {"name": "abc"}


@pytest.mark.parametrize(
    ("query", "at"),
    [
        ("CREATE TABLE o AS SELECT l, COUNT(*) AS n FROM s GROUP BY l;", "l;"),
        ("CREATE TABLE o AS SELECT u, COUNT(*) AS n FROM s GROUP BY u;", "u;"),
        ("CREATE STREAM p AS SELECT * FROM s; CREATE STREAM o AS SELECT s.l AS l, s.a FROM s JOIN p WITHIN 1 DAY ON s.l = p.l;", "s.l = "),
        ("CREATE TABLE o (k INT PRIMARY KEY) WITH (KAFKA_TOPIC='o', FORMAT='JSON'); CREATE TABLE p (l ARRAY<INT> PRIMARY KEY) WITH (KAFKA_TOPIC='o', FORMAT='JSON');", "CREATE TABLE p")
    ]
)  # fmt: skip
def test_values_with_parts_are_no_keys(query, at):
    """group-by, "JSON group by struct"; joins, "on ARRAY column"."""
    text = IN.replace("t STRING", "u STRUCT<x INT>") + query
    with pytest.raises(
        SqlError, match=r"(cannot be a key; use its parts|is not supported; give each part a column)"
    ) as found:
        sql.script(text, topics={"in": []})
    assert f"column {text.index(at) + 1}:" in str(found.value)


def test_the_rows_of_an_output_have_the_times_of_its_column():
    """timestampformat, "override output timestamp for CSAS" and "for CTAS"; join-with-custom-timestamp."""
    text = (
        IN
        + "CREATE STREAM o WITH (TIMESTAMP='B') AS SELECT k, b FROM s; CREATE STREAM p AS SELECT k, ROWTIME AS r FROM o;"
    )
    text += "CREATE STREAM q WITH (TIMESTAMP='t', TIMESTAMP_FORMAT='%Y-%m-%d') AS SELECT k, t FROM s WHERE b > 0;"
    records = [("x", {"b": 7, "t": "1970-01-02"}, 1000), ("y", {"b": -1}, 1), ("z", {}, 2)]
    result = sql.script(text, topics={"in": records})
    assert [(each.key, each.timestamp) for each in result["o"]] == [("x", 7)]
    assert [(each.value, each.timestamp) for each in result["p"]] == [({"r": 7}, 7)]
    assert [each.timestamp for each in result["q"]] == [86_400_000]
    assert result.skipped == {"o": {"an expression fails": 2}}
    text = IN.replace("STREAM s (k STRING KEY", "TABLE s (k STRING PRIMARY KEY")
    text += "CREATE TABLE o WITH (TIMESTAMP='b') AS SELECT k, b FROM s;"
    result = sql.script(text, topics={"in": [("x", {"b": 7}, 1000)]})
    assert [(each.value, each.timestamp) for each in result["o"]] == [({"b": 7}, 7)]


TIMED = "CREATE STREAM o WITH (TIMESTAMP='b') AS SELECT k, b FROM s; CREATE STREAM q AS SELECT * FROM o;"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (TIMED + "CREATE TABLE p AS SELECT k, COUNT(*) AS n FROM q WINDOW TUMBLING (SIZE 1 DAY) GROUP BY k;", "times of q; declare TIMESTAMP where"),
        (TIMED + "CREATE STREAM p AS SELECT s.k AS k, s.a AS a FROM s JOIN q WITHIN 1 DAY ON s.k = q.k;", "times of q; declare TIMESTAMP where"),
        ("CREATE TABLE p WITH (TIMESTAMP='n') AS SELECT k, COUNT(*) AS n FROM s GROUP BY k;", "the rows of aggregates and ranks have the times"),
        ("SET 'ksql.timestamp.throw.on.invalid' = 'true';" + TIMED, "TIMESTAMP is where the rows are declared"),
        ("CREATE STREAM p (k STRING KEY, b BIGINT) WITH (FORMAT='JSON', TIMESTAMP='b'); INSERT INTO p SELECT k, b FROM s;", "p has the times of its column b")
    ]
)  # fmt: skip
def test_times_that_would_make_rows_late_or_would_not_be_those_of_the_rows_are_refused(query, message):
    with pytest.raises(SqlError, match=message):
        sql.script(IN + query, topics={"in": []})


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
