"""Keys and values of Kafka records as bytes: what is written is read again, and any other bytes are a bad record."""

import base64
import datetime as dt
import json
import math
from decimal import Decimal

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from hypothesis import example, given
from hypothesis import strategies as st

from keyed.errors import DefinitionError
from keyed.formats.record_formats import RecordPart
from keyed.formats.registry_schemas import RegistrySchemas
from keyed.formats.sql_types import (
    BIGINT,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    INT,
    STRING,
    TIME,
    TIMESTAMP,
    ProtobufMessage,
    array,
    avro_schema,
    decimal,
    map_of,
    struct,
)
from keyed.formats.typed_columns import column, plain_values
from keyed.sql.definitions import Definitions
from keyed.sql.statements import parse
from tests.support.schema_registry import schema_registry

INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
#: A type, and its values.
SCALARS = {
    "b": (BOOLEAN, st.booleans()),
    "i": (INT, INT32),
    "l": (BIGINT, INT64),
    "d": (DOUBLE, st.floats(allow_nan=False)),
    "m": (decimal(8, 3), st.decimals(-99999, 99999, places=3)),
    "s": (STRING, TEXT),
    "y": (BYTES, st.binary(max_size=5)),
    "day": (DATE, st.integers(-700_000, 2_900_000)),
    "clock": (TIME, st.integers(0, 86_399_999)),
    "at": (TIMESTAMP, st.integers(-(10**13), 10**14)),
}
NESTED = {
    "many": (array(INT), st.lists(INT32, max_size=3)),
    "named": (map_of(STRING, STRING), st.dictionaries(TEXT, TEXT, max_size=3)),
    "deep": (struct(("X", INT), ("Y", STRING)), st.fixed_dictionaries({"X": INT32, "Y": TEXT})),
}


def part(format_, columns, **more):
    found = tuple((name, type_) for name, (type_, _) in columns.items())
    return RecordPart(format_, found, False, "s", "s", **more)


def written(part, *rows, registry=None):
    """The bytes of rows."""
    columns = [column([row[place] for row in rows], type_) for place, (_, type_) in enumerate(part.columns)]
    assert not any(bad for _, bad in columns)
    return part.writer(registry)([found for found, _ in columns])


def read(part, data, registry=None):
    """The rows of bytes as plain data, with the places of bad ones."""
    columns, bad = part.reader(registry)(data)
    cells = [plain_values(found, type_) for found, (_, type_) in zip(columns, part.columns, strict=True)]
    return list(zip(*cells, strict=True)), bad


@pytest.mark.parametrize("format_", ["JSON", "PROTOBUF_NOSR", "DELIMITED"])
@given(data=st.data())
def test_what_is_written_is_read_again(format_, data):
    columns = SCALARS | NESTED
    if format_ == "DELIMITED":
        # A delimited text cannot tell an empty text from null, and its reader ends at the end of a line.
        words = st.text("ab, \"'|ä", min_size=1, max_size=5).filter(lambda word: word.strip('"'))
        columns = SCALARS | {"s": (STRING, words), "y": (BYTES, st.binary(min_size=1, max_size=5))}
    rows = data.draw(st.lists(st.tuples(*(values for _, values in columns.values())), min_size=1, max_size=3))
    values = part(format_, columns)
    assert read(values, written(values, *rows)) == (rows, {})


@pytest.mark.parametrize("nullable", ["OPTIONAL", "WRAPPER", None])
@given(data=st.data())
def test_nulls_in_protobuf_are_nulls_if_they_are_represented_and_defaults_otherwise(nullable, data):
    types = {**SCALARS, "deep": (struct(("X", INT), ("Y", STRING)), NESTED["deep"][1])}
    values = part("PROTOBUF_NOSR", types, nullable=nullable)
    row = tuple(data.draw(st.none() | each) for _, each in types.values())
    deep = None if row[-1] is None else {name: data.draw(st.none() | st.just(cell)) for name, cell in row[-1].items()}
    [found], bad = read(values, written(values, (*row[:-1], deep)))
    assert bad == {}
    plain = ("INT", "BIGINT", "DOUBLE", "BOOLEAN", "STRING", "BYTES")
    for cell, back, (type_, _) in zip((*row[:-1], deep), found, types.values(), strict=True):
        if type_ == types["deep"][0] and cell is not None and nullable is None:
            assert back == {"X": cell["X"] or 0, "Y": cell["Y"] or ""}
        elif cell is None and nullable is None and type_.base in plain:
            assert not back
            assert back is not None
        else:
            assert back == cell


@pytest.mark.parametrize("format_", ["JSON", "JSON_SR", "PROTOBUF", "PROTOBUF_NOSR", "DELIMITED"])
@given(data=st.binary(max_size=40))
@example(data=b"\0\0\0\0\1\0")
@example(data=b'{"i":1e999999999,"l":"1e99","deep":{"X":[]},"named":3}')
@example(data=b"[" * 50_000)
@example(data=b'"' + b"a" * 200_000)
@example(data=b"a\rb,\0")
@example(data=b"\0\0\0\0\1\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")
@example(data=b'{"i":1}\n{"i":2}')
@example(data=b'1,{"i":1}')
def test_any_other_bytes_are_one_bad_record_of_a_batch(format_, data):
    columns = SCALARS if format_ == "DELIMITED" else SCALARS | NESTED
    values = part(format_, columns)
    row = tuple(None for _ in columns)
    good = b"\0\0\0\0\1{}" if format_ == "JSON_SR" else b"\0\0\0\0\1\0" if format_ == "PROTOBUF" else None
    good = good or written(values, row)[0]
    found, bad = read(values, [good, data, good], "http://nowhere")
    assert len(found) == 3
    assert found[0] == found[2]
    assert bad.keys() <= {1}


@pytest.mark.parametrize("place", range(4))
def test_bad_json_is_found_at_each_place_of_a_batch(place):
    values = part("JSON", {"i": (INT, None)})
    for wrong in (b"{", b"", b'{"i":1}\n{"i":2}', b'{"i":"x"}', b'{"i":1,"I":2}', b"[1]", b"\xff", b'{"i":1e99999}'):
        data = [b'{"i":%d}' % number for number in range(4)]
        data[place] = wrong
        found, bad = read(values, data)
        assert [cell for (cell,) in found] == [None if number == place else number for number in range(4)]
        assert list(bad) == [place]


def _is_text(data):
    try:
        return data.decode() is not None
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize("is_key", [True, False])
@pytest.mark.parametrize("type_", [INT, BIGINT, DOUBLE, STRING, BYTES])
@given(data=st.binary(max_size=12))
def test_bytes_of_another_length_are_a_bad_key_or_value(type_, is_key, data):
    key = RecordPart("KAFKA", (("k", type_),), is_key, "s", "s", is_wrapped=not is_key)
    [found], bad = read(key, [data])
    width = {INT: 4, BIGINT: 8, DOUBLE: 8}.get(type_)
    assert bool(bad) == (not _is_text(data) if type_ == STRING else width not in (None, len(data)))
    if bad or (type_ == DOUBLE and math.isnan(found[0])):
        return
    assert written(key, found) == [data]


def test_objects_are_text_in_the_form_that_json_has_everywhere():
    values = [{"a": b"a", "n": math.nan}, [1, Decimal("1.50"), dt.date(2026, 1, 2)], {"s": "\ud800"}]
    found, bad = column(values, STRING)
    assert found.to_pylist() == ['{"a":"YQ==","n":"NaN"}', '[1,"1.50","2026-01-02"]', None]
    assert bad == {2: "it has half a surrogate pair, which is no character"}


def test_numbers_that_json_does_not_have_are_texts():
    values = part("JSON", {"d": (DOUBLE, None)})
    for number, text in ((math.nan, b"NaN"), (math.inf, b"Infinity"), (-math.inf, b"-Infinity")):
        [value] = written(values, (number,))
        assert value == b'{"d":"' + text + b'"}'
        assert str(read(values, [value])[0][0][0]) == str(number)


def schemas_of(registry):
    return {subject: registry.schemas[number]["schema"] for subject, (number,) in registry.subjects.items()}


@pytest.mark.parametrize("option", ["VALUE_SCHEMA_FULL_NAME", "VALUE_AVRO_SCHEMA_FULL_NAME"])
@pytest.mark.parametrize("format_", ["AVRO", "JSON_SR", "PROTOBUF"])
def test_a_written_schema_has_the_name_that_the_statement_gives_it(format_, option):
    parsed, statements, values = parse(
        "CREATE STREAM a (V INT, D STRUCT<X INT>) WITH (KAFKA_TOPIC='a', VALUE_FORMAT='JSON');"
        f"CREATE STREAM b WITH (VALUE_FORMAT='{format_}', {option}='com.shop.Order') AS SELECT * FROM a;"
        "CREATE STREAM c WITH (VALUE_FORMAT='AVRO') AS SELECT * FROM b;",
        None,
    )
    queries = Definitions(parsed, values, {}, RegistrySchemas(None), {}).define(statements).queries
    named, default = (query.target.parts[1] for query in queries)
    with schema_registry() as registry:
        data = written(named, (1, {"X": 2}), registry=registry.url)
        assert read(named, data, registry.url)[0] == [(1, {"X": 2})]
        written(default, (1, None), registry=registry.url)
        text, default_text = schemas_of(registry).values()
    if format_ == "PROTOBUF":
        file = FileDescriptorProto.FromString(base64.b64decode(text))
        assert (file.package, file.message_type[0].name) == ("com.shop", "Order")
    else:
        assert json.loads(text)["title" if format_ == "JSON_SR" else "name"] == "com.shop.Order"
    assert json.loads(default_text)["name"] == "io.confluent.ksql.avro_schemas.KsqlDataSourceSchema"


def test_names_and_types_that_a_schema_does_not_have_are_refused():
    with pytest.raises(DefinitionError, match="Avro has no names like a b"):
        avro_schema([("a b", INT)], "S", wrapped=True)
    with pytest.raises(DefinitionError, match="Protocol Buffers have no names like a b"):
        ProtobufMessage([("a b", INT)], "S")
    with pytest.raises(DefinitionError, match="no arrays or maps of ARRAY<INT>; put it into a STRUCT"):
        ProtobufMessage([("A", array(array(INT)))], "S")
    with pytest.raises(DefinitionError, match="the columns are no message of Protocol Buffers"):
        ProtobufMessage([("A", map_of(DOUBLE, INT))], "S")
