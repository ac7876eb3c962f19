"""Scripts over topics of a real Kafka broker: formats of keys and values, offsets, exactly-once outputs."""

import json
import struct
import time
from pathlib import Path

import confluent_kafka
import pytest

from keyed import sql
from keyed.errors import CheckpointError, DefinitionError, KeyedError, SourceError
from tests.keyed.changelog.kafka import topics
from tests.support.data_files import read_data
from tests.support.schema_registry import schema_registry
from tests.support.sql_files import read_scripts
from tests.support.waiting import until

SCRIPTS = read_scripts(Path(__file__).with_name("scripts.sql"))
#: The hour that has begun: Kafka would delete and compact records of 1970.
NOW = int(time.time()) // 3600 * 3_600_000
SOLD = SCRIPTS["sold"]
TYPES, VALUES = read_data("keyed/sql/expressions.json")["values of all types"]


def send(kafka, topic, *records):
    """Send records: key, value, timestamp, and optionally a partition."""
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka})
    for key, value, at, *partition in records:
        producer.produce(topic, value, key, partition=partition[0] if partition else 0, timestamp=at)
    assert producer.flush(30) == 0


def received(kafka, topic, partitions=1):
    """The committed records of a topic: key, value and timestamp."""
    found = [each for number in range(partitions) for each in topics.messages(kafka, topic, number)]
    return [(each.key(), each.value(), each.timestamp()[1]) for each in found]


@pytest.fixture
def make_topics(kafka):
    """Return a function that makes new topics."""

    def make(*partitions):
        names = [topics.new_topic() for _ in partitions]
        for name, count in zip(names, partitions, strict=True):
            # The timestamps are those of 1970.
            topics.create(kafka, name, count, retention_ms=-1)
        return names if len(names) > 1 else names[0]

    return make


@pytest.fixture
def run(kafka, tmp_path):
    def run(text, streams=None, **options):
        given = {each: options.pop(each) for each in ("registry", "settings") if each in options}
        options = {"checkpoint": tmp_path / "state", "kafka": sql.Kafka(kafka, bounded=True, **given)} | options
        return sql.script(text, streams, **options)

    return run


def test_a_table_is_written_record_by_record_and_goes_on(kafka, make_topics, run):
    sales, sold = make_topics(1), topics.new_topic()
    text = SOLD.format(sales=sales, sold=sold)
    send(kafka, sales, (b"Big", b'{"tickets": 4}', NOW), (b"Rio", b'{"tickets": 1}', NOW + 6))
    send(kafka, sales, (b"Big", b'{"TICKETS": 3}', NOW + 9))
    assert run(text, rows_per_batch=1).records == {}
    assert run(text).run.batches == 0
    send(kafka, sales, (b"Big", b'{"tickets": 3}', NOW + 8), (b"Rio", b"{tickets", NOW + 8))
    send(kafka, sales, (b"Rio", b'{"tickets": 2}', NOW + 10))
    assert run(text, rows_per_batch=1).skipped == {"sales": {"the format cannot read them": 1}}
    # A row that no longer fits HAVING becomes a tombstone.
    assert received(kafka, sold) == [
        (b"Big", b'{"n":4}', NOW),
        (b"Rio", b'{"n":1}', NOW + 6),
        (b"Big", b'{"n":7}', NOW + 9),
        (b"Big", None, NOW + 9),
        (b"Rio", b'{"n":3}', NOW + 10),
    ]
    assert topics.described(kafka, sold)["cleanup.policy"] == "compact"
    assert topics.described(kafka, sales)["cleanup.policy"] == "delete"


def test_rows_given_to_a_stream_do_not_take_the_partitions_of_a_topic_that_it_does_not_name(kafka, make_topics, run):
    other, target = make_topics(3), topics.new_topic()
    text = SCRIPTS["rows_to_a_topic"].format(other=other, target=target)
    run(text, {other: [{"title": str(number), "n": number} for number in range(9)]})
    assert len(received(kafka, target, 1)) == 9


def test_partitions_and_topics_are_merged_by_timestamp(kafka, make_topics, run):
    sales, films = make_topics(2, 1)
    text = SCRIPTS["sales_with_films_by_time"].format(sales=sales, films=films)
    send(kafka, sales, *((b"Big", json.dumps({"n": n}).encode(), n, n % 2) for n in (1, 3, 5, 7, 9, 2, 4, 6, 8)))
    send(kafka, films, *((b"Big", json.dumps({"genre": g, "at": at}).encode(), 0) for g, at in (("a", 3), ("b", 6))))
    found = [(each.value["n"], each.value["genre"]) for each in run(text)["joined"]]
    assert found == [(n, None if n < 3 else "a" if n < 6 else "b") for n in range(1, 10)]


def test_a_batch_without_rows_of_a_partition_does_not_pass_them(kafka, make_topics, run):
    source = make_topics(2)
    text = SCRIPTS["numbers"].format(source=source)
    send(kafka, source, *((b"a", json.dumps({"n": n}).encode(), n + 1, n // 4) for n in range(8)))
    found: list[int | None] = []

    def take(_, records, batch):
        if batch == 1 and not found[2:]:
            found.append(None)
            raise ValueError("the second batch fails once")
        found.extend(each.value["n"] for each in records)

    with pytest.raises(KeyedError, match="fails once"):
        run(text, on_records=take, rows_per_batch=2)
    run(text, on_records=take, rows_per_batch=2)
    assert found == [0, 1, None, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("formats", "key", "value"),
    [
        ("KEY_FORMAT = 'KAFKA', VALUE_FORMAT = 'DELIMITED'", struct.pack(">q", 7), b'"a,b",1.50'),
        ("FORMAT = 'JSON'", b"7", b'{"a":"a,b","b":1.50}'),
        ("KEY_FORMAT = 'DELIMITED', VALUE_FORMAT = 'JSON'", b"7", b'{"a":"a,b","b":1.50}'),
    ],
)
def test_records_have_the_bytes_of_their_formats(kafka, make_topics, run, formats, key, value):
    source, target = make_topics(1), topics.new_topic()
    text = SCRIPTS["decimals_copied"].format(source=source, formats=formats, target=target)
    send(kafka, source, (key, value, 3), (key, None, 4), (None, value, 5), (b"\xff", value, 6), (key, b"\xff", 7))
    # A record without a value is no row of a stream.
    assert run(text).skipped["s"] == {"the format cannot read them": 3}
    assert received(kafka, target) == [(key, value, 3), (None, value, 5)]


def test_windowed_keys_end_with_their_bounds_and_are_read_again(kafka, make_topics, run, tmp_path):
    source, hours, sessions = make_topics(1), topics.new_topic(), topics.new_topic()
    text = SCRIPTS["counts_of_hours_and_sessions"].format(source=source, hours=hours, sessions=sessions)
    send(kafka, source, (b"a", b'{"n": 1}', NOW), (b"a", b'{"n": 1}', NOW + 5))
    run(text, rows_per_batch=1)
    start, end = struct.pack(">q", NOW), struct.pack(">q", NOW + 5)
    assert received(kafka, hours) == [(b"a" + start, b'{"c":1}', NOW), (b"a" + start, b'{"c":2}', NOW + 5)]
    assert received(kafka, sessions)[-1] == (b"a" + end + start, b'{"c":2}', NOW + 5)
    read = SCRIPTS["windows_read_again"]
    for topic, window, ends in (
        (hours, "WINDOW_TYPE = 'TUMBLING', WINDOW_SIZE = '1 HOUR'", NOW + 3_600_000),
        (sessions, "WINDOW_TYPE = 'SESSION'", NOW + 5),
    ):
        [found] = run(read.format(topic, window), checkpoint=tmp_path / topic)["t"]
        assert (found.key, found.window, found.value["e"]) == ("a", (NOW, ends), ends)


@pytest.mark.parametrize("format_", ["JSON_SR", "AVRO", "PROTOBUF", "PROTOBUF_NOSR", "JSON"])
def test_all_types_go_through_a_format_and_back(kafka, make_topics, run, tmp_path, format_):
    source, coded, plain = make_topics(1), topics.new_topic(), topics.new_topic()
    send(kafka, source, (struct.pack(">i", 3), json.dumps(VALUES).encode(), 8), (struct.pack(">i", 4), b'{"i": 6}', 9))
    with schema_registry() as registry:
        given = {"registry": registry.url}
        write = SCRIPTS["all_types_written"].format(types=TYPES, source=source, coded=coded, format=format_)
        run(write, **given)
        read = SCRIPTS["all_types_read"].format(types=TYPES, coded=coded, format=format_, plain=plain)
        run(read, checkpoint=tmp_path / "second", **given)
        subjects = {f"{coded}-key", f"{coded}-value"}
        assert registry.subjects.keys() == (subjects if format_ in ("JSON_SR", "AVRO", "PROTOBUF") else set())
    (key, full, time), (_, sparse, _) = received(kafka, plain)
    assert (key, time) == (struct.pack(">i", 3), 8)
    assert json.loads(full) == VALUES | {"m": -12.5}
    assert b'"m":-12.50' in full
    found = {name: value for name, value in json.loads(sparse).items() if value}
    assert found == {"i": 6}


def test_a_record_that_avro_cannot_read_is_skipped_and_a_registry_that_is_gone_ends_the_run(kafka, make_topics, run):
    source = make_topics(1)
    text = SCRIPTS["avro_read"].format(source=source)
    with schema_registry() as registry:
        number = registry.registered(
            "other", {"schema": '{"type":"record","name":"r","fields":[{"name":"x","type":"int"}]}'}
        )
        header = struct.pack(">bI", 0, number)
        send(kafka, source, (None, header + b"\x06", 1), (None, b"\x00\x00", 2), (None, b"{}", 3))
        result = run(text, registry=registry.url)
        assert [each.value for each in result["b"]] == [{"x": 3}]
        assert result.skipped == {"a": {"the format cannot read them": 2}}
        url = registry.url
    send(kafka, source, (None, header + b"\x08", 4))
    with pytest.raises(SourceError, match="check the address and that the registry runs"):
        run(text, registry=url)


def test_numbers_that_would_fill_the_memory_are_skipped(kafka, make_topics, run):
    source = make_topics(1)
    text = SCRIPTS["numbers_with_times"].format(source=source)
    values = [b'{"x":1e999999999,"at":1}', b'{"x":1,"at":1e30}', b"[" * 100_000, b'{"x":1,"at":1}', b'{"x":2,"at":2}']
    send(kafka, source, *((b"k", value, 5) for value in values))
    result = run(text)
    assert [each.value for each in result["b"]] == [{"x": 1}, {"x": 2}]
    assert result.skipped == {"a": {"the format cannot read them": 3}}


def test_headers_partitions_and_offsets_are_columns(kafka, make_topics, run):
    source = make_topics(2)
    text = SCRIPTS["headers_and_offsets"].format(source=source)
    topics.produce_all(kafka, source, 1, [(None, b'{"x":1}', None), (None, b'{"x":2}', [("h", b"\x01")])])
    found = [each.value for each in run(text)["b"]]
    assert [(each["x"], each["h"], each["p"], each["o"]) for each in found] == [(1, None, 1, 0), (2, b"\x01", 1, 1)]
    assert found[0]["t"] > 1_500_000_000_000


def test_files_and_topics_are_read_together(kafka, make_topics, run, tmp_path):
    sales = make_topics(1)
    (tmp_path / "films.jsonl").write_text('{"title": "Big", "genre": "comedy"}\n')
    text = SCRIPTS["sales_with_films"].format(sales=sales)
    send(kafka, sales, (b"Big", b'{"n":1}', 5))
    given = {"films": str(tmp_path / "films.jsonl")}
    assert [each.value["genre"] for each in run(text, given)["joined"]] == ["comedy"]
    send(kafka, sales, (b"Big", b'{"n":2}', 6))
    assert [each.value["n"] for each in run(text, given)["joined"]] == [2]


def test_a_script_that_is_started_follows_its_topics_until_it_is_stopped(kafka, make_topics, tmp_path):
    sales, sold = make_topics(1), topics.new_topic()
    text = (
        SOLD.format(sales=sales, sold=sold) + "CREATE STREAM big AS SELECT title, tickets FROM sales WHERE tickets > 5;"
    )
    got: list[tuple[str, int]] = []
    cluster = sql.Kafka(kafka, batch_interval=50)
    query = sql.start(
        text,
        kafka=cluster,
        on_records=lambda name, records, _: got.extend((name, each.value["tickets"]) for each in records),
        checkpoint=tmp_path / "state",
        tables=tmp_path / "tables",
    )
    for number in (6, 7):
        send(kafka, sales, (b"Big", json.dumps({"tickets": number}).encode(), number))
        until(lambda: ("big", number) in got or not query.is_active)  # noqa: B023 - asked before the next one
    query.stop()
    assert got == [("big", 6), ("big", 7)]
    assert received(kafka, sold) == [(b"Big", b'{"n":6}', 6), (b"Big", None, 7)]
    with query.tables as tables:
        assert tables.sql("select title, n from sold").to_pylist() == []


def test_auto_offset_reset_begins_streams_at_their_end_and_tables_at_their_start(kafka, make_topics, run):
    sales, films = make_topics(1, 1)
    text = SCRIPTS["from_the_latest"].format(sales=sales, films=films)
    send(kafka, films, (b"Big", b'{"genre":"a"}', 1))
    send(kafka, sales, (b"Big", b'{"n":1}', 2))
    assert run(text)["joined"] == []
    send(kafka, sales, (b"Big", b'{"n":2}', 3))
    assert [each.value["n"] for each in run(text)["joined"]] == [2]


def test_insert_into_writes_the_topic_of_its_stream(kafka, make_topics, run):
    first, second, target = make_topics(1, 1), topics.new_topic(), topics.new_topic()
    first, second = first
    text = SCRIPTS["two_streams_into_one"].format(first=first, second=second, target=target)
    send(kafka, first, (b"k", b'{"x":1}', 1))
    send(kafka, second, (b"k", b'{"x":2}', 2))
    assert run(text).table("counts") == {"k": {"n": 2}}
    assert received(kafka, target, 3) == [(b"k", b'{"x":1}', 1), (b"k", b'{"x":2}', 2)]


def test_what_a_deployed_script_cannot_do_is_refused_before_anything_is_created(kafka, make_topics, run, tmp_path):
    sales, sold = make_topics(1), topics.new_topic()
    text = SOLD.format(sales=sales, sold=sold)
    refused = {
        text.replace("'JSON'", "'AVRO'"): "sales: values in the format AVRO need a schema registry",
        text.replace(f"KAFKA_TOPIC = '{sales}', ", ""): "sales has no rows: name its topic",
        text + "INSERT INTO sales (title, tickets) VALUES ('a', 1);": "does not insert rows into a Kafka topic",
        text + "INSERT INTO sales SELECT * FROM sales;": "its records would come twice",
        text.replace("'JSON'", "'JSON', PARTITIONS = 2"): "has 1; leave the option out",
    }
    for wrong, message in refused.items():
        with pytest.raises(DefinitionError, match=message):
            run(wrong)
    with pytest.raises(DefinitionError, match="that needs a checkpoint"):
        run(text, checkpoint=None)
    with pytest.raises(SourceError, match=f"sales: Kafka at {kafka} has no topic"):
        run(text.replace(sales, topics.new_topic()))
    assert not topics.made(kafka, sold)
    assert not (tmp_path / "state").exists()
    # With PARTITIONS the topic of a stream is created too.
    fresh = topics.new_topic()
    run(text.replace(f"'{sales}'", f"'{fresh}', PARTITIONS = 2"))
    assert topics.made(kafka, fresh)
    send(kafka, fresh, (b"Big", b'{"tickets": 4}', NOW))
    run(text.replace(f"'{sales}'", f"'{fresh}', PARTITIONS = 2"))
    with pytest.raises(DefinitionError, match="sales, which a query reads, has no rows"):
        run(text.replace(f"'{sales}'", f"'{fresh}', PARTITIONS = 2"), kafka=None)
    with pytest.raises(CheckpointError, match="and this run reads none"):
        run(text.replace(f"'{sales}'", f"'{fresh}', PARTITIONS = 2"), {"sales": []}, kafka=None)
    with pytest.raises(CheckpointError, match="read the same ones, or start from a new checkpoint"):
        run(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bootstrap": ""}, "Kafka: bootstrap='' must be text"),
        ({"bounded": "yes"}, "Kafka: bounded='yes' must be True or False"),
        ({"registry": "localhost:8081"}, "Kafka: registry='localhost:8081' must be an address"),
        ({"settings": {"group.id": "x", "isolation.level": "read_uncommitted"}}, "keyed sets this itself"),
        ({"transactional_id": ""}, "Kafka: transactional_id='' must be text"),
    ],
)
def test_the_parameters_of_a_cluster_are_checked(options, message):
    with pytest.raises(DefinitionError, match=message):
        sql.Kafka(**{"bootstrap": "localhost:9092"} | options)


def test_a_script_without_statements_is_refused():
    for text in ("", " -- nothing\n"):
        with pytest.raises(DefinitionError, match="the text has no statements"):
            sql.script(text)
