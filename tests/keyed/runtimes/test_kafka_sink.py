"""Jobs with a Kafka sink whose program is killed, or whose broker is gone or forgets: each row is in the topic once."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import closing, suppress
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest

from keyed.destinations.kafka import TopicWriter
from keyed.destinations.sink import Owner
from keyed.errors import KeyedError, QueryFailed, SinkError
from keyed.kafka.client import Transactions
from keyed.topics import KafkaSink
from tests.keyed.changelog.kafka import topics
from tests.keyed.runtimes.conftest import long_on_spark
from tests.keyed.runtimes.spark.functions import count, files_source, write_file
from tests.support.spark_programs import Program
from tests.support.waiting import until


@pytest.fixture
def topic(kafka):
    return topics.created(kafka, 2)


def write_files(folder, first=0, files=4):
    """Write files of ten rows; the counts of their keys are those of the rows so far."""
    for number in range(first, first + files):
        write_file(folder / "in", number, [("ab"[n % 2], 100 * number + n, 1) for n in range(10)])


def written(kafka, topic):
    """The committed rows of a topic."""
    found = [message for partition in range(2) for message in topics.messages(kafka, topic, partition)]
    return sorted((message.key().decode(), json.loads(message.value())["n"]) for message in found)


def once(files):
    return [(key, n) for key in "ab" for n in range(1, 5 * files + 1)]


def run(spark, folder, sink):
    return count(files_source(spark, folder / "in")).run(sink, checkpoint=folder / "checkpoint")


def forget(kafka, group):
    """What a broker does with the offsets of a group a week after the last commit."""
    client = confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka})
    client.delete_consumer_groups([group])[group].result(60)


def set_by_hand(error, number):
    """Do what the message of the sink says."""
    call = re.search(r"confluent_kafka.Consumer.*asynchronous=False\)", str(error.value))
    assert call
    exec(call[0], {"confluent_kafka": confluent_kafka, "N": number})


@long_on_spark
@pytest.mark.parametrize("is_there", [True, False])
def test_a_position_that_kafka_has_forgotten_is_asked_for_where_a_batch_may_have_been_written(
    runtime, kafka, topic, tmp_path, monkeypatch, is_there
):
    runtime.size = 2
    sink = KafkaSink(topic, bootstrap=kafka, key="k")

    def add():
        runtime.add(tmp_path / "in", [("a", 1_000, 1)] * 2)

    def run():
        options = {"checkpoint": tmp_path / "c", "drain": False, **runtime.batches}
        count(runtime.source(tmp_path / "in"), parallelism=2).run(sink, **options)

    def numbers():
        return [n for _, n in written(kafka, topic)]

    add()
    run()
    forget(kafka, sink.transactional_id)
    # Nothing waits, so nobody needs it.
    add()
    run()
    assert numbers() == [1, 2, 3, 4]
    write = TopicWriter.write

    def killed(self, records, batch):
        if is_there:
            write(self, records, batch)
        raise ZeroDivisionError

    add()
    with monkeypatch.context() as patch:
        patch.setattr(TopicWriter, "write", killed)
        with pytest.raises(QueryFailed, match="ZeroDivisionError"):
            run()
    forget(kafka, sink.transactional_id)
    add()
    for _ in range(2):
        refusal = r"whether batch 2 was written: .* N is 3 if the batch is there, and 2 if"
        with pytest.raises(SinkError, match=refusal) as caught:
            run()
    set_by_hand(caught, 3 if is_there else 2)
    with (
        closing(TopicWriter(sink, Owner(["another"]))) as writer,
        pytest.raises(SinkError, match="another query has written"),
    ):
        writer.claim()
    run()
    assert numbers() == list(range(1, 9))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    "kills",
    [
        [("deliver", 0), ("committed", 1), ("none", 0)],
        pytest.param(
            [("begin", 0), ("commit_offset", 0), ("commit", 1), ("committed", 2), ("none", 0), ("none", 0)],
            marks=pytest.mark.long,
        ),
    ],
    ids=lambda kills: str(len(kills)),
)
def test_a_program_that_is_killed_writes_each_row_once(kafka, topic, tmp_path, kills):
    write_files(tmp_path)
    for place, batch in kills:
        status, said = Program("topic_program.main", tmp_path, kafka, topic, place, batch).end()
        assert status == (0 if place == "none" else -9), said
    assert written(kafka, topic) == once(4)


@pytest.mark.long
def test_a_broker_that_dies_and_comes_back_delays_a_batch(spark, broker, tmp_path, monkeypatch):
    topic = topics.created(broker.bootstrap, 2)
    write_files(tmp_path)
    calls = iter(["deliver", "commit"])

    def dies_at(name):
        original = getattr(Transactions, name)

        def call(self, *arguments):
            if name == going[0]:
                going[0] = next(calls, "")
                broker.kill()
                broker.start()
            return original(self, *arguments)

        monkeypatch.setattr(Transactions, name, call)

    going = [next(calls)]
    for name in ("deliver", "commit"):
        dies_at(name)
    run(spark, tmp_path, KafkaSink(topic, bootstrap=broker.bootstrap, key="k"))
    assert going == [""]
    assert written(broker.bootstrap, topic) == once(4)


def client_threads():
    """The number of threads of Kafka clients in this process, which Python does not list."""
    count = 0
    for name in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # It has just ended.
            count += name.read_text().startswith("rdk:")
    return count


@pytest.mark.parametrize("call", ["deliver", pytest.param("claim", marks=pytest.mark.long)])
def test_a_broker_that_is_gone_fails_the_query_in_time_and_the_next_run_goes_on(
    spark, broker, tmp_path, monkeypatch, caplog, call
):
    topic = topics.created(broker.bootstrap, 2)
    sink = KafkaSink(topic, bootstrap=broker.bootstrap, key="k", timeout=3_000)
    # A broker that has just started may need longer than that.
    patient = KafkaSink(topic, bootstrap=broker.bootstrap, key="k")
    write_files(tmp_path, 0, 1)
    run(spark, tmp_path, patient)
    write_files(tmp_path, 1, 1)
    before = client_threads()
    try:
        with monkeypatch.context() as patch:
            if call == "claim":
                broker.kill()
            else:
                original = getattr(Transactions, call)
                patch.setattr(Transactions, call, lambda *arguments: (broker.kill(), original(*arguments)))
            with pytest.raises(SinkError, match=r"no broker answered|has not accepted"):
                run(spark, tmp_path, sink)
        until(lambda: client_threads() <= before)
        # A client that is left would go on to report that its broker is gone.
        assert not [record for record in caplog.records if "rdkafka" in record.getMessage()]
    finally:
        broker.start()
    run(spark, tmp_path, patient)
    assert written(broker.bootstrap, topic) == once(2)


@pytest.mark.long
def test_on_a_full_disk_the_query_fails_and_the_next_run_goes_on(spark, kafka, topic, tmp_path, small_disk):
    sink = KafkaSink(topic, bootstrap=kafka, key="k")

    def run():
        count(files_source(spark, tmp_path / "in")).run(sink, checkpoint=small_disk / "checkpoint")

    write_files(tmp_path, 0, 1)
    run()
    full = small_disk / "full"
    # The disk is full at once, or within the batches of the run.
    for number, kib in enumerate((0, 8, 32, 128), start=1):
        write_files(tmp_path, 4 * number - 3, 4)
        left = shutil.disk_usage(small_disk).free - kib * 1024
        full.write_bytes(bytes(left))
        with pytest.raises(KeyedError, match="No space left on device"):
            run()
        full.unlink()
        run()
        assert written(kafka, topic) == once(4 * number + 1)
