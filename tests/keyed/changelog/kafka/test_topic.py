"""The topic of a Kafka log: how it is made, what is refused, and what any client finds in it."""

from __future__ import annotations

import struct
from datetime import timedelta
from random import Random

import pytest

from keyed.changelog.kafka import KafkaChangelog
from keyed.changelog.kafka import kafka_changelog as module
from keyed.changelog.model import decode_commit, decode_header, decode_position
from keyed.codec.key_hash import key_hash
from keyed.content.addresses import key_of
from keyed.errors import ChangelogError
from keyed.kafka.client import Partition, Transactions
from keyed.testing.changelog_conformance import SampleGroup
from tests.keyed.changelog.kafka.topics import alter, create, created, described, made, messages, new_topic, produce

NUMBER = struct.Struct(">Q")


def test_it_is_created_as_asked_for(kafka):
    topic = new_topic()
    changelog = KafkaChangelog(
        topic,
        bootstrap=kafka,
        replication_factor=1,
        compaction_lag=timedelta(minutes=5),
        tombstone_retention=1000,
        topic_settings={"max.message.bytes": 2_000_000, "unclean.leader.election.enable": False},
    )
    assert changelog.prepare("op", 3) == changelog.prepare("op", 3)
    settings = described(kafka, topic)
    assert settings["cleanup.policy"] == "compact"
    assert settings["min.compaction.lag.ms"] == "300000"
    assert settings["delete.retention.ms"] == "1000"
    assert settings["max.message.bytes"] == "2000000"
    assert [decode_header(messages(kafka, topic, group)[0].value(), "here") for group in range(4)] == [
        changelog.header()
    ] * 4


def test_a_topic_that_is_there_serves_if_it_is_right(kafka):
    topic = created(kafka, 3, cleanup_policy="compact", min_compaction_lag_ms=3_600_000)
    header = KafkaChangelog(topic, bootstrap=kafka).prepare("op", 2)
    assert KafkaChangelog(topic, bootstrap=kafka).header() == header


def test_asking_for_a_topic_does_not_make_it(kafka):
    changelog = KafkaChangelog(new_topic(), bootstrap=kafka)
    assert changelog.header() is None
    assert not made(kafka, changelog.topic)


@pytest.mark.parametrize("partition", [0, 1])
def test_a_driver_that_died_while_it_wrote_the_headers_does_no_harm(kafka, partition):
    changelog = KafkaChangelog(new_topic(), bootstrap=kafka)
    create(kafka, changelog.topic, 2, cleanup_policy="compact", min_compaction_lag_ms=3_600_000)
    dead = Transactions(changelog._cluster(), f"keyed-{changelog.topic}-header", "here")
    dead.begin()
    dead.send(Partition(changelog._cluster(), changelog.topic, partition), [(b"H", b"half")])
    dead.deliver()
    dead.close()
    assert changelog.prepare("op", 1) == changelog.header()
    sample = SampleGroup(Random(4))
    changelog.writer(0).append(*sample.commit())
    assert [commit.sequence for commit, _ in changelog.reader(0).commits()] == [1]


@pytest.mark.parametrize(
    ("partitions", "settings", "words"),
    [
        (2, {"cleanup_policy": "compact", "min_compaction_lag_ms": 0}, ["2 partitions", "3 are needed"]),
        (3, {"min_compaction_lag_ms": 0}, ["cleanup.policy is delete", "should be compact"]),
        (3, {"cleanup_policy": "compact,delete", "min_compaction_lag_ms": 0}, ["cleanup.policy is compact,delete"]),
        (3, {"cleanup_policy": "compact", "min_compaction_lag_ms": 5}, ["min.compaction.lag.ms is 5", "should be 0"]),
    ],
)
def test_a_topic_that_is_not_right_is_refused_with_the_difference(kafka, partitions, settings, words):
    topic = created(kafka, partitions, **settings)
    with pytest.raises(ChangelogError, match=topic) as refused:
        KafkaChangelog(topic, bootstrap=kafka, compaction_lag=0).prepare("op", 2)
    assert [word for word in words if word not in str(refused.value)] == []
    assert messages(kafka, topic) == []


def test_a_topic_that_was_altered_is_refused(kafka):
    changelog = KafkaChangelog(new_topic(), bootstrap=kafka, topic_settings={"segment.ms": 60_000})
    changelog.prepare("op", 1)
    alter(kafka, changelog.topic, segment_ms=50_000)
    with pytest.raises(ChangelogError, match=r"segment\.ms is 50000, and should be 60000"):
        changelog.prepare("op", 1)


def test_more_replicas_than_brokers_are_refused(kafka):
    with pytest.raises(ChangelogError, match="INVALID_REPLICATION_FACTOR"):
        KafkaChangelog(new_topic(), bootstrap=kafka, replication_factor=50).prepare("op", 1)


def test_other_replicas_than_asked_for_are_refused(kafka):
    topic = created(kafka, 2, cleanup_policy="compact", min_compaction_lag_ms=3_600_000)
    with pytest.raises(ChangelogError, match="1 replicas, replication_factor=2"):
        KafkaChangelog(topic, bootstrap=kafka, replication_factor=2).prepare("op", 1)


@pytest.mark.parametrize("partition", [0, 1])
def test_a_topic_of_others_is_refused(kafka, partition):
    topic = created(kafka, 2, cleanup_policy="compact", min_compaction_lag_ms=3_600_000)
    produce(kafka, topic, [(b"mine", b"data")], partition)
    with pytest.raises(ChangelogError, match=f"{topic}.* (does not begin with the header|is not empty)"):
        KafkaChangelog(topic, bootstrap=kafka).prepare("op", 1)


def test_records_are_what_the_layout_says(kafka):
    changelog = KafkaChangelog(new_topic(), bootstrap=kafka)
    changelog.prepare("operator_1", 1)
    sample = SampleGroup(Random(3), keys=10)
    writer = changelog.writer(0)
    appended, written = [], []
    for _ in range(4):
        commit, blocks = sample.commit()
        appended.append(writer.append(commit, blocks))
        written.append([change for block in blocks if isinstance(block, list) for change in block])
    head, *records = messages(kafka, changelog.topic)
    assert head.key() == b"H"
    name = b"operator_1"
    for commit, changes in zip(appended, written, strict=True):
        entries, marker = records[: len(changes)], records[len(changes)]
        records = records[len(changes) + 1 :]
        for message, (prefix, sub, value) in zip(entries, changes, strict=True):
            hashed = struct.pack(">q", key_hash(key_of(prefix)))
            length = struct.pack(">I", len(prefix))
            assert message.key() == b"E" + struct.pack(">H", len(name)) + name + hashed + length + prefix + sub
            assert message.value() == value
        common = [
            ("group", struct.pack(">I", 0)),
            ("sequence", NUMBER.pack(commit.sequence)),
            ("batch", commit.attempt.encode()),
        ]
        assert all(message.headers() == common for message in entries)
        assert marker.key() == b"C"
        assert marker.headers() == [*common, ("base", NUMBER.pack(1))]
        assert decode_commit(marker.value(), "here") == commit
    assert records == []


def test_positions_stand_in_a_partition_of_their_own(kafka):
    changelog = KafkaChangelog(new_topic(), bootstrap=kafka)
    changelog.prepare("op", 2)
    for sequence in (63, 64, 65):
        changelog.put_position(sequence, b"at %d" % sequence)
    _, *records = messages(kafka, changelog.topic, 2)
    assert [message.key() for message in records] == [b"P\x3f", b"P\x00", b"P\x01"]
    assert [decode_position(message.value(), "here")[0] for message in records] == [63, 64, 65]


def test_what_writes_positions_is_closed_when_it_is_not_used(kafka, monkeypatch):
    monkeypatch.setattr(module, "_IDLE_SECONDS", -1)
    changelog = KafkaChangelog(new_topic(), bootstrap=kafka)
    changelog.prepare("op", 1)
    for sequence in (1, 2):
        changelog.put_position(sequence, b"here")
        assert changelog not in module._positions
    assert [sequence for sequence, _ in changelog.positions()] == [1, 2]
