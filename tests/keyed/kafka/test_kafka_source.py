"""A topic as a source of the local runtime, on a real broker."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

import keyed
from keyed import DirectoryChangelog, KafkaSource
from keyed.changelog.kafka import KafkaChangelog
from keyed.errors import CheckpointError, DefinitionError, SourceError
from keyed.kafka import kafka_source
from keyed.kafka.client import Cluster
from keyed.runtimes.local import local_query
from tests.keyed.changelog.kafka import topics
from tests.support.jobs import Number
from tests.support.waiting import until


class Remind(keyed.KeyedProcessFunction):
    """Says that a row came, and again some processing time later."""

    def process_element(self, value, ctx):
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 300)
        yield value.k, value.v, 0

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), 0, 1


def decode(record):
    return {"k": record.key.decode(), "v": int(record.value), "at": record.timestamp}


def counts(source, function=None, **options):
    return keyed.stream(source).key_by("k").process(function or Number(), "k string, v bigint, n bigint", **options)


@pytest.fixture
def pair(kafka):
    return [topics.created(kafka, 2) for _ in range(2)]


@pytest.fixture
def topic(pair):
    return pair[0]


def write(kafka, topic, *values):
    for value in values:
        topics.produce(kafka, topic, [(b"ab"[value % 2 : value % 2 + 1], str(value).encode())], value % 2)


def source(kafka, topic, **options):
    options = {"decode": decode, "bounded": True, "batch_interval": 50, **options}
    return KafkaSource(topic, bootstrap=kafka, **options)


@pytest.mark.parametrize("count", [1, 2])
def test_each_record_is_there_once_over_runs_restores_and_later_partitions(kafka, pair, tmp_path, count):
    read = pair[:count]
    changelog = DirectoryChangelog(tmp_path / "log")
    seen: list[int] = []
    for last in (5, 5, 12):
        for value in range(len(seen), last):
            write(kafka, read[value % 3 % count], value)
        run = counts(source(kafka, read), changelog=changelog).run(checkpoint=tmp_path / "ck", rows_per_batch=2)
        seen += [value.v for value in run.values]
    assert sorted(seen) == list(range(12))
    # A partition that was added later is read from its start, from a checkpoint and from a changelog.
    topics.grow(kafka, read[-1], 3)
    topics.produce(kafka, read[-1], [(b"a", b"12")], 2)
    run = counts(source(kafka, read, start="latest"), changelog=changelog).run(checkpoint=tmp_path / "ck")
    assert [value.v for value in run.values] == [12]
    write(kafka, read[0], 13)
    restored = counts(source(kafka, read, start="latest"), restore_from=changelog).run()
    assert restored.values == [("b", 13, 7)]
    assert restored.restored.with_position
    for others in ("other", pair[1], [*pair, "other"]):
        with pytest.raises(CheckpointError, match=r"the source is the topics? .*; give the source that it has read"):
            counts(source(kafka, others), changelog=changelog).run(checkpoint=tmp_path / "ck")


def test_records_are_rows_with_spark_s_columns(kafka, topic):
    before = time.time_ns() // 1_000_000
    write(kafka, topic, 4)
    (row,) = [element for element in source(kafka, topic, decode=None) if element is not keyed.PAUSE]
    assert (row.key, row.value, row.topic, row.partition, row.offset, row.headers) == (b"a", b"4", topic, 0, 0, [])
    assert before - 60_000 <= row.timestamp <= before + 60_000


def test_a_new_query_starts_at_the_latest_record_if_asked(kafka, pair):
    for topic in pair:
        write(kafka, topic, 1)
    assert counts(source(kafka, pair, start="latest")).run().values == []
    rows = source(kafka, pair, start={pair[0]: "latest", pair[1]: "earliest"}, decode=None)
    assert [each.topic for each in rows if each is not keyed.PAUSE] == [pair[1]]


def test_timers_fire_while_it_waits_and_stop_is_prompt(kafka, topic, tmp_path):
    batches, fired = [], threading.Event()

    def progressed(progress):
        batches.append(progress.rows)
        if progress.metrics["Remind"]["timers_fired"]:
            fired.set()

    sink = keyed.collect_sink()
    write(kafka, topic, 1)
    live = source(kafka, topic, bounded=False, batch_interval=200)
    query = counts(live, Remind()).start(sink, checkpoint=tmp_path / "ck", on_progress=progressed)
    assert fired.wait(300), query.await_termination(0)
    query.stop()
    assert query.await_termination(300)
    assert sink.values == [("b", 1, 0), ("b", 0, 1)]
    assert batches == [1, 0]
    # A batch may wait for ten minutes, stop does not.
    slow = source(kafka, topic, bounded=False, batch_interval=600_000)
    query = counts(slow, Remind()).start(sink, checkpoint=tmp_path / "ck")
    write(kafka, topic, 2)
    query.stop()
    assert query.await_termination(300)


def test_a_batch_ends_when_the_topic_has_no_more_records(kafka, topic, monkeypatch):
    monkeypatch.setattr(kafka_source, "_LONGEST", 3600.0)
    monkeypatch.setattr(local_query, "_FILE_SECONDS", 3600.0)
    sizes: list[int] = []
    changelog = KafkaChangelog(topics.new_topic(), bootstrap=kafka)
    query = counts(source(kafka, topic, bounded=False, batch_interval=None), changelog=changelog).start(
        lambda rows, batch: None, on_progress=lambda progress: sizes.append(progress.rows)
    )
    for rows in (1, 2, 3):
        write(kafka, topic, rows)
        until(lambda: sum(sizes) == rows)  # noqa: B023 - it is called before the next round
    query.stop()
    assert query.await_termination(300)


def test_lost_records_and_missing_topics_are_refused(kafka, topic, tmp_path):
    write(kafka, topic, 0, 2)
    counts(source(kafka, topic)).run(checkpoint=tmp_path)
    write(kafka, topic, 4, 6, 8)
    topics.delete_records(kafka, topic, 0, 4)
    with pytest.raises(SourceError, match=r"partition 0 has offsets 4 to 5: .*restore_from="):
        counts(source(kafka, topic)).run(checkpoint=tmp_path)
    with pytest.raises(SourceError, match=topic):
        list(source(kafka, topic).between({topic: {"0": 0, "1": 0}}, {topic: {"0": 5, "1": 0}}))
    with pytest.raises(SourceError, match="UNKNOWN_TOPIC"):
        counts(source(kafka, "keyed-there-is-none")).run()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("topic", ["", [], ["a", "a"], ["a", 1]]),
        ("start", ["middle", {"t": "latest", "u": "latest"}, {"t": ["latest"]}]),
        *[("order", ["time"]), ("batch_interval", [0]), ("settings", [{"group.id": object()}]), ("bounded", [1])],
    ],
)
def test_parameters_are_checked(name, values):
    for value in values:
        with pytest.raises(DefinitionError, match=name):
            KafkaSource(**{"topic": "t", "bootstrap": "b:1", name: value})


def test_several_topics_are_read_again_between_two_positions(kafka, pair):
    rows = source(kafka, pair)
    positions: list[Any] = [None]
    for start in (0, 4):
        for value in range(start, start + 4):
            write(kafka, pair[value % 2], value)
        rows.seek(rows.position())
        assert sorted(each["v"] for each in rows if each is not keyed.PAUSE) == [*range(start, start + 4)]
        positions.append(rows.position())
    write(kafka, pair[0], 8)
    for before, start in ((positions[1], 4), (None, 0)):
        assert sorted(each["v"] for each in rows.between(before, positions[2])) == [*range(start, 8)]


def test_records_come_in_the_order_of_their_timestamps(kafka, pair):
    """Among the next records of all partitions the oldest one is first; a partition keeps its own order."""
    producer = Producer({"bootstrap.servers": kafka})
    now = time.time_ns() // 1_000_000
    times = {(pair[0], 0): [10, 40, 20], (pair[0], 1): [30, 60], (pair[1], 0): [50, 70]}
    for (topic, partition), offset in [(place, each) for place, offsets in times.items() for each in offsets]:
        producer.produce(topic, b"0", b"a", partition=partition, timestamp=now + offset)
    assert producer.flush(60) == 0
    rows = source(kafka, pair, decode=lambda record: record.timestamp - now, order="timestamp")
    assert [each for each in rows if each is not keyed.PAUSE] == [10, 30, 40, 20, 50, 60, 70]


def timed(kafka, topic, **options):
    """Count the records by their own time, with the least watermark over the partitions."""

    def read(record):
        return {"k": record.key.decode(), "v": int(record.value), "p": record.partition}

    watermark = keyed.bounded_out_of_orderness(0).with_partitions("p").with_idleness(50)
    stream = keyed.stream(source(kafka, topic, decode=read, **options), timestamp="v", watermark=watermark)
    return stream.key_by("k").process(Number(), "k string, v bigint, n bigint")


def test_a_backlog_is_read_from_all_partitions_alike(kafka, topic):
    for partition in (0, 1):
        topics.produce(kafka, topic, [(b"ab"[partition:][:1], b"%d" % t) for t in range(5_000)], partition)
    clock = iter(range(0, 10_000_000, 100))
    seen = []
    run = timed(kafka, topic).run(
        rows_per_batch=100, processing_time=lambda: next(clock), on_progress=lambda each: seen.append(each.watermark)
    )
    assert seen[-2] >= 4_990
    # None was read so far ahead that the other one was taken for idle, or had not been heard of.
    assert run.metrics["Number"]["rows_late"] == 0
    assert len(run.values) == 10_000


def test_a_silent_partition_is_waited_for_until_it_is_idle_and_over_restarts(kafka, topic, tmp_path):
    now: list[int] = [0]
    seen: list[int] = []

    def run(**written):
        for name, times in written.items():
            topics.produce(kafka, topic, [(name.encode(), b"%d" % t) for t in times], "ab".index(name))
        seen.clear()
        timed(kafka, topic).run(
            checkpoint=tmp_path, processing_time=lambda: now[0], on_progress=lambda each: seen.append(each.watermark)
        )
        return seen[-1]

    assert run(a=[10], b=[5]) == 4
    now[0] += 1_000_000
    # Time between two runs is no silence, and the partition of the last run is still known.
    assert run(a=[20]) == 4
    assert run(b=[30]) == 19

    query = timed(kafka, topic, bounded=False).start(
        keyed.collect_sink(),
        checkpoint=tmp_path,
        processing_time=lambda: now[0],
        on_progress=lambda each: seen.append(each.watermark),
    )
    topics.produce(kafka, topic, [(b"b", b"40")], 1)
    until(lambda: len(seen) > 1 or not query.is_active)
    assert seen[-1] == 19
    now[0] += 50
    until(lambda: seen[-1] == 39 or not query.is_active)
    query.stop()
    assert seen[-1] == 39


def test_a_partition_whose_broker_does_not_answer_is_waited_for_once(kafka, topic, monkeypatch):
    """Its leader may be down: rows of the other partitions come all the same, and its own when it is back."""
    write(kafka, topic, 0, 1)
    consumers: list[Any] = []
    make = Cluster.consumer

    class Deaf:
        """A consumer that fetches nothing of one partition."""

        def __init__(self, consumer):
            self._consumer = consumer
            consumers.append(consumer)

        def __getattr__(self, name):
            return getattr(self._consumer, name)

        def assign(self, partitions):
            self._consumer.assign(partitions)
            self._consumer.pause([each for each in partitions if each.partition == 1])

    monkeypatch.setattr(Cluster, "consumer", lambda cluster: Deaf(make(cluster)))
    assert kafka_source._PATIENCE <= 1
    sink = keyed.collect_sink()
    query = counts(source(kafka, topic, bounded=False)).start(sink)
    seen = lambda: sorted(value.v for value in sink.values)  # noqa: E731 - asked again and again
    until(lambda: seen() == [0] or not query.is_active)
    # From now on a wait would have no end.
    monkeypatch.setattr(kafka_source, "_PATIENCE", 1e9)
    for value in (2, 4):
        write(kafka, topic, value)
        until(lambda: value in seen() or not query.is_active)  # noqa: B023 - asked before the next one
    assert seen() == [0, 2, 4]
    consumers[-1].resume([TopicPartition(topic, 1)])
    until(lambda: 1 in seen() or not query.is_active)
    query.stop()
    assert seen() == [0, 1, 2, 4]


def test_records_ahead_of_a_partition_that_lacks_are_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(kafka_source, "_AHEAD", 2 << 20)

    def message(offset, size):
        fields = {"topic": "topic", "partition": 0, "offset": offset, "error": None, "value": b"x" * size, "key": None}
        return SimpleNamespace(**{name: lambda value=value: value for name, value in fields.items()})

    reader = KafkaSource("topic", bootstrap="b:1")
    reader.seek({"topic": {"0": 0, "1": 0}})
    fetched: list[Any] = []
    paused: list[int] = []
    reader._consumer = SimpleNamespace(
        poll=lambda seconds: fetched[0],
        consume=lambda count, seconds: fetched[1:],
        get_watermark_offsets=lambda place, cached: (0, 1_000_000),
        pause=lambda places: paused.extend(place.partition for place in places),
    )
    reader._begin(dict.fromkeys(reader._offsets, 9), is_bounded=False)
    fetched[:] = [message(offset, 100) for offset in range(1_000)]
    reader.fetch(0)
    assert list(reader._in_order()) == []
    assert paused == []
    fetched[:] = [message(1_000 + offset, 1 << 20) for offset in range(2)]
    reader.fetch(0)
    assert list(reader._in_order()) == []
    assert paused == [0]
