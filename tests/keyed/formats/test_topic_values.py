"""Values of Kafka records in JSON, Avro and Protobuf, as confluent-kafka's serializers write them."""

from __future__ import annotations

import datetime as dt
import json
import math
import pickle
import sys
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, json_format, message_factory, timestamp_pb2

import keyed
from keyed.base.schemas import schema_of
from keyed.errors import DefinitionError, ExtraNotInstalled, RowError, SinkError, SourceError
from keyed.formats.declared_formats import Format
from keyed.formats.sql_types import BadValue
from keyed.formats.topic_values import decoder, encoder
from keyed.runtimes.spark.kafka_frames import ValueDecoder
from keyed.topics import Avro, Json, Protobuf, decode_values
from tests.keyed.changelog.kafka import topics
from tests.support.data_files import read_data
from tests.support.jobs import Tally, collect
from tests.support.schema_registry import SchemaRegistry, schema_registry

BAD = keyed.OutputTag("bad")
SCHEMAS = read_data("keyed/formats/schemas.json")
CASES = read_data("keyed/formats/cases.json")
AVRO, SCHEMA = (json.dumps(SCHEMAS["sale"][each]) for each in ("avro", "json"))
#: The same with one more column, which has a default.
WIDER = json.dumps(
    {**json.loads(AVRO), "fields": [*json.loads(AVRO)["fields"], {"name": "shop", "type": "string", "default": "?"}]}
)

AT = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
SALE = {"user": "ann", "amount": 5, "at": AT}
CONTEXT = SerializationContext("sales", MessageField.VALUE)


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with schema_registry() as running:
        yield running


def client(registry):
    return SchemaRegistryClient({"url": registry.url})


def named(**conf):
    return {"subject.name.strategy.type": "TOPIC", **conf}


def message_class():
    """The class of a message with fields of every form."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(json_format.ParseDict(SCHEMAS["message"], descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Sale"))


Sale = message_class()


def message():
    made = Sale(user="ann", amount=2**60, colors=[1, 0], counts={"x": 1}, parts=[Sale(user="part")])
    made.at.FromDatetime(AT)
    return made


PLAIN = {
    "user": "ann",
    "amount": 2**60,
    "at": AT,
    "colors": ["BLUE", "RED"],
    "counts": {"x": "BLUE"},
    "parts": [{"user": "part", "amount": 0, "at": None, "colors": [], "counts": {}, "parts": []}],
}


def test_values_with_the_number_of_their_schema_are_read(registry):
    avro = AvroSerializer(client(registry), AVRO, conf=named())(SALE, CONTEXT)
    assert avro[:1] == b"\0"
    assert decoder(Avro(registry=registry.url), "sales")(avro) == SALE
    assert decoder(Avro(WIDER, registry=registry.url), "sales")(avro) == {**SALE, "shop": "?"}
    text = JSONSerializer(SCHEMA, client(registry), conf=named())({"user": "ann", "amount": 5}, CONTEXT)
    assert decoder(Json(registry=registry.url), "sales")(text) == {"user": "ann", "amount": 5}
    proto = ProtobufSerializer(Sale, client(registry), conf=named())(message(), CONTEXT)
    assert decoder(Protobuf(Sale, registry=registry.url), "sales")(proto) == PLAIN


def test_plain_values_are_read():
    from io import BytesIO

    from fastavro import parse_schema, schemaless_writer

    written = BytesIO()
    schemaless_writer(written, parse_schema(json.loads(AVRO)), SALE)
    assert decoder(Avro(AVRO), "sales")(written.getvalue()) == SALE
    assert decoder(Json(), "sales")(b'{"user": "ann", "amount": 5}') == {"user": "ann", "amount": 5}
    assert decoder(Protobuf(Sale), "sales")(message().SerializeToString()) == PLAIN


def test_json_of_a_row_has_floats_without_a_form_as_text_and_refuses_other_types():
    encode = encoder(Json(), "sales")
    row = {"weight": math.nan, "shop": None, "at": AT, "data": b"a", "sizes": [1.5, math.inf]}
    assert json.loads(encode(row)) == {
        "weight": "NaN",
        "shop": None,
        "at": "2026-01-02T03:04:05Z",
        "data": "YQ==",
        "sizes": [1.5, "Infinity"],
    }
    with pytest.raises(SinkError, match="a value of type complex cannot be written as JSON"):
        encode({"weight": 1j})


def test_values_of_another_form_are_bad(registry):
    client(registry).register_schema("sales-value", Schema(SCHEMA, "JSON"))
    values: list[tuple[Format, bytes]] = [
        (Json(), b"{"),
        (Json(), b"\xff"),
        (Json(), b"NaN"),
        (Json(), b"\xef\xbb\xbf{}"),
        (Json(), '{"amount": 5}'.encode("utf-16")),
        (Json(registry=registry.url), b'{"user": "ann", "amount": 5}'),
        (Json(registry=registry.url), b'\0\0\0\0\1{"user": 5, "amount": 5}'),
        (Avro(AVRO), b"\2"),
        (Avro('"string"'), b"\2a and more"),
        (Avro(registry=registry.url), b"text"),
        (Avro(registry=registry.url), b"x" * 20),
        (Protobuf(Sale), b"\xff"),
        (Protobuf(Sale, registry=registry.url), b"x" * 20),
    ]
    for kind, data in values:
        with pytest.raises(BadValue, match=f"it is not {type(kind).__name__}: "):
            decoder(kind, "sales")(data)


def test_a_schema_that_cannot_be_fetched_is_an_error_with_a_remedy(registry):
    unknown = b"\0\0\0\0\7data"
    for kind in (Avro(registry=registry.url), Json(registry=registry.url), Protobuf(Sale, registry=registry.url)):
        data = b"\0\0\0\0\7\0data" if isinstance(kind, Protobuf) else unknown
        with pytest.raises(SourceError, match=r"(?s)topic 'sales'.*not found.*give the registry that the producer"):
            decoder(kind, "sales")(data)
    registry.password = "secret"
    settings = {"url": registry.url, "max.retries": 0}
    with pytest.raises(SourceError, match=r"(?s)Unauthorized.*'basic.auth.user.info'"):
        decoder(Avro(registry=settings), "sales")(unknown)
    good = {**settings, "basic.auth.user.info": "user:secret"}
    with pytest.raises(SourceError, match="not found"):
        decoder(Avro(registry=good), "sales")(unknown)
    assert "secret" not in repr(Avro(registry=good))
    assert "secret" not in repr(Avro(registry="http://user:secret@registry:8081"))


def test_a_registry_that_is_down_is_an_error_with_a_remedy():
    with schema_registry() as gone:
        url = gone.url
    with pytest.raises(SourceError, match=r"(?s)from the registry http://127.*that the registry runs"):
        decoder(Avro(registry={"url": url, "max.retries": 0}), "sales")(b"\0\0\0\0\7data")


@pytest.mark.parametrize(("kind", "options", "message"), CASES["definitions of formats that are refused"])
def test_wrong_definitions_are_refused(kind, options, message):
    with pytest.raises(DefinitionError, match=message):
        getattr(keyed.topics, kind)(**options)


def test_formats_are_checked_where_they_are_used():
    with pytest.raises(DefinitionError, match="must be a format"):
        keyed.KafkaSource("sales", bootstrap="b", value=cast("Json", "json"))
    with pytest.raises(DefinitionError, match="nested too deep"):
        Json(schema='{"not":' * 150 + "{}" + "}" * 150)
    with pytest.raises(DefinitionError, match="settings of the registry"):
        decoder(Avro(registry={"url": "http://r", "typo": 1}), "sales")


#: A record that may contain itself, on the way through a union, an array and a map.
TREE, JSON_TREE = (json.dumps(SCHEMAS["tree"][each]) for each in ("avro", "json"))


def tree(records: int, way: str) -> Any:
    """A value of so many records, each in the one before."""
    value: Any = {"n": 1, "by_name": {}, "size": b"ab", "color": "BLUE", "weight": 0.5}
    for _ in range(records - 1):
        inner = {"record": value, "array": [value], "map": None}[way]
        value = {**value, "n": inner, "by_name": {"a": value} if way == "map" else {}}
    return value


@pytest.mark.parametrize("way", ["record", "array", "map"])
@pytest.mark.parametrize("has_registry", [False, True])
def test_values_of_a_recursive_avro_schema_are_64_deep_at_most(registry, has_registry, way):
    # An empty map is the last level.
    most = 63 if way == "record" else 32
    url = registry.url if has_registry else None
    of_tree = Avro(TREE, registry=url)
    encode, decode = encoder(of_tree, "sales"), decoder(of_tree, "sales")
    assert decode(encode(tree(most, way))) == tree(most, way)
    with pytest.raises(SinkError, match="maps are nested more than 64 deep"):
        encode(tree(most + 1, way))
    with pytest.raises(SinkError, match="maps are nested more than 64 deep"):
        encode(tree(100_000, way))


@pytest.mark.parametrize("has_registry", [False, True])
def test_values_that_a_recursive_schema_nests_without_end_are_bad(registry, has_registry):
    list_of = '{"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", %s]}]}'
    for schema, data in [
        (list_of % '"N"', b"\x02" * 100_000 + b"\0"),
        (list_of % '{"type": "array", "items": "N"}', b"\x02\x02" * 100_000 + b"\0" * 100_001),
        (list_of % '{"type": "map", "values": "N"}', b"\x02\x02\0" * 100_000 + b"\0" * 100_001),
        ('{"type": "record", "name": "N", "fields": [{"name": "next", "type": "N"}]}', b"\0"),
    ]:
        head = b""
        if has_registry:
            head = b"\0" + registry.registered("sales-value", {"schema": schema}).to_bytes(4)
        decode = decoder(
            Avro(None if has_registry else schema, registry=registry.url if has_registry else None), "sales"
        )
        with pytest.raises(BadValue, match="maps are nested more than 64 deep"):
            decode(head + data)
        with pytest.raises(BadValue, match="it is not Avro"):
            # Cut, and with a block of items that it does not have.
            decode(head + b"\x02\xfe\xff\xff\xff\xff\x7f")


def test_a_recursion_through_referenced_avro_schemas_is_found(registry):
    node = '{"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}'
    registry.registered("node", {"schema": node})
    names = {"references": [{"name": "Node", "subject": "node", "version": 1}]}
    wide = {"schema": '{"type": "record", "name": "Wide", "fields": [{"name": "a", "type": "Node"}]}', **names}
    head = b"\0" + registry.registered("sales-value", wide).to_bytes(4)
    decode = decoder(Avro(registry=registry.url), "sales")
    assert decode(head + b"\x02\0") == {"a": {"next": {"next": None}}}
    with pytest.raises(BadValue, match="nested more than 64 deep"):
        decode(head + b"\x02" * 100_000 + b"\0")


@pytest.mark.parametrize("way", ["record", "array"])
def test_values_of_a_recursive_json_schema_are_64_deep_and_too_deep_ones_are_errors(registry, way):
    encode = encoder(Json(schema=JSON_TREE, registry=registry.url), "sales")
    decode = decoder(Json(registry=registry.url), "sales")

    def nested(records: int) -> Any:
        value: Any = 1
        for _ in range(records):
            value = {"n": value} if way == "record" else {"n": [value] if isinstance(value, dict) else value}
        return value

    value = nested(64 if way == "record" else 32)
    data = encode(value)
    assert decode(data) == value
    with pytest.raises(SinkError, match="nested too deep"):
        encode(nested(100_000))
    with pytest.raises(BadValue, match=r"nested too deep|depth limit exceeded"):  # of the client's own parser
        decode(data[:5] + b'{"n":' * 100_000 + b"1" + b"}" * 100_000)


def test_a_reference_without_an_end_in_a_registered_json_schema_makes_values_bad(registry):
    for schema, reason in [('{"$ref": "#"}', "refers to itself"), ('{"$ref": "#/a"}', "'/a' does not exist")]:
        head = b"\0" + registry.registered("sales-value", {"schema": schema, "schemaType": "JSON"}).to_bytes(4)
        with pytest.raises(BadValue, match=reason):
            decoder(Json(registry=registry.url), "sales")(head + b"{}")


def test_json_schemas_with_references_are_accepted():
    for schema in (JSON_TREE, *CASES["JSON schemas with references"]):
        assert Json(schema=schema).schema == schema


def test_a_missing_package_is_named_before_the_first_row(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ExtraNotInstalled, match=r"fastavro.*pip install 'keyed-streams\[registry\]'"):
        keyed.KafkaSource("sales", bootstrap="b", value=Avro(AVRO))


class Total(keyed.KeyedProcessFunction):
    total = keyed.ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.total.update(self.total.value() + value.amount)
        yield value.user, self.total.value()


def totals(source, **options):
    return keyed.stream(source, **options).key_by("user").process(Total(), "user string, total bigint")


@pytest.fixture
def topic(kafka):
    return topics.created(kafka, 1)


def test_a_query_reads_values_and_diverts_bad_records_with_the_reason(kafka, topic, registry, tmp_path):
    write = AvroSerializer(client(registry), AVRO, conf=named())
    good = [write({**SALE, "amount": amount}, SerializationContext(topic, MessageField.VALUE)) for amount in (1, 2)]
    topics.produce(kafka, topic, [(b"a", good[0]), (b"b", b"no avro"), (b"c", None), (b"d", good[1])], 0)
    source = keyed.KafkaSource(topic, bootstrap=kafka, value=Avro(registry=registry.url), bounded=True)
    with pytest.raises(RowError, match=rf"(?s)topic '{topic}', partition 0, offset 1: its value cannot be read: it is"):
        totals(source, timestamp="at").run(checkpoint=tmp_path / "c")
    output = totals(source, timestamp="at", on_bad_row=BAD)
    (results, bad), run = collect(output, output.side_output(BAD), checkpoint=tmp_path / "c")
    assert results == [("ann", 1), ("ann", 3)]
    assert [(row.key, row.value, row.offset) for row in bad] == [(b"b", b"no avro", 1), (b"c", None, 2)]
    assert "it is not Avro" in bad[0].reason
    assert "tombstone" in bad[1].reason
    assert run.metrics["Total"]["rows_bad"] == 2


COLUMNS = "user string, amount bigint, at timestamp"


def records_of(*values):
    """A batch of Spark's Kafka source."""
    count = len(values)
    columns: dict[str, pa.Array[Any]] = {
        "key": pa.array([b"k"] * count),
        "value": pa.array(values, pa.binary()),
        "topic": pa.array(["sales"] * count),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.array([0] * count, pa.timestamp("us", "UTC")),
    }
    return pa.RecordBatch.from_pydict(columns)


def test_workers_decode_batches_and_keep_bad_records_with_the_reason(registry):
    good = AvroSerializer(client(registry), AVRO, conf=named())(SALE, CONTEXT)
    decode = pickle.loads(pickle.dumps(ValueDecoder(Avro(registry=registry.url), schema_of(COLUMNS))))
    batches = list(decode([records_of(good, b"no avro", None), records_of(), records_of(good)]))
    rows = pa.Table.from_batches(batches).to_pylist()
    read, bad = ("ann", 5, AT), (None, None, None)
    assert [(row["user"], row["amount"], row["at"]) for row in rows] == [read, bad, bad, read]
    assert [row["record"]["value"] for row in rows] == [None, b"no avro", None, None]
    assert [row["record"]["offset"] for row in rows] == [0, 1, 2, 0]
    reasons = [row["reason"] for row in rows]
    assert reasons[0] is reasons[3] is None
    assert "it is not Avro" in reasons[1]
    assert "tombstone" in reasons[2]


def test_values_that_do_not_fit_their_columns_are_bad_and_missing_members_are_null():
    values = [b'{"user": "ann", "more": 1}', b'{"user": "bob", "amount": "x"}', b"5", b'{"amount": 1}']
    (batch,) = ValueDecoder(Json(), schema_of("user string, amount bigint"))([records_of(*values)])
    rows = batch.to_pylist()
    assert [(row["user"], row["amount"]) for row in rows] == [("ann", None), (None, None), (None, None), (None, 1)]
    assert [row["reason"] is None for row in rows] == [True, False, False, True]
    assert "amount" in rows[1]["reason"]
    assert "of type int" in rows[2]["reason"]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["json", "avro", "protobuf"])
def test_spark_reads_values_as_the_local_runtime_does(spark_kafka, kafka, topic, registry, tmp_path, kind):
    form: Format
    field = MessageField.VALUE
    sales = [{**SALE, "amount": amount} for amount in (1, 2, 3)]
    if kind == "json":
        form = Json()
        good = [json.dumps({**sale, "at": None}).encode() for sale in sales]
    elif kind == "avro":
        form = Avro(registry=registry.url)
        write = AvroSerializer(client(registry), AVRO, conf=named())
        good = [write(sale, SerializationContext(topic, field)) for sale in sales]
    else:
        # A class that the workers can import.
        form = Protobuf(duration_pb2.Duration)
        good = [duration_pb2.Duration(seconds=n).SerializeToString() for n in (1, 2, 3)]
    topics.produce(
        kafka, topic, [(b"a", good[0]), (b"b", b"\xff bad"), (b"c", None), (b"d", good[1]), (b"e", good[2])], 0
    )
    function: keyed.KeyedProcessFunction = Total()
    columns = COLUMNS
    if kind == "protobuf":
        columns, function = "seconds bigint, nanos int", Seconds()

    def run(source, **options):
        stream = keyed.stream(source, on_bad_row=BAD).key_by(columns.split()[0])
        output = stream.process(function, "key string, total bigint", parallelism=2)
        return collect(output, output.side_output(BAD), **options)[0]

    local, local_bad = run(keyed.KafkaSource(topic, bootstrap=kafka, value=form, bounded=True))
    decoded = decode_values(topics.read_stream(spark_kafka, kafka, topic), form, columns)
    rows, bad = run(decoded, checkpoint=tmp_path / "checkpoint")
    assert sorted(map(tuple, rows)) == sorted(map(tuple, local))
    records = [row.record for row in bad]
    for each in (local_bad, records):
        assert [(row.key, row.value, row.offset) for row in each] == [(b"b", b"\xff bad", 1), (b"c", None, 2)]
    # The local message names the remedy decode= too.
    assert [row.reason.split(";")[0] for row in bad] == [row.reason.split(";")[0] for row in local_bad]


class Seconds(Tally):
    def process_element(self, value, ctx):
        for key, number in super().process_element(value, ctx):
            yield str(key), number


def test_decode_gets_records_with_decoded_values(kafka, topic):
    topics.produce(kafka, topic, [(b"a", b'{"amount": 3}'), (b"b", None)], 0)
    source = keyed.KafkaSource(
        topic,
        bootstrap=kafka,
        value=Json(),
        decode=lambda record: {"user": record.key.decode(), "amount": record.value["amount"] if record.value else -1},
        bounded=True,
    )
    assert totals(source).run().values == [("a", 3), ("b", -1)]
