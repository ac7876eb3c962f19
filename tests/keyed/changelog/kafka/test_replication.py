"""A Kafka log with three replicas: it goes on while two brokers are there, and does nothing while there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import attrs
import pytest

from keyed.changelog.kafka import KafkaChangelog
from keyed.errors import ChangelogError
from keyed.testing.changelog_conformance import SampleGroup, state_of
from tests.keyed.changelog.kafka.topics import described, new_topic
from tests.support.kafka import Broker


@pytest.fixture
def brokers(broker: Broker, tmp_path: Path) -> Iterator[list[Broker]]:
    """Three brokers. The one of all tests tells whether any can be had."""
    first = Broker(tmp_path / "1", replicas=3)
    made = [first, *(Broker(tmp_path / str(node), node=node, first=first) for node in (2, 3))]
    try:
        for each in made:
            each.start()
        yield made
    finally:
        for each in made:
            each.kill()


@pytest.mark.long
def test_of_three_brokers_one_may_die_and_two_may_not(brokers):
    changelog = KafkaChangelog(
        new_topic(),
        bootstrap=",".join(each.bootstrap for each in brokers),
        replication_factor=3,
        topic_settings={"min.insync.replicas": 2},
        settings={"log_level": 0},
    )
    # Three partitions: each broker leads one of them.
    changelog.prepare("op", 2)
    assert described(brokers[0].bootstrap, changelog.topic)["min.insync.replicas"] == "2"
    samples = [SampleGroup(Random(group), group) for group in range(2)]
    writers = [changelog.writer(group) for group in range(2)]

    def append_on() -> None:
        for writer, sample in zip(writers, samples, strict=True):
            writer.append(*sample.commit())
        changelog.put_position(samples[0].last.sequence, b"here")

    def states() -> list[object]:
        return [state_of(changelog.reader(group)) for group in range(2)]

    append_on()
    brokers[1].kill()
    append_on()
    append_on()
    before = [dict(sample.state) for sample in samples]
    assert states() == before
    impatient = [attrs.evolve(changelog, timeout=3_000).writer(group) for group in range(2)]
    brokers[2].kill()
    commits = [sample.commit() for sample in samples]
    for writer, commit in zip(impatient, commits, strict=True):
        with pytest.raises(ChangelogError, match=changelog.topic):
            writer.append(*commit)
    assert states() == before
    brokers[1].start()
    writers = [changelog.writer(group) for group in range(2)]
    for writer, commit in zip(writers, commits, strict=True):
        writer.append(*commit)
    append_on()
    assert states() == [sample.state for sample in samples]
    assert [sequence for sequence, _ in changelog.positions()] == [1, 2, 3, 5]
