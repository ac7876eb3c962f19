"""Payloads: what a packing task sends to a key group arrives as it was, is small, and damage is noticed."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyed
from keyed.base.schemas import parse_ddl
from keyed.codec.arrow_streams import write_stream
from keyed.codec.key_hash import key_hash
from keyed.engine.batch import Upstream
from keyed.errors import CorruptionError
from keyed.runtimes.spark.plan import build as plan
from keyed.runtimes.spark.worker.pack import Packer, Reading
from keyed.runtimes.spark.worker.wire import (
    HASH,
    PackedNote,
    PackedRows,
    RowsEncoder,
    TaskMark,
    encode_payload,
    encoded_mark,
    read_payload,
)
from tests.support.jobs import Pass

SCHEMA = pa.table({"k": ["a"], "v": [1]}).schema
#: The payload is one of rows.
read_rows: Any = read_payload
MARK = TaskMark(5, True, {0: Upstream(7, True)}, 1, 2, 3, {"p": 4}, True, {1: Upstream(-9)}, "its key k is null")

marks = st.builds(
    TaskMark,
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.dictionaries(st.integers(0, 500), st.builds(Upstream, st.integers(-(2**63), 2**63 - 1), st.booleans())),
    rows_bad=st.integers(0, 2**40),
    partitions=st.none() | st.dictionaries(st.text(max_size=3), st.integers(-5, 5), max_size=3),
    passed=st.dictionaries(st.integers(0, 5), st.builds(Upstream, st.integers(-5, 5))),
    bad=st.text(max_size=5),
)


def rows(count, schema=SCHEMA):
    columns: list = [pa.array([f"k{i}" for i in range(count)]), pa.array(range(count))]
    return pa.record_batch(columns, schema=schema)


@given(marks)
def test_a_mark_arrives_alone_and_behind_rows(mark):
    assert read_payload(encode_payload(mark)) == mark
    assert read_rows(RowsEncoder(SCHEMA, SCHEMA).payload(rows(3), 1, 2, encoded_mark(mark))).mark == mark


def test_a_mark_without_anything_special_is_small():
    assert len(encode_payload(TaskMark(1_700_000_000_000, False, {}))) <= 24


@pytest.mark.parametrize(
    ("schema", "planned"),
    [(SCHEMA, SCHEMA), (SCHEMA, None), (SCHEMA.with_metadata({"a": "b"}), SCHEMA)],
    ids=["planned", "combined", "other"],
)
def test_rows_arrive_with_their_schema_whatever_the_plan_expects(schema, planned):
    payload = read_rows(RowsEncoder(schema, planned, 7).payload(rows(3, schema), 4, 5))
    assert (payload.input, payload.source, payload.position) == (7, 4, 5)
    assert bool(payload.schema) == (schema is not planned)
    assert payload.table(planned).equals(pa.Table.from_batches([rows(3, schema)]), check_metadata=True)


def test_rows_with_a_dictionary_arrive():
    batch = pa.record_batch([pa.array(["a", "b", "a"]).dictionary_encode()], names=["k"])
    payload = read_rows(RowsEncoder(batch.schema, batch.schema).payload(batch, 0, 0, encoded_mark(MARK)))
    assert (payload.table(batch.schema).to_pylist(), payload.mark) == (batch.to_pylist(), MARK)


def test_few_rows_take_half_the_bytes_of_an_arrow_stream():
    assert len(RowsEncoder(SCHEMA, SCHEMA).payload(rows(5), 0, 0)) < len(write_stream(rows(5), compression="lz4")) / 2


@pytest.mark.parametrize(
    "payload",
    [
        RowsEncoder(SCHEMA, SCHEMA).payload(rows(3), 1, 2, encoded_mark(MARK)),
        RowsEncoder(SCHEMA, None).payload(rows(3), 1, 2),
        encode_payload(PackedNote(1, 2, b"note")),
        encode_payload(MARK),
    ],
    ids=["rows", "rows and schema", "note", "mark"],
)
def test_a_damaged_payload_is_refused(payload):
    read_payload(payload)
    damaged = [payload[:length] for length in range(len(payload))]
    damaged += [payload[:i] + bytes([payload[i] ^ 1 << i % 8]) + payload[i + 1 :] for i in range(len(payload))]
    for each in damaged:
        with pytest.raises(CorruptionError, match="Spark has shuffled"):
            read_payload(each)


def test_rows_of_another_schema_than_the_plan_has_are_refused():
    payload = read_rows(RowsEncoder(SCHEMA, SCHEMA).payload(rows(3), 6, 2))
    with pytest.raises(CorruptionError, match="rows of task 6 are malformed"):
        payload.table(SCHEMA.append(pa.field("more", pa.list_(pa.int64()))))


def test_a_task_of_few_rows_sends_one_payload_to_a_group():
    packer = Packer(3, (Reading("op", ("k",), ("k", "v"), None, of_source=True, schema=SCHEMA),))
    keys = [f"k{i}" for i in range(50)]
    columns: list = [pa.array(keys), pa.array(range(50)), pa.array([key_hash(key) for key in keys])]
    batch = pa.record_batch(columns, names=["k", "v", HASH])
    found = [read_rows(sent.as_py()) for packed in packer.pack(iter([batch]), 0) for sent in packed["payload"]]
    assert len(found) == 3
    assert all(each.mark is not None and not each.schema for each in found)
    assert sum(each.table(SCHEMA).num_rows for each in found) == 50


TYPES = """a boolean, b tinyint, c smallint, d int, e bigint, f float, g double, h decimal(12,3), i binary,
 j date, k timestamp, l timestamp_ntz, m interval day to second, n array<string>, o map<string,int>,
 p struct<x:int,y:array<timestamp>>, q varchar(5)"""


@pytest.mark.parametrize("steps", [False, True], ids=["source", "filtered"])
def test_the_plan_knows_the_schema_that_spark_delivers(spark, monkeypatch, steps):
    columns = [f"CAST(NULL AS {type_}) AS {name}" for name, type_ in parse_ddl(TYPES)]
    frame = spark.range(4).selectExpr("CAST(id AS STRING) AS key", "timestamp_seconds(id) AS at", *columns)
    packed = []

    def stop(frames, *_):
        packed.extend(frames)
        raise ValueError("planned")

    monkeypatch.setattr(plan, "_worked", stop)
    stream = keyed.stream(frame, timestamp="at")
    stream = stream.filter(lambda value: True) if steps else stream
    output = stream.key_by("key").process(Pass(), "key string, n int", name="op")
    with pytest.raises(ValueError, match="planned"):
        plan.build([[output.stage]], [output], 2, changelogs={})
    payloads = [read_payload(bytes(row.payload)) for row in packed[0].collect()]
    assert {each.schema for each in payloads if isinstance(each, PackedRows)} == {b""}
