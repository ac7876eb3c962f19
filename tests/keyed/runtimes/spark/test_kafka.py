"""Kafka on Spark: keyed streams read from a topic by Spark's own connector, results and changelog written to others."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import timedelta
from itertools import pairwise

import pytest

import keyed
from keyed.changelog import DirectoryChangelog, KafkaChangelog
from keyed.job.results import Restored
from keyed.recovery import verify
from keyed.testing import replay
from tests.keyed.changelog.kafka.topics import created, end, messages, new_topic, produce, read_stream
from tests.keyed.runtimes.spark.functions import SCHEMA, Count, count, expected_counts, parquet_rows
from tests.keyed.runtimes.spark.test_record import Doubled

pytestmark = pytest.mark.spark


@pytest.fixture
def source(kafka):
    """A topic of events in two partitions."""
    return created(kafka, 2)


def send(kafka: str, topic: str, rows: Iterable[tuple[str, int, int]]) -> None:
    """Write events, those of a key to one partition."""
    for partition in range(2):
        records: list[tuple[bytes, bytes | None]] = [
            (key.encode(), json.dumps({"k": key, "t": time, "v": value}).encode())
            for key, time, value in rows
            if ord(key) % 2 == partition
        ]
        produce(kafka, topic, records, partition)


def read(spark, kafka, topic, most=1000):
    """The events of a topic as a stream, with so many in a batch at most."""
    from pyspark.sql.functions import col, from_json

    raw = read_stream(spark, kafka, topic, most)
    events = raw.select(from_json(col("value").cast("string"), SCHEMA).alias("event")).select("event.*")
    return keyed.stream(events, timestamp="t", watermark=keyed.bounded_out_of_orderness(milliseconds=10))


def expected(*parts):
    """The rows that `count` gives for events."""
    return expected_counts([row for part in parts for row in part])


FIRST = [("a", 1, 5), ("b", 2, 7), ("a", 3, 1), ("c", 4, 2)]
SECOND = [("a", 5, 1), ("c", 6, 4), ("b", 7, 3), ("d", 8, 1)]


@pytest.mark.long
def test_a_job_is_replayed_from_its_topic(spark_kafka, kafka, source, tmp_path):
    changelog = DirectoryChangelog(tmp_path / "log", auto_compact=False)
    for rows in (FIRST, SECOND):
        send(kafka, source, rows)
        count(read(spark_kafka, kafka, source), changelog=changelog).run(tmp_path / "out", checkpoint=tmp_path / "ck")
    delay = keyed.bounded_out_of_orderness(milliseconds=10)
    for first, many in ((0, 8), (1, 4)):
        topic = keyed.KafkaSource(source, bootstrap=kafka, decode=lambda record: json.loads(record.value))
        found = [
            replay(changelog, Count(), changed, topic, key="k", timestamp="t", watermark=delay, first=first)
            for changed in (Count(), Doubled())
        ]
        assert [(each.rows, bool(each.lines)) for each in found] == [(many, False), (many, True)]


def test_source_and_changelog_in_kafka_restore_a_lost_checkpoint(spark_kafka, kafka, source, tmp_path):
    logs = [KafkaChangelog(new_topic(), bootstrap=kafka) for _ in range(2)]
    send(kafka, source, FIRST)
    count(read(spark_kafka, kafka, source), changelog=logs[0]).run(tmp_path / "out", checkpoint=tmp_path / "lost")
    assert [group.problem for group in verify(logs[0]) if group.problem] == []
    send(kafka, source, SECOND)
    # Another checkpoint, another number of key groups: the state and the offsets come from the topic.
    restored = count(read(spark_kafka, kafka, source), changelog=logs[1], restore_from=logs[0], parallelism=3)
    restored.run(tmp_path / "out", checkpoint=tmp_path / "new")
    assert parquet_rows(tmp_path / "out") == expected(FIRST, SECOND)
    header = logs[1].header()
    assert header is not None
    assert header.parallelism == 3
    assert [group.problem for group in verify(logs[1]) if group.problem] == []
    assert [sequence for sequence, _ in logs[1].positions()] != []


@pytest.mark.long
def test_another_writer_of_a_running_querys_changelog_is_fenced_and_its_state_stays_right(
    spark_kafka, kafka, source, tmp_path
):
    changelog = KafkaChangelog(new_topic(), bootstrap=kafka)
    parts = [[(key, time + 3 * turn, turn) for time, key in enumerate("abc")] for turn in range(3)]
    for part in parts:
        send(kafka, source, part)
        counted = count(read(spark_kafka, kafka, source), changelog=changelog)
        counted.run(tmp_path / "out", checkpoint=tmp_path / "checkpoint")
        # The writers that Spark's workers keep open are fenced by these.
        for group in range(2):
            changelog.writer(group).close()
    assert parquet_rows(tmp_path / "out") == expected(*parts)
    assert [group.problem for group in verify(changelog) if group.problem] == []
    assert keyed.recovery.verify(tmp_path / "checkpoint", changelog, session=spark_kafka) is not None


@pytest.mark.long
def test_the_watermark_is_the_least_over_the_partitions_of_a_topic(spark_kafka, kafka, source, tmp_path):
    watermarks, metrics = [], {}
    strategy = keyed.bounded_out_of_orderness(0).with_partitions("partition").with_idleness(60_000)

    def run(*parts, most=1000):
        for partition, times in enumerate(parts):
            produce(kafka, source, [(b"ab"[partition : partition + 1], b"%d" % time) for time in times], partition)
        raw = read_stream(spark_kafka, kafka, source, most)
        rows = raw.selectExpr("CAST(key AS STRING) k", "CAST(CAST(value AS STRING) AS BIGINT) t", "1L v", "partition")
        counted = count(keyed.stream(rows, timestamp="t", watermark=strategy))
        done = counted.run(checkpoint=tmp_path / "ck", on_progress=lambda each: watermarks.append(each.watermark))
        metrics.update(done.metrics["count"])
        return len(done.values)

    # A backlog: each batch has rows of both partitions, so none is late.
    assert run(range(2_000), range(500), most=500) == 2_500
    assert len(watermarks) >= 5
    assert (watermarks[-1], metrics["rows_late"]) == (498, 0)
    # The slower one is waited for over a restart, and the other one's partition alone moves nothing.
    assert run([3_000], []) == 1
    assert watermarks[-1] == 498
    assert run([], [2_500]) == 1
    assert (watermarks[-1], metrics["rows_late"]) == (2_499, 0)
    # Told of a time-out that is over, the silent one is idle.
    strategy = keyed.bounded_out_of_orderness(0).with_partitions("partition").with_idleness(1)
    assert run([4_000, 4_001], [], most=1) == 2
    assert watermarks[-1] == 4_000


@pytest.mark.long
def test_with_an_export_interval_the_batches_of_a_query_are_one_transaction(spark_kafka, kafka, source, tmp_path):
    hour = timedelta(hours=1)
    logs = [KafkaChangelog(new_topic(), bootstrap=kafka, export_interval=each) for each in (hour, hour, 0)]
    parts = [[(key, time + 3 * turn, turn) for time, key in enumerate("abc")] for turn in range(6)]
    for part in parts:
        send(kafka, source, part)
    counted = count(read(spark_kafka, kafka, source, most=3), changelog=logs[0])
    assert counted.run(tmp_path / "out", checkpoint=tmp_path / "lost").batches == 6
    # A transaction ends with a record that only the broker sees: those of the header, of the first batch, and of the
    # others when the query ends.
    topic = logs[0].topic
    assert [end(kafka, topic, group) - len(messages(kafka, topic, group)) for group in range(2)] == [3, 3]
    assert [group.problem for group in verify(logs[0]) if group.problem] == []
    # Back to an earlier batch, at another parallelism; then without an interval, after the batch that loaded the state.
    for batch, (old, new) in zip((3, 4), pairwise(logs), strict=True):
        point = keyed.RestorePoint(old, as_of=batch)
        restored = count(read(spark_kafka, kafka, source, most=3), changelog=new, restore_from=point, parallelism=3)
        result = restored.run(tmp_path / f"out-{batch}", checkpoint=tmp_path / f"after-{batch}")
        assert result.restored == Restored(batch, with_position=True)
        assert [group.problem for group in verify(new) if group.problem] == []
        later = parquet_rows(tmp_path / f"out-{batch}")
        assert sorted(expected(*parts[:4]) + later) == expected(*parts)
