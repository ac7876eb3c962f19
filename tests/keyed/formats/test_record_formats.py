"""Keys and values of Kafka records as bytes: what is written is read again, and any other bytes are a bad record."""

import math

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keyed.errors import DefinitionError
from keyed.sql.catalog import SqlSource
from keyed.formats.column_schemas import ProtobufMessage, avro_schema
from keyed.formats.sql_types import (
    BIGINT,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    INTEGER,
    STRING,
    TIME,
    TIMESTAMP,
    array,
    decimal,
    map_of,
    struct,
)
from keyed.sql.value_formats import BadRecord
from keyed.formats.record_formats import WireFormats

INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
#: A type, and its values.
SCALARS = {
    "b": (BOOLEAN, st.booleans()),
    "i": (INTEGER, INT32),
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
    "many": (array(INTEGER), st.lists(INT32, max_size=3)),
    "named": (map_of(STRING, STRING), st.dictionaries(TEXT, TEXT, max_size=3)),
    "deep": (struct(("X", INTEGER), ("Y", STRING)), st.fixed_dictionaries({"X": INT32, "Y": TEXT})),
}


def source(format_, columns):
    return SqlSource(
        "s", "STREAM", (), tuple((name, type_) for name, (type_, _) in columns.items()), "s", "NONE", format_
    )


@pytest.mark.parametrize("format_", ["JSON", "PROTOBUF_NOSR", "DELIMITED"])
@given(data=st.data())
def test_what_is_written_is_read_again(format_, data):
    columns = SCALARS | NESTED
    if format_ == "DELIMITED":
        # A delimited text cannot tell an empty text from null, and its reader ends at the end of a line.
        words = st.text("ab, \"'|ä", min_size=1, max_size=5).filter(lambda word: word.strip('"'))
        columns = SCALARS | {"s": (STRING, words), "y": (BYTES, st.binary(min_size=1, max_size=5))}
    given_ = source(format_, columns)
    row = tuple(data.draw(values) for _, values in columns.values())
    formats = WireFormats(None)
    key, value = formats.encoder(given_)((), row, None)
    assert key is None
    assert formats.value_decoder(given_)(value) == row


@pytest.mark.parametrize("nullable", ["OPTIONAL", "WRAPPER", None])
@given(data=st.data())
def test_nulls_in_protobuf_are_nulls_if_they_are_represented_and_defaults_otherwise(nullable, data):
    types = {**SCALARS, "deep": (struct(("X", INTEGER), ("Y", STRING)), NESTED["deep"][1])}
    given_ = attrs.evolve(source("PROTOBUF_NOSR", types), nullable=(None, nullable))
    row = tuple(data.draw(st.none() | values) for _, values in types.values())
    deep = None if row[-1] is None else {name: data.draw(st.none() | st.just(cell)) for name, cell in row[-1].items()}
    formats = WireFormats(None)
    _, value = formats.encoder(given_)((), (*row[:-1], deep), None)
    found = formats.value_decoder(given_)(value)
    plain = ("INTEGER", "BIGINT", "DOUBLE", "BOOLEAN", "STRING", "BYTES")
    for cell, read, (type_, _) in zip((*row[:-1], deep), found, types.values(), strict=True):
        if type_ == types["deep"][0] and cell is not None and nullable is None:
            assert read == {"X": cell["X"] or 0, "Y": cell["Y"] or ""}
        elif cell is None and nullable is None and type_.base in plain:
            assert not read
            assert read is not None
        else:
            assert read == cell


@pytest.mark.parametrize("format_", ["JSON", "JSON_SR", "PROTOBUF", "PROTOBUF_NOSR", "DELIMITED"])
@given(data=st.binary(max_size=40))
@example(data=b"\0\0\0\0\1\0")
@example(data=b'{"i":1e999999999,"l":"1e99","deep":{"X":[]},"named":3}')
@example(data=b"[" * 50_000)
@example(data=b'"' + b"a" * 200_000)
@example(data=b"a\rb,\0")
@example(data=b"\0\0\0\0\1\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")
def test_any_other_bytes_are_a_bad_record(format_, data):
    columns = SCALARS if format_ == "DELIMITED" else SCALARS | NESTED
    decode = WireFormats("http://nowhere").value_decoder(source(format_, columns))
    try:
        found = decode(data)
    except BadRecord:
        return
    assert found is None or len(found) == len(columns)


@pytest.mark.parametrize("type_", [INTEGER, BIGINT, DOUBLE, STRING, BYTES])
@given(data=st.binary(max_size=12))
def test_bytes_of_another_length_are_a_bad_key(type_, data):
    given_ = SqlSource("s", "STREAM", (("k", type_),), (), "s", "KAFKA", "NONE")
    formats = WireFormats(None)
    try:
        found = formats.key_decoder(given_)(data)
    except BadRecord:
        return
    if type_ == DOUBLE and math.isnan(found[0]):
        return
    assert formats.encoder(given_)(found, (), None)[0] == data


def test_numbers_that_json_does_not_have_are_texts():
    given_ = source("JSON", {"d": (DOUBLE, None)})
    formats = WireFormats(None)
    for number, text in ((math.nan, b"NaN"), (math.inf, b"Infinity"), (-math.inf, b"-Infinity")):
        _, value = formats.encoder(given_)((), (number,), None)
        assert value == b'{"d":"' + text + b'"}'
        assert str(formats.value_decoder(given_)(value)[0]) == str(number)


def test_names_and_types_that_a_schema_does_not_have_are_refused():
    with pytest.raises(DefinitionError, match="Avro has no names like `a b`"):
        avro_schema([("a b", INTEGER)], "S", wrapped=True)
    with pytest.raises(DefinitionError, match="Protocol Buffers have no names like `a b`"):
        ProtobufMessage([("a b", INTEGER)], "S")
    with pytest.raises(DefinitionError, match="no arrays or maps of ARRAY<INTEGER>; put it into a STRUCT"):
        ProtobufMessage([("A", array(array(INTEGER)))], "S")
    with pytest.raises(DefinitionError, match="the columns are no message of Protocol Buffers"):
        ProtobufMessage([("A", map_of(DOUBLE, INTEGER))], "S")
