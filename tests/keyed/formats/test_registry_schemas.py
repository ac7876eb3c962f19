"""Columns that come from the schemas of a topic."""

import json
from pathlib import Path

import pytest

from keyed import sql
from keyed.errors import DefinitionError, SqlError
from tests.support.data_files import read_data

FOLDER = Path(__file__).parent
READING = read_data("keyed/formats/schemas.json")["reading"]
AVRO = READING["avro"]
JSON_SCHEMA = READING["json"]
PROTOBUF = (FOLDER / "reading.proto").read_text()
PLACE = 'syntax = "proto3"; message Place { sint32 floor = 1; google.protobuf.StringValue name = 2; }'


def columns(schemas, format_, more=""):
    text = f"CREATE STREAM s WITH (KAFKA_TOPIC='in', FORMAT='{format_}'{more}); DESCRIBE s;"
    (answer,) = sql.script(text, schemas=schemas).answers
    return {row["column"]: row["type"] for row in answer.rows}


@pytest.mark.parametrize(
    ("format_", "given"),
    [
        ("AVRO", {"value": AVRO}),
        ("AVRO", {"value": json.dumps(AVRO)}),
        ("JSON_SR", {"value": JSON_SCHEMA}),
        ("PROTOBUF", {"value": PROTOBUF, "references": [PLACE]}),
    ],
    ids=["avro", "avro as text", "json", "protobuf"],
)
def test_columns_of_a_schema(format_, given):
    assert columns({"in": given}, format_) == READING["columns"][format_]


def test_names_are_those_of_the_schema():
    assert columns({"in": {"value": PROTOBUF}}, "PROTOBUF", ", VALUE_SCHEMA_FULL_NAME='Second', VALUE_SCHEMA_ID=7") == {
        "good": "BOOLEAN"
    }


def test_keys_and_values_are_read_by_their_schemas():
    """After ksqlDB's cases of ``avro`` and ``protobuf`` with key and value inference."""
    text = "CREATE STREAM s WITH (KAFKA_TOPIC='in', FORMAT='{}'); CREATE STREAM out AS SELECT * FROM s;"
    value = {"type": "record", "name": "v", "fields": [{"name": "foo", "type": "int"}]}
    avro = {"in": {"key": "int", "value": value}}
    found = sql.script(text.format("AVRO"), topics={"in": [(10, {"foo": 1}, 5), (None, {"foo": 2}, 6)]}, schemas=avro)
    assert found["out"] == [sql.OutputRecord(10, {"foo": 1}, 5), sql.OutputRecord(None, {"foo": 2}, 6)]
    message = 'syntax = "proto3"; message M {int32 k = 1;}'
    protobuf = {"in": {"key": message, "value": message.replace("k", "v")}}
    found = sql.script(text.format("PROTOBUF"), topics={"in": [({"k": 1}, {"v": 2}, 5)]}, schemas=protobuf)
    assert found["out"] == [sql.OutputRecord(1, {"v": 2}, 5)]


def test_a_declared_part_is_not_read_from_the_schema():
    """After ksqlDB's case ``avro``, "should support partial schemas"."""
    text = (
        "CREATE TABLE t (id INT PRIMARY KEY) WITH (KAFKA_TOPIC='in', VALUE_FORMAT='AVRO');"
        "CREATE TABLE out AS SELECT id, n + 1 AS n FROM t;"
    )
    schemas = {
        "in": {"key": "string", "value": {"type": "record", "name": "v", "fields": [{"name": "n", "type": "int"}]}}
    }
    assert sql.script(text, topics={"in": [(1, {"n": 4}, 0)]}, schemas=schemas).table("out") == {1: {"n": 5}}


def test_a_value_without_fields_is_the_column_rowval():
    """After ksqlDB's case ``avro``, "key and anonymous value inference"."""
    assert columns({"in": {"key": "long", "value": "int"}}, "AVRO", ", WRAP_SINGLE_VALUE=false") == {
        "ROWKEY": "BIGINT",
        "ROWVAL": "INT",
    }


@pytest.mark.parametrize(
    ("schemas", "message"),
    [
        ({"in": {"value": AVRO}, "inn": {"value": AVRO}}, "no statement names that topic; did you mean in"),
        ({"in": {"valu": AVRO}}, "unknown part 'valu'"),
        ({"in": AVRO["fields"]}, "give a dict with 'key', 'value' or both"),
        ({"in": {"value": "{"}}, "this is no AVRO schema"),
        ({"in": {"value": {"type": "record", "fields": [{"name": "a", "type": ["int", "string"]}]}}}, "several types"),
        ([], "must be a dict"),
    ],
)
def test_errors_name_the_schema(schemas, message):
    with pytest.raises(DefinitionError, match=message):
        columns(schemas, "AVRO")


def test_missing_columns_and_wrong_schema_options_are_errors_of_the_script():
    with pytest.raises(SqlError, match=r"the columns are missing: .* schemas=\{'in': \{'value': ...\}\}"):
        columns(None, "AVRO")
    with pytest.raises(SqlError, match="VALUE_SCHEMA_ID is for formats with a schema, and VALUE_FORMAT is JSON"):
        columns(None, "JSON", ", VALUE_SCHEMA_ID=1")
    with pytest.raises(DefinitionError, match="message A contains itself"):
        columns({"in": {"value": "message A {B b = 1;} message B {A a = 1;}"}}, "PROTOBUF")
