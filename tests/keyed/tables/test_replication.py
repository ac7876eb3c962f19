"""Copies of state tables in Kafka topics: whoever folds the topic has the table, and each batch is there once."""

from __future__ import annotations

import gc
import json
import multiprocessing
import operator
import os
import threading
from collections import Counter
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from confluent_kafka import Producer

import keyed
from keyed import windows as w
from keyed.base.background import Status
from keyed.errors import ChangelogDiverged, DefinitionError, GroupUnavailable, SinkError, StateAccessError
from keyed.tables import open_tables, replication
from keyed.tables.follower import Follower
from keyed.testing.sink_conformance import CopyConformance
from keyed.topics import Avro, Json, UpsertTopic
from tests.keyed.changelog.kafka import topics
from tests.keyed.tables.copies import (
    FEW,
    EveryKind,
    Job,
    as_objects,
    caught_up,
    check,
    folded,
    key_of,
    new_topic,
    rows_of,
    topic_of,
)
from tests.support.schema_registry import schema_registry
from tests.support.tables import followed, poll_tables
from tests.support.waiting import no_more, until


def last_batch(job: Job) -> int:
    with poll_tables(job.log, job.folder / f"look-{job.lives}-{job.rows}") as tables:
        return tables.batch


class TestUpsertTopic(CopyConformance):
    @pytest.fixture(autouse=True)
    def _broker(self, kafka):
        self.kafka, self.topic = kafka, new_topic(kafka)

    def make_sink(self, path):
        return self.topic

    def read(self, path):
        return [(row["name"], row["n"]) for row in as_objects(folded(self.kafka, self.topic.topic))]


@pytest.mark.parametrize("name", FEW)
def test_a_topic_holds_the_table_for_every_kind_of_state(kafka, tmp_path, name):
    job = Job(name, tmp_path, 3)
    with job.tables() as tables:
        copies = {table: tables[table].replicate(new_topic(kafka, partitions=2)) for table in tables}
        job.run(6)
        job.run(11)
        for table, copy in copies.items():
            caught_up(copy, tables, last_batch(job))
            check(kafka, tables, table, topic_of(copy), partitions=2)
            assert copy.resyncs == copy.failures == 0
            copy.close()
        # Each restarts, and writes no record that is there already.
        job.run(7)
        for table, copy in copies.items():
            before = [topics.end(kafka, topic_of(copy), number) for number in range(2)]
            with tables[table].replicate(copy.to) as again:
                assert again.batch >= 0
                caught_up(again, tables, last_batch(job))
                check(kafka, tables, table, topic_of(copy), partitions=2)
                assert again.resyncs == 0
                records = again.rows + again.tombstones
            messages = [topics.messages(kafka, topic_of(copy), number) for number in range(2)]
            new = [
                each for part, start in zip(messages, before, strict=True) for each in part if each.offset() >= start
            ]
            assert len(new) == records


def batches_of(kafka: str, topic: str, partitions: int = 1) -> Counter[tuple[int, bytes]]:
    """How often each key was written in each batch."""
    found: Counter[tuple[int, bytes]] = Counter()
    for message in chain.from_iterable(topics.messages(kafka, topic, number) for number in range(partitions)):
        found[int(dict(message.headers())["keyed-batch"]), message.key()] += 1
    return found


def test_each_batch_is_one_transaction_with_each_of_its_rows_once(kafka, tmp_path):
    job = Job("states", tmp_path, 1)
    with job.tables() as tables, tables["number"].replicate(new_topic(kafka)) as copy:
        copy.wait_for(0, 300)
        job.run(8)
        caught_up(copy, tables, last_batch(job))
        found = batches_of(kafka, topic_of(copy))
        assert set(found.values()) == {1}
        assert [batch for batch, _ in sorted(found)] == sorted(batch for batch, _ in found)
        assert copy.transactions == len({batch for batch, _ in found})
        metrics = copy.metrics()
        assert metrics["replication_rows"] + metrics["replication_tombstones"] == found.total()
        assert metrics["replication_tombstones"] == 2
        assert metrics["replication_status"] == Status.FOLLOWING.number
        headers = dict(topics.messages(kafka, topic_of(copy))[0].headers())
        assert headers["keyed-table"] == b"EveryKind.number"
    assert topics.described(kafka, topic_of(copy))["cleanup.policy"] == "compact"


def test_a_restored_job_is_followed_and_another_job_replaces_the_rows(kafka, tmp_path):
    job = Job("states", tmp_path, 6)
    topic = new_topic(kafka)
    with job.tables() as tables, tables["counts"].replicate(topic) as copy:
        caught_up(copy, tables, last_batch(job))
    job.restored(parallelism=3)
    job.run(9)
    with job.tables() as tables, tables["counts"].replicate(topic) as copy:
        caught_up(copy, tables, last_batch(job))
        check(kafka, tables, "counts", topic.topic)
        assert copy.resyncs == 0
        assert copy.rows > 0
    # A job that begins anew has another changelog, and fewer rows.
    other = Job("states", tmp_path / "other", 2)
    with other.tables() as tables, tables["counts"].replicate(topic) as copy:
        caught_up(copy, tables, last_batch(other))
        check(kafka, tables, "counts", topic.topic)
        assert copy.resyncs == 1
        assert copy.tombstones > 0
        other.run(3)
        caught_up(copy, tables, last_batch(other))
        check(kafka, tables, "counts", topic.topic)
        assert copy.resyncs == 1


def test_a_copy_that_is_behind_the_history_gets_the_rows_that_differ(kafka, tmp_path, caplog):
    job = Job("states", tmp_path, 6)
    topic = new_topic(kafka)
    with job.tables() as tables, tables["number"].replicate(topic) as copy:
        caught_up(copy, tables, last_batch(job))
    job.run(9)
    # The folder is new, and the history begins at the end.
    with poll_tables(job.log, tmp_path / "new", history=0) as tables:
        job.run(3)
        tables.start(every=0.05)
        tables.wait_for(last_batch(job), 300)
        before = topics.end(kafka, topic.topic)
        with tables["number"].replicate(topic) as copy:
            caught_up(copy, tables, last_batch(job))
            check(kafka, tables, "number", topic.topic)
            assert copy.resyncs == 1
            assert "continued with the whole state" in caplog.text
            assert len([each for each in topics.messages(kafka, topic.topic) if each.offset() >= before]) <= 3


def test_the_last_replication_that_started_writes_and_the_other_one_ends(kafka, tmp_path):
    job = Job("states", tmp_path, 3)
    topic = new_topic(kafka)
    with job.tables() as tables, tables["number"].replicate(topic) as first:
        caught_up(first, tables, last_batch(job))
        with tables["number"].replicate(topic) as second:
            assert second.batch == first.batch
            job.run(6)
            caught_up(second, tables, last_batch(job))
            until(lambda: first.status is Status.FAILED)
            with pytest.raises(SinkError, match="another replication of this topic has started after this one"):
                first.check()
            with pytest.raises(SinkError, match="another replication"):
                first.wait_for(10_000, 300)
            assert "another replication" in first.trouble
            assert set(batches_of(kafka, topic.topic).values()) == {1}
            check(kafka, tables, "number", topic.topic)


def test_topics_that_hold_something_else_are_refused_before_any_damage(kafka, tmp_path):
    job = Job("states", tmp_path, 3)
    with job.tables() as tables:
        taken = new_topic(kafka)
        with tables["number"].replicate(taken) as copy:
            copy.wait_for(0, 300)
        with pytest.raises(SinkError, match=r"the topic has the table 'EveryKind.number', and not 'EveryKind.sale'"):
            tables["sale"].replicate(taken)
        plain = topics.created(kafka, 1)
        with pytest.raises(SinkError, match=r"cleanup\.policy=delete, which removes rows .* kafka-configs --alter"):
            tables["sale"].replicate(UpsertTopic(plain, bootstrap=kafka))
        both = topics.created(kafka, 1, cleanup_policy="compact,delete")
        with pytest.raises(SinkError, match=r"cleanup\.policy=compact,delete"):
            tables["sale"].replicate(UpsertTopic(both, bootstrap=kafka))
        foreign = topics.created(kafka, 1, cleanup_policy="compact")
        topics.produce(kafka, foreign, [(b"k", b"v")])
        with (
            tables["sale"].replicate(UpsertTopic(foreign, bootstrap=kafka)) as copy,
            pytest.raises(SinkError, match="the topic has records that keyed has not written"),
        ):
            copy.wait_for(0, 300)
        assert [each.value() for each in topics.messages(kafka, foreign)] == [b"v"]
        # Of another format or with other columns, and with other partitions.
        with tables["number"].replicate(
            attrs.evolve(
                taken, key=Avro('{"type": "record", "name": "k", "fields": [{"name": "k", "type": "string"}]}')
            )
        ) as copy:
            job.run(1)
            with pytest.raises(SinkError, match="the topic has keys with other columns or in another format"):
                copy.wait_for(last_batch(job), 300)
        topics.grow(kafka, taken.topic, 2)
        with pytest.raises(SinkError, match="the topic had 1 partitions, and has 2"):
            tables["number"].replicate(taken)


class Windowed(keyed.KeyedProcessFunction):
    number = keyed.ValueState(int)

    def process_element(self, value, ctx):
        self.number.namespace((value["n"], value["n"] + 1)).update(value["n"])
        return ()


def test_a_namespace_is_a_column_of_the_key_or_refused(kafka, tmp_path):
    log = keyed.DirectoryChangelog(tmp_path / "log")
    keyed.stream(rows_of(2)).key_by("k").process(Windowed(), changelog=log).run()
    with open_tables(log, tmp_path / "tables") as tables:
        tables.start(every=0.05)
        with (
            tables["number"].replicate(new_topic(kafka)) as copy,
            pytest.raises(SinkError, match=r"under the namespace \(1, 2\); .* namespaces=True"),
        ):
            copy.wait_for(0, 300)
        with tables["number"].replicate(new_topic(kafka, namespaces=True)) as copy:
            copy.wait_for(0, 300)
            assert {*folded(kafka, topic_of(copy))} == {
                b'{"k":"b","namespace":"[1,2]"}',
                b'{"k":"c","namespace":"[2,3]"}',
            }


class Parts(keyed.KeyedProcessFunction):
    """An element is (place, number, value); without a value the key is forgotten."""

    seen = keyed.ValueState(int)
    total = keyed.ReducingState(operator.add, int)

    def process_element(self, value, ctx):
        if value[2] is None:
            self.seen.clear()
            self.total.clear()
        else:
            self.seen.update(value[2])
            self.total.add(value[2])
        return ()


@pytest.mark.parametrize("table", ["seen", "total"])
def test_keys_without_names_are_known_from_rows_also_when_the_last_one_goes(kafka, tmp_path, monkeypatch, table):
    monkeypatch.setattr(replication, "_ROWS", 2)
    topic = new_topic(kafka)
    with followed(Parts(), tmp_path, key=lambda value: value[:2], parallelism=2) as (harness, tables):
        harness.process(("x", 0, None))
        tables.start(every=0.05)
        tables.wait_for(0, 300)
        with tables[table].replicate(topic) as copy:
            caught_up(copy, tables, 0)
            assert folded(kafka, topic.topic) == {}
            with harness.batch():
                for number in range(5):
                    harness.process(("x", number, number + 1))
            caught_up(copy, tables, 1)
        assert as_objects(folded(kafka, topic.topic)) == [
            {"key_1": "x", "key_2": number, "value": number + 1} for number in range(5)
        ]
        with harness.batch():
            for number in range(5):
                harness.process(("x", number, None))
        # It begins with a batch after which the table has no rows.
        with tables[table].replicate(topic) as copy:
            caught_up(copy, tables, 2)
            assert (copy.tombstones, copy.resyncs) == (5, 0)
        assert folded(kafka, topic.topic) == {}


RULES = keyed.MapState(str, int, name="rules")


class Broadcast(keyed.KeyedBroadcastProcessFunction):
    def process_element(self, value, ctx):
        return ()

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES).put(value["rule"], value["n"])
        return ()


def test_a_broadcast_state_has_the_entry_as_its_key(kafka, tmp_path):
    log = keyed.DirectoryChangelog(tmp_path / "log")
    rules = keyed.stream([{"rule": "x", "n": 1}, {"rule": "y", "n": 2}]).broadcast(RULES)
    keyed.stream(rows_of(2)).key_by("k").connect(rules).process(Broadcast(), changelog=log, parallelism=2).run()
    with open_tables(log, tmp_path / "tables").start() as tables, tables["rules"].replicate(new_topic(kafka)) as copy:
        copy.wait_for(tables.batch, 300)
        found = folded(kafka, topic_of(copy))
    assert found == {b'{"entry":"x"}': b'{"entry":"x","value":1}', b'{"entry":"y"}': b'{"entry":"y","value":2}'}


HALVED: Any = w.aggregate_of(
    create=int, add=lambda row, total: total + row["n"], merge=operator.add, result=lambda total: {"half": total / 2}
)


def test_an_aggregate_of_ones_own_has_its_result_whether_or_not_the_reader_gives_it(kafka, tmp_path):
    log = keyed.DirectoryChangelog(tmp_path / "log")
    stream = keyed.stream(rows_of(6), timestamp="t", watermark=keyed.bounded_out_of_orderness(0)).key_by("k")
    windowed = stream.window(w.TumblingEventTimeWindows.of(60_000))
    windowed.aggregate({"own": HALVED}, changelog=log, name="own").run(drain=False)
    for types in (None, {"own": {"own": HALVED}}):
        with (
            open_tables(log, tmp_path / "tables", types=types).start() as tables,
            tables["own"].replicate(new_topic(kafka)) as copy,
        ):
            copy.wait_for(tables.batch, 300)
            assert as_objects(folded(kafka, topic_of(copy)))[0]["own"] == {"half": 4.5}


@attrs.frozen
class Old:
    n: int


@attrs.frozen
class New:
    n: int
    more: str | None = None


def keeper(type_: Any) -> Any:
    class Keeper(keyed.KeyedProcessFunction):
        last = keyed.ValueState(type_)

        def process_element(self, value, ctx):
            self.last.update(type_(value["n"]))
            return ()

    return Keeper()


def test_a_new_column_is_written_to_all_rows(kafka, tmp_path, caplog):
    log, topic = keyed.DirectoryChangelog(tmp_path / "log"), new_topic(kafka)
    for type_, count in ((Old, 4), (New, 5)):
        output = keyed.stream(rows_of(count)).key_by("k").process(keeper(type_), name="keeper", changelog=log)
        output.run(checkpoint=tmp_path / "checkpoint", drain=False)
        with open_tables(log, tmp_path / "tables").start(every=0.05) as tables, tables["last"].replicate(topic) as copy:
            caught_up(copy, tables, count - 4)
            assert copy.resyncs == count - 4
    assert all("more" in row for row in as_objects(folded(kafka, topic.topic)))
    assert "the table has other columns than the copy" in caplog.text


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("states", marks=pytest.mark.slow),
        "table",
        "sessions",
        pytest.param("tumbling", marks=pytest.mark.long),
    ],
)
def test_avro_has_the_schemas_of_the_columns(kafka, tmp_path, name):
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    job = Job(name, tmp_path, 9)
    with schema_registry() as registry, job.tables() as tables:
        client = SchemaRegistryClient({"url": registry.url})
        decode: Any = AvroDeserializer(client, conf={"subject.name.strategy.type": "TOPIC"})
        for table in tables:
            avro = Avro(registry=registry.url)
            with tables[table].replicate(new_topic(kafka, key=avro, value=avro)) as copy:
                caught_up(copy, tables, last_batch(job))
                topic = topic_of(copy)
            assert {f"{topic}-key", f"{topic}-value"} <= set(registry.subjects)
            found = {}
            for message in topics.messages(kafka, topic):
                key, value = (
                    data and decode(data, SerializationContext(topic, field))
                    for data, field in ((message.key(), MessageField.KEY), (message.value(), MessageField.VALUE))
                )
                found[repr(key)] = value
            with tables[table].replicate(new_topic(kafka)) as copy:
                caught_up(copy, tables, last_batch(job))
                assert len(found) == len(folded(kafka, topic_of(copy))) > 0
            names = {name for value in found.values() for name in value}
            assert set(key_of(tables, table)) < names
            if table == "sale":
                assert all(value["price"] * 4 == value["n"] for value in found.values())


def test_a_schema_without_a_column_is_refused(kafka, tmp_path):
    schema = json.dumps({"type": "record", "name": "r", "fields": [{"name": "k", "type": "string"}]})
    job = Job("states", tmp_path, 1)
    with job.tables() as tables:
        for options in ({"key": Avro(schema)}, {"value": Avro(schema)}):
            with (
                tables["counts"].replicate(new_topic(kafka, **options)) as copy,
                pytest.raises(DefinitionError, match=r"=Avro\(...\) has no field 'entry', a column of the table"),
            ):
                copy.wait_for(0, 300)


def test_mistakes_are_raised_by_the_call(kafka, tmp_path):
    for options, message in (
        ({"key": Json(registry="http://localhost:1", schema="{}")}, r"key=.* must be Json\(\) or Avro"),
        ({"value": "json"}, "value='json' must be Json"),
        ({"partitions": 0}, "partitions=0 must be a number from 1"),
        ({"replication_factor": 0}, "replication_factor=0 must be"),
        ({"namespaces": 1}, "namespaces=1 must be True or False"),
        ({"settings": {"transactional.id": "x"}}, "keyed sets this itself"),
        ({"timeout": 0}, "timeout"),
    ):
        with pytest.raises(DefinitionError, match=message):
            UpsertTopic("t", bootstrap="localhost:1", **options)
    with pytest.raises(DefinitionError, match="topic"):
        UpsertTopic("", bootstrap="localhost:1")
    job = Job("states", tmp_path, 1)
    with job.tables() as tables:
        with pytest.raises(DefinitionError, match=r"must be keyed.topics.UpsertTopic"):
            tables["number"].replicate("a topic")  # type: ignore[arg-type]
        with tables.snapshot() as snapshot, pytest.raises(DefinitionError, match="does not change"):
            snapshot["number"].replicate(new_topic(kafka))
        with pytest.raises(SinkError, match="no broker answered"):
            tables["number"].replicate(UpsertTopic("t", bootstrap="127.0.0.1:1", timeout=500))
        with tables["number"].replicate(new_topic(kafka)) as copy, pytest.raises(DefinitionError, match="give the id"):
            copy.wait_for("0", 300)  # type: ignore[arg-type]


def test_it_ends_once_and_leaves_nothing(kafka, tmp_path):
    job = Job("states", tmp_path, 1)

    def counts() -> tuple[int, ...]:
        gc.collect()
        producers = sum(isinstance(each, Producer) for each in gc.get_objects())
        return threading.active_count(), producers

    with job.tables() as tables:
        tables["number"].replicate(new_topic(kafka)).close()
        before = counts()
        for _ in range(3):
            copy = tables["number"].replicate(new_topic(kafka))
            copy.wait_for(0, 300)
            copy.close()
            copy.close()
            assert copy.status is Status.CLOSED
            assert "closed, batch 0" in repr(copy)
            copy.check()
            with pytest.raises(StateAccessError, match="is closed, at batch 0"):
                copy.wait_for(1, 300)
        until(lambda: no_more(counts(), before))
        left = tables["number"].replicate(new_topic(kafka))
    # The tables were closed before it.
    until(lambda: left.status is Status.FAILED)
    with pytest.raises(StateAccessError):
        left.check()
    left.close()


def test_it_ends_with_tables_whose_following_has_ended(kafka, tmp_path, monkeypatch):
    def fail(_):
        raise ChangelogDiverged("another history")

    with Job("states", tmp_path, 1).tables() as tables, tables["number"].replicate(new_topic(kafka)) as copy:
        copy.wait_for(0, 300)
        monkeypatch.setattr(Follower, "poll", fail)
        with pytest.raises(ChangelogDiverged):
            copy.wait_for(9, 30)


def test_a_batch_without_changes_moves_the_stored_position(kafka, tmp_path):
    """Otherwise a table that seldom changes would fall behind the history."""
    topic = new_topic(kafka)
    with followed(EveryKind(), tmp_path, key="k", parallelism=2) as (harness, tables):
        harness.process(rows_of(1)[0])
        tables.start(every=0.05)
        with tables["number"].replicate(topic) as copy:
            copy.wait_for(0, 300)
            harness.process({**rows_of(1)[0], "t": 5000})
            until(lambda: copy.batch == tables.batch > 0)
            assert copy.transactions == 1
        end = topics.end(kafka, topic.topic)
        with tables["number"].replicate(topic) as copy:
            assert copy.batch == tables.batch
            assert copy.resyncs == copy.rows == 0
        assert topics.end(kafka, topic.topic) == end


@pytest.mark.slow
def test_a_broker_that_was_gone_gets_the_batches_once_it_is_back(broker, tmp_path):
    job = Job("states", tmp_path, 3)
    topic = new_topic(broker.bootstrap, timeout=2_000)
    with job.tables() as tables, tables["number"].replicate(topic) as copy:
        caught_up(copy, tables, last_batch(job))
        until(lambda: topics.ended(broker.bootstrap, topic.topic, "__consumer_offsets"))
        broker.kill()
        try:
            job.run(6)
            until(lambda: copy.failures > 1)
            assert copy.status is Status.FOLLOWING
            assert "no broker answered" in copy.trouble or "accepted" in copy.trouble
            assert copy.lag > 0
        finally:
            broker.start()
        until(lambda: copy.batch == last_batch(job), report=lambda: copy.trouble)
        check(broker.bootstrap, tables, "number", topic.topic)
        assert set(batches_of(broker.bootstrap, topic.topic).values()) == {1}
        assert copy.resyncs == 0


KILLS = int(os.environ.get("KEYED_KILLS", "20"))
CONTEXT = multiprocessing.get_context("forkserver")


def replicator(folder: Path, topic: UpsertTopic, started: Any) -> None:
    """Replicate until killed."""
    with open_tables(Job("states", folder).log, folder / "tables") as tables:
        tables.start(every=0.01)
        with tables["counts"].replicate(topic) as copy:
            started.set()
            copy.join()


@pytest.mark.slow
def test_each_batch_is_there_once_although_the_replicator_is_killed_at_random_moments(kafka, tmp_path):
    random = Random(25)
    job = Job("states", tmp_path, 1)
    topic = new_topic(kafka, partitions=2)
    for _ in range(KILLS):
        started = CONTEXT.Event()
        process = CONTEXT.Process(target=replicator, args=(tmp_path, topic, started))
        process.start()
        assert started.wait(120)
        job.run(random.randrange(2, 12))
        # Some time after its start, often in a transaction.
        process.join(random.random() / 2)
        process.kill()
        process.join()
    with job.tables() as tables, tables["counts"].replicate(topic) as copy:
        caught_up(copy, tables, last_batch(job))
        check(kafka, tables, "counts", topic.topic, partitions=2)
        assert copy.resyncs == 0
    found = batches_of(kafka, topic.topic, partitions=2)
    assert set(found.values()) == {1}
    # An element changes one entry of its key, or two: no batch is missing from the first copy on. A replicator that is
    # killed before its first transaction leaves nothing, and the next one begins with a later batch.
    batches = {batch for batch, _ in found}
    assert batches == set(range(min(batches), last_batch(job) + 1))


def test_a_share_of_the_key_groups_is_refused(tmp_path):
    """It would remove the rows of the other shares."""
    job = Job("states", tmp_path, 3)
    with poll_tables(job.log, tmp_path / "share", groups=[0]) as tables:
        for found in (tables, tables.share):
            with pytest.raises(GroupUnavailable, match="a replication of 'number' needs all key groups"):
                found["number"].replicate(UpsertTopic("t", bootstrap="127.0.0.1:1"))
