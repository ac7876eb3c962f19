"""Replay from a topic on a real broker: the rows of each batch are read again at the offsets in the changelog."""

from __future__ import annotations

import json

import pytest

import keyed
from keyed import DirectoryChangelog, KafkaChangelog, KafkaSource
from keyed.cli.main import main
from keyed.errors import CheckpointError
from keyed.runtimes.local.local_position import decode_position
from keyed.testing import KeyedTestHarness, Record, replay
from tests.keyed.changelog.kafka import topics
from tests.keyed.testing.test_replay import DIFFERS, ROWS, Sales, WithoutSevens


def decode(record):
    return json.loads(record.value)


def topic_of(kafka, topic, **options):
    return KafkaSource(topic, bootstrap=kafka, decode=decode, bounded=True, batch_interval=50, **options)


@pytest.fixture
def topic(kafka):
    return topics.created(kafka, 2)


def write(kafka, topic, rows):
    for row in rows:
        key = row["shop"]
        topics.produce(kafka, topic, [(key.encode(), json.dumps(row).encode())], "abc".index(key) % 2)


@pytest.fixture
def job(kafka, topic, tmp_path):
    """A job that has read the topic in three runs, and the changelog of it."""

    def run(changelog):
        for start in range(0, len(ROWS), 3):
            write(kafka, topic, ROWS[start : start + 3])
            stream = keyed.stream(topic_of(kafka, topic), timestamp="time").key_by("shop")
            sales = stream.process(Sales(), changelog=changelog, parallelism=2)
            sales.run(checkpoint=tmp_path / "ck", rows_per_batch=2, processing_time=lambda: 1_000)
        # What came later is not the job's.
        write(kafka, topic, [{"shop": "a", "amount": 1_000, "time": 1_000_000}])
        return changelog

    return run


@pytest.mark.parametrize("log", ["directory", pytest.param("kafka", marks=pytest.mark.long)])
def test_the_batches_are_read_again_from_the_topic(kafka, topic, job, log, tmp_path):
    kept = DirectoryChangelog(tmp_path / "log", auto_compact=False)
    changelog = job(kept if log == "directory" else KafkaChangelog(topics.new_topic(), bootstrap=kafka))
    for first in (0, 2):
        source = topic_of(kafka, topic)
        done = replay(changelog, Sales(), WithoutSevens(), source, key="shop", timestamp="time", first=first)
        assert done.lines == DIFFERS
        assert done.rows == 9 if first == 0 else 0 < done.rows < 9
    with pytest.raises(CheckpointError, match="give the source that it has read"):
        replay(changelog, Sales(), Sales(), topic_of(kafka, topics.created(kafka, 2)), key="shop", timestamp="time")


@pytest.mark.long
def test_rows_of_the_topic_go_on_from_the_state_of_a_batch(kafka, topic, job, tmp_path):
    changelog = job(DirectoryChangelog(tmp_path / "log", auto_compact=False))
    positions = {number: decode_position(record, "").source for number, record in changelog.positions(1)}
    with KeyedTestHarness.from_changelog(
        changelog, Sales(), key="shop", as_of=1, watermark=keyed.bounded_out_of_orderness(0)
    ) as harness:
        with harness.batch():
            for row in topic_of(kafka, topic).between(positions[2], positions[3]):
                harness.process(*Record(row, row["time"]))
        with KeyedTestHarness.from_changelog(changelog, Sales(), key="shop", as_of=2) as later:
            assert harness.state("total") == later.state("total")
            assert harness.pending_timers() == later.pending_timers()


def test_the_command_reads_the_topic(kafka, topic, job, tmp_path, capsys, monkeypatch):
    job(DirectoryChangelog(tmp_path / "log", auto_compact=False))
    (tmp_path / "sales_source.py").write_text(
        "import json\n"
        "import keyed\n"
        "def sales():\n"
        f"    decode = lambda record: json.loads(record.value)\n"
        f"    return keyed.KafkaSource({topic!r}, bootstrap={kafka!r}, decode=decode)\n"
    )
    monkeypatch.chdir(tmp_path)
    functions = [f"{Sales.__module__}:{each.__name__}" for each in (Sales, WithoutSevens)]
    command = ["replay", "log", *functions, "sales_source:sales", "--key", "shop", "--timestamp", "time"]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == [*DIFFERS]
    assert main([*command[:4], "sales_source:nothing", *command[5:]]) == 1
    assert "'sales_source:nothing' is not a source, and no file is there" in capsys.readouterr().err
