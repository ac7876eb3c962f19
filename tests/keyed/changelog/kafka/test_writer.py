"""Writers of a Kafka log: fenced, interrupted, refused, and in haste."""

from __future__ import annotations

from random import Random
from typing import Any

import attrs
import pyarrow as pa
import pytest

from keyed.changelog.kafka import KafkaChangelog
from keyed.changelog.model import encode_commit
from keyed.codec.arrow_streams import read_stream, write_stream
from keyed.codec.keys import encode_key
from keyed.codec.state_schema import StateSchema
from keyed.content.blocks import TableBlock
from keyed.errors import ChangelogDiverged, ChangelogError, ChangelogFenced, CorruptionError
from keyed.table_state.layout import Layout
from keyed.testing.changelog_conformance import SampleGroup, state_of
from keyed.vectorized import TableState
from tests.keyed.changelog.kafka.topics import alter, create, delete, delete_records, end, messages, new_topic, produce
from tests.support.waiting import until


@pytest.fixture
def changelog(kafka):
    made = KafkaChangelog(new_topic(), bootstrap=kafka)
    made.prepare("op", 1)
    return made


@pytest.fixture
def sample():
    return SampleGroup(Random(11))


@pytest.mark.parametrize("count", [1, 20, 5_000])
def test_a_fenced_zombie_is_refused_and_leaves_nothing(changelog, count):
    # The client tells it in different ways, by how much there is to send.
    sample = SampleGroup(Random(11), keys=5_000)
    zombie = changelog.writer(0)
    zombie.append(*sample.commit())
    writer = changelog.writer(0)
    late = sample.commit(count)
    with pytest.raises(ChangelogFenced, match=changelog.topic):
        zombie.append(*late)
    assert writer.append(*late).sequence == 2
    assert state_of(changelog.reader(0)) == sample.state


def test_a_writer_that_is_fenced_in_mid_commit_leaves_nothing(changelog, sample, kafka):
    zombie = changelog.writer(0)
    zombie.append(*sample.commit())
    before = dict(sample.state)
    commit, blocks = sample.commit()
    changes = [change for block in blocks for change in block] * 50
    taken = []
    whole = len(messages(kafka, changelog.topic, committed=False))

    def overtaken():
        yield changes
        until(lambda: len(messages(kafka, changelog.topic, committed=False)) > whole)
        taken.append(changelog.writer(0))
        yield changes

    with pytest.raises(ChangelogFenced):
        zombie.append(commit, overtaken())
    assert taken[0].last().sequence == 1
    assert len(messages(kafka, changelog.topic, committed=False)) > len(messages(kafka, changelog.topic))
    assert state_of(changelog.reader(0)) == before
    taken[0].append(commit, blocks)
    assert state_of(changelog.reader(0)) == sample.state


@pytest.mark.parametrize("after", [0, 1], ids=["the first", "a later"])
def test_the_transaction_of_a_commit_that_fails_is_aborted_before_its_client_is_destroyed(
    changelog, sample, kafka, after
):
    """A client that is destroyed while it adds a partition to its open transaction can end the process (librdkafka)."""
    writer = changelog.writer(0)
    for _ in range(after):
        writer.append(*sample.commit())
    commit, blocks = sample.commit()
    before = end(kafka, changelog.topic)

    def failing():
        yield from blocks
        until(lambda: end(kafka, changelog.topic) > before)
        raise ChangelogError("no more")

    with pytest.raises(ChangelogError, match="no more"):
        writer.append(commit, failing())
    # A record without a transaction is read at once: no open transaction is before it.
    produce(kafka, changelog.topic, [(b"other", b"record")])
    # The broker would abort the transaction after a minute.
    until(lambda: messages(kafka, changelog.topic)[-1].key() == b"other", seconds=40)


def test_a_fenced_writer_may_be_used_again_and_takes_its_turn(changelog, sample):
    first, second = changelog.writer(0), changelog.writer(0)
    commit = sample.commit()
    second.append(*commit)
    with pytest.raises(ChangelogFenced):
        first.append(*commit)
    assert first.append(*commit) == first.last() == second.last()


def test_the_client_takes_no_more_than_the_broker_does(kafka):
    changelog = KafkaChangelog(
        new_topic(), bootstrap=kafka, settings={"queue.buffering.max.messages": 100, "batch.num.messages": 50}
    )
    changelog.prepare("op", 1)
    sample = SampleGroup(Random(5), keys=5_000)
    changelog.writer(0).append(*sample.commit(20_000))
    assert state_of(changelog.reader(0)) == sample.state


@pytest.mark.parametrize("limit", ["client", "topic"])
def test_an_entry_that_is_too_large_fails_its_commit_alone(kafka, sample, limit):
    settings = {"message.max.bytes": 10_000} if limit == "client" else {}
    asked = {"max.message.bytes": 10_000}
    changelog = KafkaChangelog(new_topic(), bootstrap=kafka, topic_settings=asked, settings=settings)
    changelog.prepare("op", 1)
    writer = changelog.writer(0)
    writer.append(*sample.commit())
    before = dict(sample.state)
    commit, blocks = sample.commit()
    large = [(*blocks[0][0][:2], Random(1).randbytes(20_000))]
    with pytest.raises(ChangelogError, match=r"raise max\.message\.bytes"):
        writer.append(commit, [*blocks, large])
    assert state_of(changelog.reader(0)) == before
    writer.append(commit, blocks)
    assert state_of(changelog.reader(0)) == sample.state


def test_a_commit_for_another_log_is_refused(changelog, sample):
    commit, blocks = sample.commit()
    with pytest.raises(ChangelogDiverged, match="the commit belongs to another"):
        changelog.writer(0).append(attrs.evolve(commit, log_id="another"), blocks)


def test_a_marker_of_another_log_is_refused(changelog, sample, kafka):
    commit, _ = sample.commit()
    produce(kafka, changelog.topic, [(b"C", encode_commit(attrs.evolve(commit, log_id="another")))])
    for call in (lambda: changelog.writer(0), changelog.reader(0).last, lambda: list(changelog.reader(0).commits())):
        with pytest.raises(CorruptionError, match="of changelog another"):
            call()


def test_records_that_keyed_did_not_write_are_refused(changelog, sample, kafka):
    changelog.writer(0).append(*sample.commit())
    produce(kafka, changelog.topic, [(b"mine", b"data")])
    with pytest.raises(CorruptionError, match="b'mine' is not a key"):
        list(changelog.reader(0).commits())


@pytest.mark.slow
def test_a_topic_that_was_deleted_stops_its_writers(changelog, sample, kafka):
    patient = attrs.evolve(changelog, timeout=3000, settings={"message.timeout.ms": 2000, "log_level": 0})
    writer = patient.writer(0)
    writer.append(*sample.commit())
    patient.put_position(1, b"here")
    delete(kafka, changelog.topic)
    with pytest.raises(ChangelogError, match=r"is gone|no broker answered|not accepted"):
        writer.append(*sample.commit())
    with pytest.raises(ChangelogError, match=r"is gone|no broker answered|not accepted"):
        patient.put_position(2, b"there")
    with pytest.raises(ChangelogError, match="is gone"):
        changelog.writer(0)
    assert changelog.header() is None


@pytest.mark.slow
def test_a_topic_that_was_made_anew_stops_writers_of_the_old_one(changelog, sample, kafka):
    writer, reader = changelog.writer(0), changelog.reader(0)
    writer.append(*sample.commit())
    assert len(list(reader.commits())) == 1
    delete(kafka, changelog.topic)
    changelog.prepare("op", 1)
    commit, blocks = sample.commit(1)
    with pytest.raises(ChangelogError, match=r"recreated|UNKNOWN_TOPIC|_STATE|is gone"):
        writer.append(commit, blocks)
    with pytest.raises(ChangelogDiverged, match="and is now"):
        writer.append(commit, blocks)
    assert list(changelog.reader(0).commits()) == []
    for call in (lambda: list(reader.commits(1)), lambda: list(reader.commits())):
        with pytest.raises(ChangelogError, match="recreated"):
            call()


def test_rows_of_tables_are_spelt_out_and_come_back(changelog, sample, kafka):
    state = TableState("user string, day bigint, count bigint, at timestamp", key=("user", "day"))
    state.set_name("totals")
    layout = Layout.of(state)
    schema = StateSchema.of_table("totals", list(state.key), layout.fingerprint(1), None)
    described = {"totals": {"id": 9, "schema": schema.to_json()}}
    users, days = [f"user {n % 7}" for n in range(30)], list(range(30))
    columns: dict[str, list[Any]] = {"user": users, "day": days, "count": days, "at": [None, *days[1:]]}
    rows = pa.table(columns, schema=layout.schema)
    keys = rows.select(["user", "day"])
    first = sample.snapshot()[0]
    writer = changelog.writer(0)
    commit = attrs.evolve(first, states=described, entries=30)
    appended = writer.append(commit, [TableBlock(9, 30, None, write_stream(rows))])
    assert appended.records == 30
    assert [message.key()[-len(encode_key((29,))) :] for message in messages(kafka, changelog.topic)[30:31]] == [
        encode_key((29,))
    ]
    after = attrs.evolve(commit, sequence=2, attempt="b", previous=commit.attempt, snapshot=False, entries=20)
    writer.append(after, [TableBlock(9, 10, write_stream(keys.slice(0, 10)), None)])
    (_, [whole]), (_, [removed]) = [(marker, list(blocks)) for marker, blocks in changelog.reader(0).commits()]
    assert read_stream(whole.written, "here").equals(rows)
    assert (whole.rows, removed.rows, removed.written) == (30, 10, None)
    assert read_stream(removed.removed, "here").equals(keys.slice(0, 10))


def test_records_that_were_deleted_stop_readers(changelog, sample, kafka):
    writer, reader = changelog.writer(0), changelog.reader(0)
    for _ in range(3):
        writer.append(*sample.commit())
    assert [commit.sequence for commit, _ in reader.commits(0, 1)] == [1]
    end = messages(kafka, changelog.topic)[-1].offset()
    # A compacted topic refuses it; so does keyed a topic that was altered like this.
    alter(kafka, changelog.topic, cleanup_policy="compact,delete")
    delete_records(kafka, changelog.topic, 0, end)
    with pytest.raises(ChangelogError, match=r"_AUTO_OFFSET_RESET|OFFSET_OUT_OF_RANGE"):
        list(reader.commits(1))
    with pytest.raises(ChangelogError, match="does not begin with the header"):
        changelog.reader(0)


def test_a_topic_without_a_header_is_refused(kafka):
    changelog = KafkaChangelog(new_topic(), bootstrap=kafka)
    create(kafka, changelog.topic, 2, cleanup_policy="compact")
    for call in (lambda: changelog.writer(0), lambda: changelog.reader(0), lambda: changelog.put_position(1, b"")):
        with pytest.raises(ChangelogError, match="has no changelog yet"):
            call()
