"""The Kafka sink on a real broker: each row once for readers of committed records, in every format."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import socket
import threading
import time
from contextlib import closing
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

import keyed
from keyed.changelog.kafka.marked_writer import committed
from keyed.destinations.kafka import TopicWriter
from keyed.destinations.sink import Owner
from keyed.errors import DefinitionError, SinkError
from keyed.formats.declared_formats import Format
from keyed.formats.topic_values import decoder, encoder
from keyed.kafka.client import Transactions
from keyed.testing.sink_conformance import SinkConformance
from keyed.topics import Avro, Json, KafkaSink, Protobuf
from tests.keyed.changelog.kafka import topics
from tests.keyed.formats.test_topic_values import AT, AVRO, PLAIN, SALE, SCHEMA, Sale, message, named
from tests.support.schema_registry import schema_registry
from tests.support.waiting import until

NOW = int(time.time() * 1000)


@pytest.fixture
def topic(kafka):
    return topics.created(kafka, 2)


def records(kafka, topic):
    """The committed records: key and value."""
    source = keyed.KafkaSource(topic, bootstrap=kafka, bounded=True)
    return sorted((row.key, row.value) for row in source if row is not keyed.PAUSE)


class TestKafkaSink(SinkConformance):
    @pytest.fixture(autouse=True)
    def _broker(self, kafka):
        self.kafka = kafka
        self.topics: dict[Any, str] = {}

    def make_sink(self, path):
        if path not in self.topics:
            self.topics[path] = topics.created(self.kafka, 2)
        return KafkaSink(self.topics[path], bootstrap=self.kafka, key="name")

    def read(self, path):
        return [(row["name"], row["n"]) for row in (json.loads(value) for _, value in self._records(path))]

    def _records(self, path):
        return records(self.kafka, self.topics[path])


def written(writer, batch, *numbers):
    writer.write(writer.records([{"user": "ann", "shop": 1, "n": n} for n in numbers]), batch)


def test_a_batch_that_comes_again_is_skipped_and_another_query_is_refused(kafka, topic, caplog):
    sink = KafkaSink(topic, bootstrap=kafka, key=("user", "shop"))
    first, again = TopicWriter(sink, Owner(["q1"])), TopicWriter(sink, Owner(["q1"]))
    written(first, 0, 5, 6)
    written(again, 0, 6, 5)
    written(again, 1, 7)
    with pytest.raises(SinkError, match=f"transactional_id='keyed-{topic}'"):
        written(first, 2, 8)  # the earlier writer is fenced
    assert caplog.text.count("came again") == 0
    written(again, 1, 7, 8)  # with more input: no row is lost
    assert caplog.text.count("batch 1 came again with other rows") == 1
    # A restored query may have other batches.
    restored = TopicWriter(sink, Owner(["q1", "q2"]))
    written(restored, 1, 9)
    with pytest.raises(SinkError, match="give another transactional_id="):
        TopicWriter(sink, Owner(["q3"])).claim()
    for writer in (first, again, restored):
        writer.close()
        writer.close()
    found = records(kafka, topic)
    assert {key for key, _ in found} == {b'{"user":"ann","shop":1}'}
    assert sorted(json.loads(value)["n"] for _, value in found) == [5, 6, 7, 7, 8, 9]


def test_encode_returns_key_value_and_timestamp_of_a_record(kafka, topic):
    def encode(row):
        return row["key"], row["value"], row["time"]

    sink = KafkaSink(topic, bootstrap=kafka, encode=encode)
    writer = TopicWriter(sink, Owner(["q"]))
    rows = [(b"a", b"1", NOW), (b"a", None, NOW + 1), (None, b"2", None)]
    writer.write(writer.records([{"key": key, "value": value, "time": at} for key, value, at in rows]), 0)
    with pytest.raises(SinkError, match=r"encode returned \('a', b'1', None\); it must return a tuple of key"):
        writer.records([{"key": "a", "value": b"1", "time": None}])
    for never in (-1, 1 << 63):
        with pytest.raises(SinkError, match="an int from 0 on"):
            writer.records([{"key": b"a", "value": b"1", "time": never}])
    writer.close()
    found = [each for number in range(2) for each in topics.messages(kafka, topic, number)]
    of_a = [each for each in found if each.key() == b"a"]
    assert [(each.value(), each.timestamp()[1]) for each in of_a] == [(b"1", NOW), (None, NOW + 1)]
    assert [each.value() for each in found if each.key() is None] == [b"2"]
    with pytest.raises(DefinitionError, match="encode=5 must be a function"):
        KafkaSink(topic, bootstrap=kafka, encode=5)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="leave out key= and value="):
        KafkaSink(topic, bootstrap=kafka, encode=encode, key="k")


def producers():
    gc.collect()
    return sum(isinstance(each, Producer) for each in gc.get_objects())


def test_an_error_that_is_kept_keeps_no_client(kafka, topic):
    before = producers()
    first, again = (TopicWriter(KafkaSink(topic, bootstrap=kafka), Owner(["q"])) for _ in range(2))
    written(first, 0, 5)
    again.claim()
    with pytest.raises(SinkError) as kept:
        written(first, 1, 6)
    again.close()
    assert kept.value.__cause__ is not None
    assert producers() <= before


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [pytest.param("deliver", marks=pytest.mark.long), "commit_offset", pytest.param("commit", marks=pytest.mark.long)],
)
def test_a_broker_that_is_gone_is_an_error_within_the_time_of_the_sink(broker, call, monkeypatch):
    """The client's own commit of an offset would wait for five minutes."""
    topic = topics.created(broker.bootstrap, 2)
    sink = KafkaSink(topic, bootstrap=broker.bootstrap, timeout=2_000)
    writer = TopicWriter(sink, Owner(["q"]))
    written(writer, 0, 5)
    original, found = getattr(Transactions, call), []
    monkeypatch.setattr(Transactions, call, lambda *arguments: (broker.kill(), original(*arguments)))

    def write():
        with pytest.raises(SinkError, match=r"no broker answered|has not accepted") as error:
            written(writer, 1, 6)
        found.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        until(lambda: found, seconds=150)
    finally:
        broker.start()
        thread.join()


class Same(keyed.KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield ctx.get_current_key(), value["n"]


@pytest.mark.parametrize(("seconds", "calls"), [(1, ["send", "commit_offset"]), (-60, ["commit_offset", "send"])])
def test_records_are_sent_first_unless_the_last_transaction_may_be_incomplete(
    kafka, topic, monkeypatch, seconds, calls
):
    """The client repeats a refused request for records later than one for an offset."""
    made = []

    def noted(name, original):
        def call(*given):
            made.append(name)
            return original(*given)

        return call

    for name in calls:
        monkeypatch.setattr(Transactions, name, noted(name, getattr(Transactions, name)))
    with closing(TopicWriter(KafkaSink(topic, bootstrap=kafka), Owner(["q"]))) as writer:
        written(writer, 0, 5)
        writer._writer._committed_at = time.monotonic() - seconds
        made.clear()
        written(writer, 1, 6)
    assert made == calls
    assert len(records(kafka, topic)) == 2


def work(kafka, topic, folder, started):
    started.set()
    rows = [{"k": "abc"[n % 3], "n": n} for n in range(300)]
    output = keyed.stream(rows).key_by("k").process(Same(), "k string, n bigint")
    output.run(KafkaSink(topic, bootstrap=kafka, key="k"), checkpoint=folder, rows_per_batch=5)


@pytest.mark.slow
def test_a_job_that_is_killed_at_any_moment_writes_each_row_once(kafka, topic, tmp_path):
    """``KEYED_KILLS`` is the number of kills, and ``KEYED_SEED`` repeats a run's moments."""
    seed = os.environ.get("KEYED_SEED") or str(time.time_ns())
    random, kills, most = Random(seed), 0, int(os.environ.get("KEYED_KILLS", "8"))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    seconds = 1.0
    while kills < most:
        name = topics.created(kafka, 2)
        exits: list[int | None] = []
        while 0 not in exits:
            started = context.Event()
            process = context.Process(target=work, args=(kafka, name, tmp_path / name, started))
            process.start()
            assert started.wait(300)
            begun = time.perf_counter()
            process.join(random.random() * seconds if kills < most else None)
            if process.is_alive():
                process.kill()
                kills += 1
            process.join()
            exits.append(process.exitcode)
        seconds = max(seconds, time.perf_counter() - begun)
        assert set(exits) <= {0, -signal.SIGKILL}
        numbers = sorted(json.loads(value)["n"] for _, value in records(kafka, name))
        assert numbers == list(range(300)), f"KEYED_SEED={seed}"


def test_rows_wait_for_a_topic_and_a_transactional_id():
    """A query whose rows wait is refused with another sink: those of other ids."""
    sink = KafkaSink("t", bootstrap="127.0.0.1:1", transactional_id="i")
    assert TopicWriter(sink, Owner(["q"])).id == "topic 't' with transactional_id='i'"


def test_a_query_that_has_written_nothing_leaves_its_transactional_id_to_others(kafka, topic):
    sink = KafkaSink(topic, bootstrap=kafka)
    for query in ("q1", "q2"):
        with closing(TopicWriter(sink, Owner([query]))) as writer:
            writer.claim()
    # One that is killed before its first batch has been written knows that it has not.
    with closing(TopicWriter(sink, Owner(["q2"]))) as writer:
        writer.claim(0)
        written(writer, 0, 5)
    with (
        closing(TopicWriter(sink, Owner(["q3"]))) as writer,
        pytest.raises(SinkError, match="another query has written"),
    ):
        writer.claim()
    assert len(records(kafka, topic)) == 1


def test_values_in_avro_are_registered_and_read_by_others(kafka, topic):
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    with schema_registry() as registry:
        sink = KafkaSink(topic, bootstrap=kafka, key="user", value=Avro(AVRO, registry=registry.url))
        writer = TopicWriter(sink, Owner(["q"]))
        writer.write(writer.records([SALE]), 0)
        writer.close()
        ((key, value),) = records(kafka, topic)
        read = AvroDeserializer(SchemaRegistryClient({"url": registry.url}), conf=named())
        assert (key, read(value, SerializationContext(topic, MessageField.VALUE))) == (b"ann", SALE)
        assert list(registry.subjects) == [f"{topic}-value"]


def test_every_format_is_read_back():
    with schema_registry() as registry:
        url = registry.url
        formats: list[tuple[Format, dict[str, Any], Any]] = [
            (Json(), {"user": "ann", "at": AT}, {"user": "ann", "at": "2026-01-02T03:04:05Z"}),
            (Json(schema=SCHEMA, registry=url), {"user": "ann", "amount": 5}, {"user": "ann", "amount": 5}),
            (Avro(AVRO), SALE, SALE),
            (Avro(AVRO, registry=url), SALE, SALE),
            (Protobuf(Sale), {field: getattr(message(), field) for field in PLAIN}, PLAIN),
            (Protobuf(Sale, registry=url), {"user": "ann", "amount": 2}, {**EMPTY, "user": "ann", "amount": 2}),
        ]
        for kind, row, read in formats:
            assert decoder(kind, "sales")(encoder(kind, "sales")(row)) == read, kind


ODD: Any = object()
EMPTY: dict[str, Any] = {"user": "", "amount": 0, "at": None, "colors": [], "counts": {}, "parts": []}


def test_a_registry_that_is_down_is_an_error_of_the_sink():
    with schema_registry() as gone:
        url = gone.url
    with pytest.raises(SinkError, match=r"(?s)cannot be registered at the registry http://127.*that the registry runs"):
        encoder(Avro(AVRO, registry={"url": url, "max.retries": 0}), "sales")(SALE)


class Moving:
    """A consumer whose group's coordinator is not there at first: some requests raise an error, some return it."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def committed(self, partitions, timeout):
        answer = self.answers.pop(0)
        if isinstance(answer, KafkaException):
            raise answer
        partition = TopicPartition("sales", 0, 7)
        return [SimpleNamespace(offset=partition.offset, error=answer)]


def test_a_coordinator_that_moves_is_asked_again():
    moving, loading = KafkaError(KafkaError.NOT_COORDINATOR), KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    partition = TopicPartition("sales", 0)
    assert committed(Moving(KafkaException(moving), loading, None), partition, 60).offset == 7
    with pytest.raises(KafkaException, match="NOT_COORDINATOR"):
        committed(Moving(KafkaException(moving)), partition, 0)
    denied = KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    with pytest.raises(KafkaException, match="GROUP_AUTHORIZATION_FAILED"):
        committed(Moving(denied), partition, 60)


def test_a_registry_that_never_answers_is_an_error_of_the_sink(monkeypatch):
    monkeypatch.setattr("keyed.formats.topic_values._SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        registry = {"url": f"http://127.0.0.1:{silent.getsockname()[1]}", "max.retries": 0}
        with pytest.raises(SinkError, match=r"cannot be registered at the registry .*Timeout"):
            encoder(Avro(AVRO, registry=registry), "sales")(SALE)


def test_a_topic_that_does_not_exist_is_refused_before_any_damage(kafka, tmp_path):
    output = keyed.stream([{"k": "ann", "n": 1}]).key_by("k").process(Same(), "k string, n bigint")
    with pytest.raises(SinkError, match="create the topic"):
        output.run(KafkaSink("keyed-no-such-topic", bootstrap=kafka), checkpoint=tmp_path / "c")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: KafkaSink("", bootstrap="b"), "topic='' must be text"),
        (lambda: KafkaSink("t", bootstrap="b", transactional_id=""), "transactional_id='' must be text"),
        (lambda: KafkaSink("t", bootstrap=ODD), "bootstrap=.* must be text"),
        (lambda: KafkaSink("t", bootstrap="b", key=["a", "a"]), "key=.* must be the name of a column, or a list of"),
        (lambda: KafkaSink("t", bootstrap="b", key=[]), "names no column"),
        (lambda: KafkaSink("t", bootstrap="b", settings=ODD), "settings must be a dict .* not an object"),
        (lambda: Json(schema=ODD), "is not a JSON schema; give an object as JSON text"),
        (lambda: Json(schema="[]"), "is not a JSON schema"),
        (lambda: Json(registry={"url": "http://r", "timeout": ODD}), "must be a number of seconds above 0"),
        (lambda: keyed.KafkaSource(ODD, bootstrap="b"), "topic=.* must be text"),
        (lambda: keyed.KafkaSource("t", bootstrap=ODD), "bootstrap=.* must be text"),
        (lambda: keyed.KafkaSource("t", bootstrap="b", settings=ODD), "settings must be a dict"),
        (lambda: keyed.KafkaSource("t", bootstrap="b", decode=ODD), "decode=.* must be a function"),
        (lambda: keyed.KafkaChangelog(ODD, bootstrap="b"), "topic=.* must be text"),
        (lambda: keyed.KafkaChangelog("t", bootstrap="b", settings=ODD), "settings=.* must be a dict"),
        (lambda: KafkaSink("t", bootstrap="b", value=Avro(registry="http://r")), "needs schema="),
        (lambda: KafkaSink("t", bootstrap="b", value=Json(registry="http://r")), "needs schema="),
        (lambda: KafkaSink("t", bootstrap="b", timeout=0), "timeout"),
    ],
)
def test_wrong_definitions_are_refused(make, said):
    with pytest.raises(DefinitionError, match=said):
        make()


def test_two_outputs_of_a_query_have_two_ids():
    late = keyed.OutputTag("late", "user string")
    output = keyed.stream([{"k": "ann", "n": 1}]).key_by("k").process(Same(), "k string, n bigint")
    sink = KafkaSink("t", bootstrap="b")
    with pytest.raises(DefinitionError, match="two outputs have the transactional_id 'keyed-t'"):
        keyed.run(output.to(sink), output.side_output(late).to(KafkaSink("t", bootstrap="b")))
