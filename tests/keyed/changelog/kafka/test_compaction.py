"""Compaction of a Kafka log: whatever it took, a reader gives states that the job had, or says that it cannot.

The log cleaner is modelled here, so that every place where it may stop can be tried; and a real one is let loose.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed.changelog.kafka import KafkaChangelog
from keyed.changelog.kafka.kafka_group import KafkaReader
from keyed.changelog.kafka.kafka_records import COMMIT, HEADER, RecordKeys, entry_headers, marker_headers
from keyed.changelog.model import Commit, LogHeader, encode_commit, encode_header
from keyed.errors import CorruptionError, HistoryCompacted
from keyed.testing.changelog_conformance import SampleGroup, state_of
from tests.keyed.changelog.kafka.topics import COMPACTING, new_topic
from tests.support.waiting import until

HEADER_OF_LOG = LogHeader("log", "op", 1, 0)


@attrs.frozen
class Record:
    """A record as the client hands it out."""

    place: int
    its_key: bytes
    its_value: bytes | None
    its_headers: Any = None

    def key(self) -> bytes:
        return self.its_key

    def value(self) -> bytes | None:
        return self.its_value

    def headers(self) -> Any:
        return self.its_headers

    def offset(self) -> int:
        return self.place

    def timestamp(self) -> tuple[int, int]:
        return 1, 0


class Partition:
    """A partition and its cleaner, in place of one of a cluster."""

    topic, number = "topic", 0

    def __init__(self) -> None:
        self.log = [Record(0, HEADER, encode_header(HEADER_OF_LOG))]
        self.end = 1
        self._keys = RecordKeys("op", "here")
        self._base = 0

    def append(self, commit: Commit, blocks: Any) -> None:
        """A commit as the writer writes it, with the transaction's own record after it."""
        entries = [change for block in blocks for change in block]
        commit = attrs.evolve(commit, log_id="log", records=len(entries))
        self._base = commit.sequence if commit.snapshot or not self._base else self._base
        headers = entry_headers(commit)
        records = [(self._keys.key(prefix, sub), value, headers) for prefix, sub, value in entries]
        records.append((COMMIT, encode_commit(commit), marker_headers(commit, self._base)))
        self.log += [Record(self.end + at, *record) for at, record in enumerate(records)]
        self.end += len(records) + 1

    def clean(self, end: int, cleaned: int, *, tombstones: bool) -> None:
        """Act as the cleaner, which has the keys up to ``end``, and was stopped at ``cleaned``."""
        newest = {record.key(): record.place for record in self.log if record.place < end}

        def stays(record: Record) -> bool:
            if record.place >= min(end, cleaned):
                return True
            return newest[record.key()] == record.place and (record.value() is not None or not tombstones)

        self.log = [record for record in self.log if stays(record)]

    @property
    def cluster(self) -> Any:
        return self

    def topic_settings(self, topic: str) -> dict[str, str]:
        return {"min.compaction.lag.ms": "0"}

    def consumer(self) -> None:
        return None

    def offsets(self, consumer: None) -> tuple[int, int]:
        return 0, self.end

    def read(self, consumer: None, start: int) -> Iterator[list[Record]]:
        yield [record for record in self.log if record.place >= start]


def reader_of(partition: Any) -> KafkaReader:
    return KafkaReader(partition, HEADER_OF_LOG)


def halving_reader_of(partition: Any) -> KafkaReader:
    """A reader that looks for a place by halving even in a small partition."""
    made = reader_of(partition)
    made.near = 2
    return made


def grown(number: Random, commits: int) -> tuple[SampleGroup, Partition]:
    """A log of some commits, a few of them snapshots after a gap, cleaned now and then wherever chance has it."""
    sample, partition = SampleGroup(number, keys=4), Partition()
    for _ in range(commits):
        if number.random() < 0.15:
            # Changes that the log does not get, and a snapshot.
            for _ in range(number.randrange(3)):
                sample.commit(3)
            partition.append(*sample.snapshot())
        else:
            partition.append(*sample.commit(number.randrange(6)))
        if number.random() < 0.3:
            end = number.randint(0, partition.end)
            partition.clean(end, number.choice([end, number.randint(0, end)]), tombstones=number.random() < 0.5)
    return sample, partition


@given(st.randoms(use_true_random=False), st.integers(0, 12))
def test_a_reader_gives_states_that_were_or_says_that_it_cannot(number, commits):
    sample, partition = grown(number, commits)
    reader = reader_of(partition)
    assert state_of(reader) == sample.state
    found = [commit.sequence for commit, _ in reader.commits()]
    assert found == sorted(set(found))
    for sequence in range(1, sample.last.sequence + 1):
        try:
            state = state_of(reader, sequence)
        except HistoryCompacted:
            assert not found or sequence < found[0]
        else:
            newest = max((past for past in found if past <= sequence), default=0)
            assert state == sample.past[newest]


def fold(state: Any, commit: Commit, blocks: Any) -> Any:
    """Return the state after a commit."""
    state = {} if commit.snapshot else state
    for prefix, sub, value in chain.from_iterable(blocks):
        state.pop((prefix, sub), None)
        if value is not None:
            state[prefix, sub] = value
    return state


@given(st.randoms(use_true_random=False), st.integers(1, 12))
def test_a_reader_goes_on_or_says_that_it_cannot(number, commits):
    sample, partition = grown(number, commits)
    for after in range(1, sample.last.sequence + 1):
        state = dict(sample.past[after])
        try:
            for commit, blocks in halving_reader_of(partition).commits(after):
                assert commit.sequence > after
                state = fold(state, commit, blocks)
                assert state == sample.past[commit.sequence]
        except HistoryCompacted:
            continue
        assert state == sample.state


class Moving(Partition):
    """A partition that is cleaned while it is read."""

    chance = Random(0)

    def read(self, consumer: None, start: int) -> Iterator[list[Record]]:
        while page := [record for record in self.log if record.place >= start][: self.chance.randint(1, 5)]:
            yield page
            start = page[-1].place + 1
            if self.chance.random() < 0.3:
                self.clean(self.chance.randint(0, self.end), self.end, tombstones=self.chance.random() < 0.5)


@given(st.randoms(use_true_random=False), st.integers(1, 12))
def test_compaction_while_reading_gives_no_wrong_state(number, commits):
    sample, partition = grown(number, commits)
    moving = Moving()
    moving.chance, moving.log, moving.end = number, partition.log, partition.end
    state: Any = {}
    try:
        for commit, blocks in reader_of(moving).commits():
            state = fold(state, commit, blocks)
            assert state == sample.past[commit.sequence]
    except (HistoryCompacted, CorruptionError):
        return
    assert state == sample.state


def test_a_state_that_is_not_what_its_marker_says_is_refused():
    sample, partition = grown(Random(2), 9)
    partition.clean(partition.end, partition.end, tombstones=True)
    assert state_of(reader_of(partition)) == sample.state
    where = max(at for at, record in enumerate(partition.log) if record.key()[:1] == b"E" and record.value())
    lost = partition.log.pop(where)
    with pytest.raises(CorruptionError, match="read again, and if the error repeats, the log is damaged"):
        list(reader_of(partition).commits())
    partition.log.insert(where, attrs.evolve(lost, its_value=b"other"))
    with pytest.raises(CorruptionError, match="have hash"):
        list(reader_of(partition).commits())


def read_again(read):
    """Read again, as the error says, while a cleaner without a lag works between two requests of a reader."""
    for _ in range(50):
        with suppress(HistoryCompacted):
            return read()
    return read()


@pytest.mark.slow
def test_a_real_cleaner_leaves_what_a_reader_needs(kafka):
    changelog = KafkaChangelog(
        new_topic(), bootstrap=kafka, compaction_lag=0, tombstone_retention=100, topic_settings=COMPACTING
    )
    changelog.prepare("op", 1)
    sample = SampleGroup(Random(21), keys=30)
    writer = changelog.writer(0)
    follower, followed = changelog.reader(0), 0
    for number in range(12):
        commit = writer.append(*(sample.snapshot(gap=3) if number == 5 else sample.commit(120)))
        changelog.put_position(commit.sequence, b"at %d" % commit.sequence)
        if number == 3:
            followed = read_again(lambda: [commit.sequence for commit, _ in follower.commits()][-1])
        assert read_again(lambda: state_of(changelog.reader(0))) == sample.state
    # The cleaner looks at segments that are full, and one more record makes another one.
    until(
        lambda: read_again(lambda: not any(commit.sequence <= followed for commit, _ in changelog.reader(0).commits()))
    )
    reader = changelog.reader(0)
    assert read_again(lambda: state_of(reader)) == sample.state
    first = read_again(lambda: next(iter(reader.commits()))[0])
    assert first.snapshot
    assert first.records == first.entries
    with pytest.raises(HistoryCompacted, match="read again from the start"):
        list(follower.commits(followed))
    with pytest.raises(HistoryCompacted, match=f"until={followed} is before commit"):
        list(reader.commits(0, followed))
    # The newest positions stay, whatever compaction does.
    assert [sequence for sequence, _ in changelog.positions()][-1] == sample.last.sequence
    assert changelog.writer(0).last() == reader.last()
