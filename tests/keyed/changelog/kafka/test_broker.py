"""A Kafka log whose broker dies and comes back: each commit is there once, whole, or its writer says that it is not."""

from __future__ import annotations

import contextlib
import threading
from random import Random
from typing import Any

import attrs
import pytest

from keyed.changelog.kafka import KafkaChangelog
from keyed.changelog.kafka.kafka_records import ENTRY
from keyed.errors import ChangelogError
from keyed.kafka.client import Partition, Transactions, declared_cluster
from keyed.testing.changelog_conformance import SampleGroup, state_of
from tests.keyed.changelog.kafka.topics import end, new_topic
from tests.support.waiting import until

QUIET = {"log_level": 0}


@pytest.mark.slow
def test_a_broker_that_dies_in_mid_commit_delays_it(broker):
    changelog = KafkaChangelog(new_topic(), bootstrap=broker.bootstrap, settings=QUIET)
    changelog.prepare("op", 1)
    sample = SampleGroup(Random(31))
    writer = changelog.writer(0)
    writer.append(*sample.commit())
    commit, blocks = sample.commit()
    before = end(broker.bootstrap, changelog.topic)

    def bounced():
        yield from blocks
        # Some of it is on the broker, in no commit yet; the rest waits on the client.
        until(lambda: end(broker.bootstrap, changelog.topic) > before)
        broker.kill()
        broker.start()

    assert writer.append(commit, bounced()).sequence == 2
    writer.append(*sample.commit())
    reader = changelog.reader(0)
    assert [commit.sequence for commit, _ in reader.commits()] == [1, 2, 3]
    assert state_of(reader) == sample.state


@pytest.mark.slow
def test_a_broker_that_stays_away_fails_the_commit_and_nothing_is_lost(broker):
    changelog = KafkaChangelog(new_topic(), bootstrap=broker.bootstrap, settings=QUIET)
    changelog.prepare("op", 1)
    sample = SampleGroup(Random(32))
    # Long enough for the first commit on a slow machine.
    writer = attrs.evolve(changelog, timeout=8_000).writer(0)
    reader = attrs.evolve(changelog, timeout=1500).reader(0)
    writer.append(*sample.commit())
    commit, blocks = sample.commit()
    broker.kill()
    try:
        for call in (
            lambda: writer.append(commit, blocks),
            lambda: list(reader.commits()),
            lambda: attrs.evolve(changelog, timeout=1500).prepare("op", 1),
        ):
            with pytest.raises(ChangelogError, match=r"no broker answered|not accepted|_TIMED_OUT"):
                call()
    finally:
        broker.start()
    last = changelog.writer(0).last()
    assert last is not None
    assert last.sequence == 1
    # The one that failed takes the id back, and goes on from what is there.
    writer.append(commit, blocks)
    # The broker that has just started answers a commit before its marker is in the partition, where readers look.
    until(lambda: state_of(changelog.reader(0)) == sample.state, seconds=60)


def last_sequence(log: Any) -> int:
    """The sequence of the last commit."""
    last: int = log.last().sequence
    return last


@pytest.mark.slow
def test_a_transaction_whose_broker_dies_at_its_end_is_ended_when_the_broker_is_back(broker):
    # Kafka 4.1 to 4.3 leave it open (KAFKA-20734): nothing of it could be read, or all with the next one.
    changelog = KafkaChangelog(new_topic(), bootstrap=broker.bootstrap, settings=QUIET)
    changelog.prepare("op", 1)
    sample = SampleGroup(Random(33))
    for commits in (1, 2):
        changelog.writer(0).append(*sample.commit())
        changelog.put_position(commits, b"%d" % commits)
        broker.kill()
        broker.start()
        # A run that starts again takes the ids back, and stores the position of its last batch once more.
        assert last_sequence(changelog.writer(0)) == last_sequence(changelog.reader(0)) == commits
        changelog.close_positions()
        changelog.put_position(commits, b"%d" % commits)
        assert dict(changelog.positions()) == {number: b"%d" % number for number in range(1, commits + 1)}
        assert state_of(changelog.reader(0)) == sample.state
    # What was given up stays out, though its end did not reach the partition either.
    partition = Partition(declared_cluster("test", broker.bootstrap, QUIET, 30_000), changelog.topic, 0)
    header = changelog.header()
    assert header is not None
    given_up = Transactions(partition.cluster, f"keyed-{header.log_id}-0", "test")
    given_up.begin()
    given_up.send(partition, [(ENTRY + b"no", b"entry")])
    given_up.deliver()
    given_up.close()
    broker.kill()
    broker.start()
    changelog.writer(0).append(*sample.commit())
    assert [commit.sequence for commit, _ in changelog.reader(0).commits()][-1] == 3
    assert state_of(changelog.reader(0)) == sample.state


@pytest.mark.long
@pytest.mark.parametrize("deaths", [4, 12])
def test_whenever_a_broker_dies_each_commit_is_there_once(broker, deaths):
    number = Random(deaths)
    changelog = KafkaChangelog(new_topic(), bootstrap=broker.bootstrap, timeout=20_000, settings=QUIET)
    changelog.prepare("op", 1)
    sample = SampleGroup(number, keys=2_000)
    writer = changelog.writer(0)
    ended = threading.Event()

    def bounce():
        # At any moment: between two commits, while one is sent, or while it is committed. Not for ever: on a slow
        # machine no commit might come through between two deaths.
        for _ in range(deaths):
            if ended.wait(number.uniform(0, 2)):
                return
            broker.kill()
            broker.start()

    bouncing = threading.Thread(target=bounce)
    bouncing.start()
    try:
        for _ in range(4 * deaths):
            commit, blocks = sample.commit(number.choice([1, 50, 5_000]))
            done = False
            while not done:
                with contextlib.suppress(ChangelogError):
                    if number.random() < 0.2:
                        writer = changelog.writer(0)
                    done = writer.append(commit, blocks).sequence == commit.sequence
    finally:
        ended.set()
        bouncing.join()
    found = [commit.sequence for commit, _ in changelog.reader(0).commits()]
    assert found == list(range(1, sample.last.sequence + 1))
    assert state_of(changelog.reader(0)) == sample.state
