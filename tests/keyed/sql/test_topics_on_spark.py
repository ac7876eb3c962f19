"""Scripts on Spark over topics of a real Kafka broker write the records that they write in this process."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from keyed import sql
from keyed.errors import DefinitionError
from tests.keyed.changelog.kafka import topics
from tests.keyed.sql.test_scripts_on_kafka import received, send
from tests.support.jars import CONNECTOR, fetch
from tests.support.schema_registry import schema_registry
from tests.support.sql_files import read_scripts
from tests.support.waiting import until

SCRIPTS = read_scripts(Path(__file__).with_name("scripts.sql"))
NOW = int(time.time()) // 3600 * 3_600_000
#: More kills: ``KEYED_SPARK_KILLS=20 pytest tests/keyed/sql/test_topics_on_spark.py -k killed``.
KILLS = int(os.environ.get("KEYED_SPARK_KILLS", "2"))
SCRIPT = SCRIPTS["all_kinds_over_topics"]
SALES = [(7, "Big", 4, NOW), (8, "Rio", 1, NOW + 1000), (9, "Big", 7, NOW + 2000), (9, "Big", 1, NOW + 3_700_000)]


@pytest.fixture
def given(kafka):
    """The names of topics that exist: sales and films; and of one that does not."""
    names = {name: topics.new_topic() for name in ("sales", "films", "sold")}
    for name in ("sales", "films"):
        topics.create(kafka, names[name], 1, retention_ms=-1)
    return names


def write_sales(kafka, topic, rows):
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": kafka})
    for key, title, tickets, at in rows:
        value = json.dumps({"title": title, "tickets": tickets, "at": at}).encode()
        producer.produce(topic, value, json.dumps(key).encode(), headers=[("kind", b"web")], timestamp=NOW)
    assert producer.flush(30) == 0


@pytest.mark.slow
def test_topics_are_read_and_written(spark_kafka, kafka, given, tmp_path):
    text = SCRIPT.format(**given, format="JSON")
    other = SCRIPT.format(**given | {"sold": topics.new_topic()}, format="JSON")
    send(kafka, given["films"], (b"Big", b'{"genre": "comedy"}', NOW - 1000))
    cluster = sql.Kafka(kafka, bounded=True)
    there = dict.fromkeys(("read", "hourly", "places"), 0)
    for lives, part in enumerate((SALES[:2], SALES[2:]), 1):
        write_sales(kafka, given["sales"], part)
        send(kafka, given["sales"], (b"1", b"{tickets", NOW), (b"x", b"{}", NOW))
        on_spark = sql.script(text, kafka=cluster, spark=spark_kafka, checkpoint=tmp_path / "spark")
        in_process = sql.script(other, kafka=cluster, checkpoint=tmp_path / "local")
        for name in there:
            assert sorted(map(str, on_spark[name])) == sorted(map(str, in_process[name]))
            there[name] += len(on_spark[name])
        # Each of the operators that read the stream counts them; one without state those of the run.
        assert on_spark.run is not None
        bad = {name: each["rows_bad"] for name, each in on_spark.run.metrics.items() if each["rows_bad"]}
        assert bad == dict.fromkeys(("sold", "hourly", "read_join"), 2 * lives) | {"places": 2}
        assert in_process.skipped == {"sales": {"the format cannot read them": 2}}
    assert there == {"read": 4, "hourly": 2, "places": 4}
    found = received(kafka, given["sold"])
    assert [each[1:] for each in found if each[0] == b'"Big"'] == [
        (b'{"n":1,"tickets":4}', NOW),
        (None, NOW + 3_700_000),
    ]
    assert [each[1:] for each in found if each[0] == b'"Rio"'] == [(b'{"n":1,"tickets":1}', NOW + 1000)]


@pytest.mark.slow
@pytest.mark.long
def test_a_dataframe_of_a_topic_with_a_schema_registry(spark_kafka, kafka, given, tmp_path):
    with schema_registry() as registry:
        text = f"""
        CREATE STREAM s (id BIGINT KEY, a DECIMAL(4, 2)) WITH (KAFKA_TOPIC = '{given["sales"]}', VALUE_FORMAT = 'JSON');
        CREATE STREAM t WITH (KAFKA_TOPIC = '{given["films"]}', VALUE_FORMAT = 'AVRO') AS SELECT * FROM s;
        """
        send(kafka, given["sales"], (struct.pack(">q", 7), b'{"A": 1.50}', NOW), (None, None, NOW + 1))
        frame = spark_kafka.read.format("kafka").option("kafka.bootstrap.servers", kafka)
        stream = spark_kafka.readStream.format("kafka").option("kafka.bootstrap.servers", kafka)
        stream = stream.option("subscribe", given["sales"]).option("startingOffsets", "earliest").load()
        cluster = sql.Kafka(kafka, bounded=True, registry=registry.url)
        sql.script(text, {"s": stream}, kafka=cluster, checkpoint=tmp_path / "written")
        # A stream skips a record without a value.
        assert len(received(kafka, given["films"])) == 1
        text = f"""
        CREATE STREAM t (id BIGINT KEY, a DECIMAL(4, 2)) WITH (KAFKA_TOPIC = '{given["films"]}', VALUE_FORMAT = 'AVRO');
        CREATE STREAM u AS SELECT id, a * 2 AS a FROM t;
        """
        # Over DataFrames a script always ends.
        cluster = sql.Kafka(kafka, registry=registry.url)
        found = sql.script(text, {"t": frame.option("subscribe", given["films"]).load()}, kafka=cluster)["u"]
        assert [(each.key, str(each.value["a"]), each.timestamp) for each in found if each.value] == [(7, "3.00", NOW)]
        with pytest.raises(DefinitionError, match="need a schema registry"):
            sql.script(text, {"t": frame.load()})


@pytest.mark.slow
@pytest.mark.long
def test_a_started_script_follows_its_topics(spark_kafka, kafka, given, tmp_path):
    text = f"""
    CREATE STREAM s (id STRING KEY, n INT) WITH (KAFKA_TOPIC = '{given["sales"]}', VALUE_FORMAT = 'JSON');
    CREATE TABLE t WITH (KAFKA_TOPIC = '{given["sold"]}') AS SELECT id, SUM(n) AS n FROM s GROUP BY id;
    """
    cluster = sql.Kafka(kafka, batch_interval=100)
    query = sql.start(text, kafka=cluster, spark=spark_kafka, checkpoint=tmp_path / "state")
    try:
        for number in (3, 5):
            send(kafka, given["sales"], (b"a", json.dumps({"n": number}).encode(), NOW))
            records = {3: 1, 5: 2}[number]
            until(lambda records=records: len(topics.messages(kafka, given["sold"])) == records)  # type: ignore[misc]
    finally:
        query.stop()
    assert [each[1] for each in received(kafka, given["sold"])] == [b'{"n":3}', b'{"n":8}']


@pytest.mark.slow
@pytest.mark.long
def test_a_spark_without_a_kafka_source_is_told_its_package(kafka, given, tmp_path):
    (tmp_path / "a.sql").write_text(f"""
    CREATE STREAM s (id STRING KEY, n INT) WITH (KAFKA_TOPIC = '{given["sales"]}', VALUE_FORMAT = 'JSON');
    CREATE TABLE t AS SELECT id, SUM(n) AS n FROM s GROUP BY id;
    """)
    command = [sys.executable, "-m", "keyed.cli", "run", "a.sql", "--bootstrap", kafka, "--runtime", "spark"]
    command += ["--until-end", "--checkpoint", "state"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "s: this Spark has no Kafka source; name its package" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["local", pytest.param("spark", marks=pytest.mark.long)])
def test_a_command_that_is_killed_goes_on_and_writes_each_record_once(kafka, tmp_path, runtime):
    source, copies, counts = (topics.new_topic() for _ in range(3))
    topics.create(kafka, source, 2, retention_ms=-1)
    (tmp_path / "a.sql").write_text(f"""
    CREATE STREAM s (id BIGINT KEY, n INT) WITH (KAFKA_TOPIC = '{source}', FORMAT = 'JSON');
    CREATE STREAM copies WITH (KAFKA_TOPIC = '{copies}') AS SELECT id, n FROM s;
    CREATE TABLE counts WITH (KAFKA_TOPIC = '{counts}') AS SELECT n, COUNT(*) AS c FROM s GROUP BY n;
    """)
    command = [sys.executable, "-m", "keyed.cli", "run", "a.sql", "--bootstrap", kafka, "--checkpoint", "state"]
    given: dict[str, Any] = {"cwd": tmp_path, "env": dict(os.environ), "stdout": subprocess.DEVNULL}
    if runtime == "spark":
        command += ["--runtime", "spark"]
        given["env"]["PYSPARK_SUBMIT_ARGS"] = f"--jars {','.join(map(str, fetch(CONNECTOR)))} pyspark-shell"
    else:
        command += ["--rows-per-batch", "7"]
    ids = lambda: [int(key) for key, _, _ in received(kafka, copies, 2)]  # noqa: E731
    for number in range(KILLS):
        first = number * 100
        rows = [(str(n).encode(), b'{"N": %d}' % (n % 3), NOW + n, n % 2) for n in range(first, first + 100)]
        send(kafka, source, *rows[:50])
        with subprocess.Popen(command, start_new_session=True, **given) as process:
            until(lambda: (topics.made(kafka, copies) and len(ids()) > first) or process.poll() is not None)  # noqa: B023
            send(kafka, source, *rows[50:])
            # Every second one dies after its second batch has begun to be written.
            seen = first + 50 * (number % 2)
            until(lambda: len(ids()) > seen or process.poll() is not None)  # noqa: B023
            os.killpg(process.pid, signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
    subprocess.run([*command, "--until-end"], check=True, **given)
    assert sorted(ids()) == list(range(KILLS * 100))
    found = [(json.loads(key), json.loads(value)["c"]) for key, value, _ in received(kafka, counts, 2)]
    sizes = [len(range(n, KILLS * 100, 3)) for n in range(3)]
    # A batch writes one change for each key: each once, the last one with all rows.
    assert len(set(found)) == len(found)
    assert {n: max(count for key, count in found if key == n) for n in range(3)} == dict(enumerate(sizes))


def test_what_does_not_fit_is_refused(tmp_path):
    text = SCRIPT.format(sales="a", films="b", sold="c", format="JSON")
    with pytest.raises(DefinitionError, match=r"spark=7 must be a SparkSession, for the topics of kafka="):
        sql.script(text, kafka=sql.Kafka("localhost:1", bounded=True), spark=7)


def test_a_started_script_has_no_end_and_another_one_has(tmp_path):
    text = SCRIPT.format(sales="a", films="b", sold="c", format="JSON")
    with pytest.raises(DefinitionError, match="follows its topics until it is stopped"):
        sql.start(text, kafka=sql.Kafka("localhost:1", bounded=True), spark=MagicMock(), checkpoint=tmp_path)
    with pytest.raises(DefinitionError, match="ends with the records of its topics"):
        sql.script(text, kafka=sql.Kafka("localhost:1"), spark=MagicMock(), checkpoint=tmp_path)
