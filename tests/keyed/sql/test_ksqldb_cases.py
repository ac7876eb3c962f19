# ruff: noqa: E501 - statements stand on one line
"""Further cases after ksqlDB's functional tests; each names the case."""

import math
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
        # encode, "encode ascii"
        ("ENCODE('Ελ', 'ascii', 'hex')", "3f3f"),
        # bytes-and-strings, "convert bytes to HEX encoded string"
        ("FROM_BYTES(TO_BYTES('1aB2', 'hex'), 'hex')", "1AB2"),
        # geodistance, "geo distance with radius"
        ("GEO_DISTANCE(37.4439, -122.1663, 51.5257, -0.1122, CAST(NULL AS STRING))", pytest.approx(8634.659796579544)),
        # array-set-functions, "array_except with primitive type"
        ("ARRAY_EXCEPT(ARRAY[1], CAST(NULL AS ARRAY<INT>))", None),
        # split-to-map
        ("SPLIT_TO_MAP('apple:green/banana:yellow', '&&', ':')", {"apple": "green/banana"}),
        # split, "split all characters by using the '' delimiter", and "regexp_split_to_array"
        ("SPLIT('', '')", [""]),
        ("REGEXP_SPLIT_TO_ARRAY('aabcda', '(ab|cd)')", ["a", "", "a"]),
        # extract-json-field, "concat two extracted fields" and "array bounds"
        ("""EXTRACTJSONFIELD('{"a": "b"}}', '$.a')""", "b"),
        ("EXTRACTJSONFIELD('[1, 2]', '$[-1]')", None),
        # null, "coalesce - with parse_date"; parse-date; parse-time; stringtimestamp
        ("PARSE_DATE('2003-12-24-01', 'yyyy-MM-dd')", 12410),
        ("PARSE_DATE('JAN-2022', 'MMM-yyyy')", 18993),
        ("PARSE_TIME('01:00:00 Pm', 'hh:mm:ss a')", 46800000),
        ("STRINGTOTIMESTAMP('2020-05-11T21:58:33z', 'yyyy-MM-dd''T''HH:mm:ssX')", 1589234313000),
        # cast, "cast function with error to null without logging error"
        ("IFNULL(CAST(PARSE_DATE('abcd', 'yyyy-MM-dd') AS STRING), '1900-01-01')", "1900-01-01"),
        # create_array, "construct a list from compatible mismatching elements"; create_map, "some null key"; empty struct
        ("ARRAY[NULL, 10, '2e1', a, b]", [None, 10, 20, 1, 2]),
        ("MAP('foo' := a, NULL := a)", {"foo": 1, "null": 1}),
        ("STRUCT()", {}),
        # transform-array, "apply transform lambda function to array"; filter, "int map"; transform-map, "duplicate keys"
        ("TRANSFORM(ARRAY[5, CAST(NULL AS INT)], x => x + 5)", None),
        ("FILTER(MAP('a' := CAST(NULL AS INT), 'b' := 5), (x, y) => y % 5 = 0)", None),
        ("TRANSFORM(MAP('a' := 1, 'b' := 2), (x, y) => 'c', (x, y) => y)", None),
        # in, "boolean - valid", "int - valid", "array - valid", "struct - valid"
        ("true IN ('tr')", True),
        ("4 IN ('4.000')", True),
        ("ARRAY[a, 3] IN (ARRAY['1', 3])", True),
        ("STRUCT(A := a, B := b) IN (STRUCT(A := '1', B := 2))", True),
        # literals, "DOUBLE literal min/max"
        ("CAST(4.9E-324 AS STRING)", "4.9E-324"),
        # math, "ln"; "cot edge cases"
        ("LN(-1)", "NaN"),
        ("COT(0)", "Infinity"),
    ],
)
def test_expressions(expression, expected):
    assert computed(expression, a=1, b=2) == expected


def test_only_records_in_json_have_texts_for_numbers_that_json_lacks():
    text = IN + "CREATE STREAM out WITH (VALUE_FORMAT='AVRO') AS SELECT k, LN(-1) AS x FROM s;"
    (record,) = sql.script(text, topics={"in": [("k", {"a": 1}, 0)]})["out"]
    assert math.isnan(record.value["X"])


def test_an_alias_may_begin_with_a_digit():
    """math, "round"."""
    text = IN + "CREATE STREAM out AS SELECT k, a AS 1R FROM s;"
    assert sql.script(text, topics={"in": [("k", {"a": 1}, 0)]})["out"][0].value == {"1R": 1}


def test_a_null_key_of_several_columns_is_a_null():
    """multi-col-keys, "select * from stream"; partition-by, "multiple columns including ROWTIME"."""
    text = "CREATE STREAM s (j INT KEY, k INT KEY, v INT) WITH (KAFKA_TOPIC='in', FORMAT='JSON'); CREATE STREAM out AS SELECT * FROM s;"
    records = [({"J": 1, "K": 2}, {"V": 0}, 0), ({"J": None}, {"V": 0}, 0), (None, {"V": 0}, 0)]
    found = sql.script(text, topics={"in": records})["out"]
    assert [record.key for record in found] == [{"J": 1, "K": 2}, {"J": None, "K": None}, None]
    text = IN + "CREATE STREAM out WITH (KEY_FORMAT='JSON') AS SELECT * FROM s PARTITION BY k, a;"
    (record,) = sql.script(text, topics={"in": [(None, {"b": 1}, 0)]})["out"]
    assert record.key == {"K": None, "A": None}


def test_the_new_key_of_a_record_without_value_is_null_unless_the_old_key_has_it():
    """null, "stream PARTITION BY IS NULL with null value"; partition-by, "key expression - with null value"."""
    for key, expected in (("(a IS NULL)", None), ("(k + 'x')", "kx")):
        text = IN + f"CREATE STREAM out WITH (KEY_FORMAT='JSON') AS SELECT * FROM s PARTITION BY {key};"
        (record,) = sql.script(text, topics={"in": [("k", None, 0)]})["out"]
        assert (record.key, record.value) == (expected, None)


def test_the_key_of_a_left_join_is_the_column_of_either_side():
    """multi-joins, "stream-stream-table - left-inner"; joins, "left join - with right join column in projection"."""
    text = IN + IN.replace("STREAM s", "STREAM o").replace("'in'", "'other'")
    rows = [("in", "k", {"a": 1}, 0), ("other", "k", {"a": 2}, 1)]
    found = sql.script(
        text + "CREATE STREAM out AS SELECT o.k AS k, s.a, o.a FROM s LEFT JOIN o WITHIN 1 SECOND ON s.k = o.k;",
        topics=rows,
    )
    assert [(each.key, each.value) for each in found["out"]] == [
        ("k", {"S_A": 1, "O_A": None}),
        ("k", {"S_A": 1, "O_A": 2}),
    ]


def test_the_added_key_of_an_outer_join_is_not_among_the_columns_of_the_next_join():
    """multi-joins, "stream-stream-table - full-inner - select *" and "outer-outer"; joins, "generated column name clashes"."""
    text = "".join(
        f"CREATE STREAM {name} (id INT KEY, v INT) WITH (KAFKA_TOPIC='{name}', VALUE_FORMAT='JSON');" for name in "abc"
    )
    rows = [(name, 0, {"v": place}, place) for place, name in enumerate("cba")]
    full, within = "FROM a FULL JOIN b WITHIN 1 SECOND ON a.id = b.id", "WITHIN 1 SECOND ON a.id = c.id;"
    found = sql.script(text + f"CREATE STREAM out AS SELECT * {full} JOIN c {within}", topics=rows)["out"]
    assert found[-1] == sql.OutputRecord(0, {"A_V": 2, "B_ID": 0, "B_V": 1, "C_ID": 0, "C_V": 0}, 2)
    outer = sql.script(text + f"CREATE STREAM out AS SELECT ROWKEY, a.v, c.v {full} FULL JOIN c {within}", topics=rows)
    assert outer["out"][-1] == sql.OutputRecord(0, {"A_V": 2, "C_V": 0}, 2)
    clashing = text.replace("id INT", "ROWKEY INT").replace("v INT", "ROWKEY_1 INT")
    clashing += f"CREATE STREAM out AS SELECT ROWKEY_2, a.ROWKEY_1 AS v {full.replace('id', 'ROWKEY')};"
    assert sql.script(clashing, topics=[("a", 0, {"ROWKEY_1": 5}, 0)]).table("out") == {0: {"V": 5}}


def test_windows_of_a_join_have_the_same_start():
    """joins, "matching time-windowed - SR-enabled key format"."""
    text = "".join(
        f"CREATE STREAM {name} (id INT KEY, v INT) WITH (KAFKA_TOPIC='{name}', KEY_FORMAT='JSON_SR', VALUE_FORMAT='JSON', WINDOW_TYPE='TUMBLING', WINDOW_SIZE='{size} SECONDS');"
        for name, size in (("a", 5), ("b", 2))
    )
    text += "CREATE STREAM out AS SELECT a.id AS id, a.v, b.v FROM a JOIN b WITHIN 1 MINUTE ON a.id = b.id;"
    window = (None, None, None)
    rows = {
        "a": [(1, {"v": 1}, 0, *window, (0, 5000))],
        "b": [(1, {"v": 2}, 0, *window, (s, s + 2000)) for s in (0, 2000)],
    }
    assert sql.script(text, topics=rows)["out"] == [sql.OutputRecord(1, {"A_V": 1, "B_V": 2}, 0, (0, 5000))]
    with pytest.raises(SqlError, match="windows have the same type and size"):
        sql.script(text.replace("JSON_SR", "KAFKA"))


def test_insert_into_takes_whole_numbers_for_decimals():
    """insert-into, "implicitly casts"."""
    text = IN + "CREATE STREAM target (d DECIMAL(3, 2)) WITH (KAFKA_TOPIC='target', VALUE_FORMAT='AVRO');"
    text += "INSERT INTO target SELECT a AS d FROM s PARTITION BY NULL;"
    found = sql.script(text, topics={"in": [("k", {"a": 1}, 0), ("k", {"a": 1000}, 0)]})["target"]
    assert [str(record.value["D"]) for record in found] == ["1.00", "None"]


def test_topics_are_named_in_any_case_and_take_records_of_outputs():
    text = "CREATE STREAM readings (id INT KEY, v INT) WITH (VALUE_FORMAT='JSON'); CREATE STREAM out AS SELECT * FROM readings;"
    first = sql.script(text, topics={"readings": [(1, '{"v": 2}'), (2, {"V": 3}, None)]})["out"]
    assert first == [sql.OutputRecord(1, {"V": 2}, 0), sql.OutputRecord(2, {"V": 3}, 0)]
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
        (IN + "CREATE STREAM o AS SELECT k, ROWTIME FROM s;", "ROWTIME is a column that each source has; give it an alias"),
        (IN + "CREATE STREAM o AS SELECT k FROM s;", "no columns beside the key"),
        (IN + "CREATE STREAM o AS SELECT k, a FROM s PARTITION BY ();", "PARTITION BY takes at least one"),
        (IN + "CREATE STREAM o WITH (KEY_FORMAT='JSON') AS SELECT k, a FROM s PARTITION BY NULL;", "KEY_FORMAT is for a key"),
        (IN + "CREATE STREAM o AS SELECT k, ARRAY[1, 'not a number'] AS l FROM s;", "'not a number' is no INTEGER"),
        (IN + "CREATE STREAM o AS SELECT k, MAP('a' := a, 'b' := 'hello') AS l FROM s;", "'hello' is no INTEGER"),
        (IN + "CREATE STREAM o AS SELECT k, DATEADD(date, 5, CAST(t AS DATE)) AS l FROM s;", "DATE is no unit of time"),
        (IN + "CREATE STREAM o AS SELECT k, ARRAY[a] IN (ARRAY['x']) AS l FROM s;", "of type ARRAY<STRING> and no ARRAY<INTEGER>"),
        (IN + "CREATE STREAM o AS SELECT k, 9223372036854775808 AS l FROM s;", "goes up to 9223372036854775807"),
        (IN + "CREATE STREAM o AS SELECT k, -9223372036854775809 AS l FROM s;", "larger than the largest BIGINT"),
        (IN + "CREATE STREAM o AS SELECT k, 1.8E308 AS l FROM s;", "larger than the largest DOUBLE"),
        (IN + "CREATE STREAM o AS SELECT x.k, x.a FROM s x JOIN s y WITHIN 1 HOUR ON x.k = y.k;", "S does not join itself"),
        (IN + "CREATE STREAM o WITH (VALUE_FORMAT='AVRO') AS SELECT k, MAP(a := 1) AS x FROM s;", "keys of type STRING"),
        (IN + "CREATE STREAM o WITH (VALUE_FORMAT='AVRO') AS SELECT k, a AS `1a` FROM s;", "does not support the name `1a`"),
        ("CREATE STREAM s (k ARRAY<MAP<STRING, INT>> KEY, a INT) WITH (FORMAT='AVRO');", "of column K, is not supported"),
        ("CREATE STREAM s (k VARCHAR (KEY)) WITH (FORMAT='JSON');", "expected a whole number"),
        ("CREATE STREAM s (a INT) WITH (FORMAT='JSON', VALUE_AVRO_SCHEMA_FULL_NAME='x');", "is for formats with a schema"),
        ("CREATE STREAM s (a INT) WITH (FORMAT='AVRO', VALUE_AVRO_SCHEMA_FULL_NAME=' ');", "is empty"),
        ("CREATE STREAM s (a INT) WITH (FORMAT='AVRO', VALUE_SCHEMA_ID=1);", "and so does the list"),
        ("CREATE STREAM s (a INT, h BYTES HEADER('x')) WITH (FORMAT='JSON'); INSERT INTO s (h) VALUES (NULL);", "is of headers"),
        (T.format("x", "INT") + T.format("y", "BIGINT") + "CREATE TABLE o AS SELECT x.id, x.v FROM x JOIN y ON x.id = y.id;", "they must be the same"),
        (
            "".join(T.format(each, "INT") for each in "xyz") + "CREATE TABLE o AS SELECT x.id, y.v FROM x JOIN y ON x.id = y.id JOIN z ON x.v = z.id;",
            "is the first join of its query",
        ),
        (T.format("x", "INT").replace("WITH (", "WITH (WINDOW_TYPE='SESSION', ") + "CREATE TABLE o AS SELECT * FROM x;", "a windowed table is not read"),
        (KAFKA.format("x") + "CREATE TABLE o AS SELECT n, COUNT(*) AS c FROM x GROUP BY n;", "does not support GROUP BY"),
        (KAFKA.format("x") + KAFKA.format("y") + "CREATE STREAM o AS SELECT * FROM x JOIN y WITHIN 1 HOUR ON x.id = y.id;", "does not support JOIN"),
        (IN.replace("'JSON'", "'DELIMITED'").replace(", l ARRAY<INT>, m MAP<STRING, INT>", "") + "CREATE TABLE o AS SELECT k, AVG(a) AS c FROM s GROUP BY k;", "the format DELIMITED cannot hold"),
        (SOURCE + "DROP STREAM r DELETE TOPIC;", "the topic of R, a SOURCE, is read only"),
        (SOURCE + SOURCE.replace("SOURCE", "OR REPLACE"), "CREATE OR REPLACE is not for a SOURCE"),
        (SOURCE.replace("SOURCE", "OR REPLACE SOURCE"), "CREATE OR REPLACE is not for a SOURCE"),
    ],
)  # fmt: skip
def test_refused_statements(text, message):
    with pytest.raises(SqlError, match=r"line 1, column \d+: ") as error:
        sql.script(text)
    assert message in str(error.value)


def test_numbers_at_the_ends_of_their_range_are_literals():
    assert computed("-9223372036854775808", a=1) == -(2**63)
    assert computed("9223372036854775807", a=1) == 2**63 - 1


@pytest.mark.parametrize("name", ["collect_list", "collect_set"])
def test_a_setting_limits_collected_values(name):
    """collect-list and collect-set, "with limit of 1"."""
    text = IN + f"CREATE TABLE out AS SELECT k, {name}(a) AS x FROM s GROUP BY k;"
    records = [("k", {"a": number}, 0) for number in (0, 100)]
    setting = f"ksql.functions.{name}.limit"
    for before, properties in (("", {setting: "1"}), (f"SET '{setting}' = '1';", None)):
        found = sql.script(before + text, topics={"in": records}, properties=properties)
        assert [each.value["X"] for each in found["out"]] == [[0], [0]]
    with pytest.raises(SqlError, match="is 'x'; set it to a number"):
        sql.script(text, properties={setting: "x"})
    with pytest.raises(SqlError, match="SUM has no limit of values; COLLECT_LIST, COLLECT_SET have one"):
        sql.script(text.replace(name, "sum"), properties={"ksql.functions.sum.limit": "1"})


@pytest.mark.parametrize("stamp", ["x", None])
def test_a_setting_refuses_records_without_a_timestamp(stamp):
    """timestamp-extractor, "source throw on invalid timestamp extractor with format"."""
    text = """
    CREATE STREAM s (k STRING KEY, ts STRING) WITH (KAFKA_TOPIC='in', VALUE_FORMAT='JSON', TIMESTAMP='ts', TIMESTAMP_FORMAT='yy-MM-dd');
    CREATE STREAM out AS SELECT k, ts FROM s;
    """
    topics = {"in": [("k", {"ts": stamp}, 5)]}
    assert sql.script(text, topics=topics).skipped == {"S": {"no usable timestamp": 1}}
    with pytest.raises(SourceError, match=r"topic in: the record with the key 'k' .* has no usable timestamp"):
        sql.script(text, topics=topics, properties={"ksql.timestamp.throw.on.invalid": "true"})


def test_all_columns_of_joined_windows_have_their_bounds():
    """joins, "matching time-windowed - SR-enabled key format"."""
    options = "KEY_FORMAT='JSON_SR', VALUE_FORMAT='JSON', WINDOW_TYPE='TUMBLING', WINDOW_SIZE='2 SECONDS'"
    text = f"""
    CREATE STREAM s1 (id INT KEY, v INT) WITH (KAFKA_TOPIC='one', {options});
    CREATE STREAM s2 (id INT KEY, v INT) WITH (KAFKA_TOPIC='two', {options});
    CREATE STREAM out AS SELECT * FROM s1 JOIN s2 WITHIN 1 MINUTE ON s1.id = s2.id;
    """
    one, two = [(1, {"V": 1}, 0, None, None, None, (0, 2000))], [(1, {"V": 4}, 0, None, None, None, (0, 2000))]
    (record,) = sql.script(text, topics={"one": one, "two": two})["out"]
    bounds = {f"S{n}_WINDOW{end}": at for n in (1, 2) for end, at in (("START", 0), ("END", 2000))}
    assert record.value == {"S1_V": 1, "S2_ID": 1, "S2_V": 4, **bounds}


@pytest.mark.parametrize("nullable", ["OPTIONAL", "WRAPPER"])
def test_protobuf_represents_nulls_if_it_is_asked_to(nullable):
    """protobuf, "protobuf primitives with null and nullable as optional"."""
    options = f"VALUE_FORMAT='PROTOBUF_NOSR', VALUE_PROTOBUF_NULLABLE_REPRESENTATION='{nullable}'"
    text = f"""
    CREATE STREAM s (k STRING KEY, i INT, t STRING) WITH (KAFKA_TOPIC='in', {options});
    CREATE STREAM out WITH ({options}) AS SELECT * FROM s;
    """
    rows = [{"I": None, "T": ""}, {"I": 0, "T": None}]
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
    assert [each.value for each in found["out"]] == [{"C": Decimal("10.01")}]
