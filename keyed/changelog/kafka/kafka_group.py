"""Reads and writes a key group's log in a topic.

A reader gets whole commits, in order, each once; compacted ones, folded, as a snapshot.
`keyed.changelog.kafka.kafka_records` describes how the compacted part of a log is recognized.

A writer exports one or more commits in one transaction, with a producer that stays open. The transactional id consists
of the log and the group: taking it over fences earlier writers, and aborts their open transactions. Only then is the
end of the log read, so no other record can come before the appended ones. After any error the producer is closed; the
next append takes the id again and reads the outcome of the last one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import attrs

from keyed.base.closing import closing_on_error
from keyed.changelog.kafka.kafka_records import (
    COMMIT,
    ENTRY,
    HEADER,
    RecordKeys,
    base_of,
    entry_headers,
    marker_headers,
    read_header,
    sequence_of,
)
from keyed.changelog.model import Blocks, Commit, LogHeader, decode_commit, decode_header, encode_commit, refusal_of
from keyed.content.blocks import Block
from keyed.content.contents import hash_sum, hash_text
from keyed.content.delta import described_tables
from keyed.content.table_entries import TableEntries, entries_of, tables_of
from keyed.content.table_entries import blocks_of as entry_blocks
from keyed.errors import ChangelogDiverged, ChangelogError, ChangelogFenced, CorruptionError, HistoryCompacted
from keyed.kafka.client import Partition, Transactions, transactions_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message


def blocks_of(messages: Iterable[Message], keys: RecordKeys, states: dict[str, Any], where: str) -> Blocks:
    """Return the content of records as blocks.

    Args:
        messages: The records.
        keys: The keys of the operator's records.
        states: Descriptions of the states, by name.
        where: For messages.

    Raises:
        CorruptionError: A record or a description is malformed.
    """
    changes = ((*keys.address(message.key() or b""), message.value()) for message in messages)
    return entry_blocks(changes, tables_of(states, where))


class KafkaFold:
    """The records of a partition from its start on, the last one of each key.

    Args:
        keys: The keys of the operator's records.
        where: For messages.
    """

    def __init__(self, keys: RecordKeys, where: str) -> None:
        self._keys = keys
        self._where = where
        self._live: dict[bytes, Message] = {}
        self._base = 0

    def __len__(self) -> int:
        return len(self._live)

    def add(self, messages: Iterable[Message]) -> None:
        """Add the next records."""
        live = self._live
        for message in messages:
            key = message.key() or b""
            if message.value() is None:
                live.pop(key, None)
            else:
                live[key] = message

    def state(self, commit: Commit, base: int) -> Blocks | None:
        """Return the state after a commit, if it is complete.

        It is not if compaction has removed entries that records after the commit replace.

        Args:
            commit: The marker that came after the records.
            base: The sequence of the newest snapshot: older records do not count.

        Raises:
            CorruptionError: It is complete, and differs from the job's state.
        """
        if base > self._base:
            self._base = base
            self._live = {
                key: message
                for key, message in self._live.items()
                if sequence_of(message.headers(), self._where) >= base
            }
        if len(self._live) != commit.entries:
            return None
        # Rows of tables are hashed as rows, which is checked when they are loaded.
        if not described_tables(commit.states, self._where):
            entries = (self._keys.address(key) for key in self._live)
            values = (message.value() for message in self._live.values())
            digest = hash_text(hash_sum((*entry, value) for entry, value in zip(entries, values, strict=True)))
            if digest != commit.hash:
                raise CorruptionError(
                    f"the {commit.entries} entries after commit {commit.sequence} have hash {digest}, and its marker "
                    f"has {commit.hash}",
                    where=self._where,
                )
        return blocks_of(self._live.values(), self._keys, commit.states, self._where)


#: Number of records that are first read for the newest marker; it grows sixteenfold each time that the marker is not
#: among them.
_TAIL = 64
_NEAR = 50_000
_LAG = "min.compaction.lag.ms"
#: Maximal difference between the clocks of broker and reader.
_SKEW_MS = 60_000


@attrs.frozen
class Marker:
    """A commit's marker in the topic.

    Attributes:
        commit: The commit.
        base: Sequence of the newest snapshot up to it.
        offset: Its offset.
        time_ms: Time at which it was written.
    """

    commit: Commit
    base: int
    offset: int
    time_ms: int


def newest_marker(partition: Partition, consumer: Consumer, header: LogHeader) -> Marker | None:
    """Return the newest marker of a key group, or ``None`` if there is none.

    Raises:
        CorruptionError: The marker fails its checks.
        ChangelogError: The partition cannot be read.
    """
    low, high = partition.offsets(consumer)
    start, size = high, _TAIL
    while start > low:
        start, size = max(low, high - size), size * 16
        newest = None
        for messages in partition.read(consumer, start):
            for message in messages:
                if message.key() == COMMIT:
                    newest = message
        if newest is not None:
            return _marker(newest, header, partition)
    return None


def _marker(message: Message, header: LogHeader, partition: Partition) -> Marker:
    place = f"{partition}, offset {message.offset()}"
    commit = decode_commit(message.value() or b"", place)
    if (commit.log_id, commit.group) != (header.log_id, partition.number):
        raise CorruptionError(
            f"a commit of group {commit.group} of changelog {commit.log_id} is in changelog {header.log_id}",
            where=place,
        )
    return Marker(commit, base_of(message.headers(), place), message.offset() or 0, message.timestamp()[1])


class KafkaReader:
    """A `ChangelogReader` on a partition.

    The compacted part of a log is held in memory while it is read, and so is each commit.

    Args:
        partition: The partition, whose number is the index of the key group.
        header: Its header.

    Attributes:
        near: Distance in records from the target within which reading is faster than further search.
    """

    def __init__(self, partition: Partition, header: LogHeader) -> None:
        self._partition = partition
        self._header = header
        self._where = str(partition)
        self._keys = RecordKeys(header.operator, self._where)
        self.near = _NEAR
        #: The offsets of the partition when its header was last read.
        self._checked: tuple[int, int] | None = None
        #: Connected consumers that are not in use.
        self._idle: list[Consumer] = []
        #: The last returned commit, and the offset after its marker.
        self._reached = (0, 0)

    def header(self) -> LogHeader | None:
        """See `IdentifiedReader.header`."""
        with self._consumer() as consumer:
            offsets = self._partition.offsets(consumer)
            # A recreated topic with as many records has markers of another changelog, which are refused.
            if offsets != self._checked:
                if read_header(self._partition, consumer) != self._header:
                    return None
                self._checked = offsets
        return self._header

    def last(self) -> Commit | None:
        """See `ChangelogReader.last`."""
        with self._consumer() as consumer:
            marker = newest_marker(self._partition, consumer, self._header)
        return None if marker is None else marker.commit

    def commits(self, after: int = 0, until: int | None = None) -> Iterator[tuple[Commit, Blocks]]:
        """See `ChangelogReader.commits`."""
        with self._consumer() as consumer:
            commits = self._from(consumer, after) if after else self._from_start(consumer, until)
            for marker, commit, blocks in commits:
                if until is not None and commit.sequence > until:
                    return
                yield commit, blocks
                self._reached = (commit.sequence, marker.offset + 1)
                if commit.sequence == until:
                    return

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        try:
            consumer = self._idle.pop()
        except IndexError:
            consumer = self._partition.cluster.consumer()
        yield consumer
        self._idle.append(consumer)

    def _from_start(self, consumer: Consumer, until: int | None) -> Iterator[tuple[Marker, Commit, Blocks]]:
        """Yield all commits; compacted ones come as a snapshot.

        Compaction may have stopped anywhere in the commit after the first marker. A state is therefore a valid start
        only if the commit after it is whole; otherwise that commit becomes part of the state.
        """
        low, _ = self._partition.offsets(consumer)
        parts = self._parts(consumer, low)
        fold = KafkaFold(self._keys, self._where)
        beginning = marker = None
        for marker, messages in parts:
            commit = marker.commit
            if beginning is not None and self._is_whole(commit, messages):
                parts = chain([(marker, messages)], parts)
                break
            untouched = not fold and commit.sequence == marker.base and self._is_whole(commit, messages)
            fold.add(messages)
            beginning = None
            if untouched:
                beginning = marker, commit, self._blocks(commit, messages)
            elif (state := fold.state(commit, marker.base)) is not None:
                beginning = marker, attrs.evolve(commit, snapshot=True, records=commit.entries), state
        if beginning is None:
            if marker is not None:
                raise CorruptionError(
                    f"the records up to commit {marker.commit.sequence} have {len(fold)} entries, and its marker has "
                    f"{marker.commit.entries}; read again, and if the error repeats, the log is damaged",
                    where=self._where,
                )
            return
        commit = beginning[1]
        if until is not None and commit.sequence > until:
            raise HistoryCompacted(
                f"{self._where}: until={until} is before commit {commit.sequence}, the oldest available state; give a "
                "later one, and the next topic a longer compaction_lag"
            )
        yield beginning
        yield from self._following(parts, commit.sequence, commit.attempt)

    def _from(self, consumer: Consumer, after: int) -> Iterator[tuple[Marker, Commit, Blocks]]:
        """Yield the commits after a sequence."""
        start = self._reached[1] if after == self._reached[0] else self._offset_near(consumer, after)
        yield from self._following(self._parts(consumer, start), after, None)

    def _following(
        self, parts: Iterator[tuple[Marker, list[Message]]], after: int, attempt: str | None
    ) -> Iterator[tuple[Marker, Commit, Blocks]]:
        """Yield the commits after a sequence, each of which follows its predecessor or is a snapshot."""
        for marker, messages in parts:
            commit = marker.commit
            if commit.sequence <= after:
                attempt = commit.attempt if commit.sequence == after else None
                continue
            follows = commit.sequence == after + 1 and attempt in {None, commit.previous}
            if not (follows or commit.snapshot) or not self._is_whole(commit, messages):
                raise self._broken(marker, after, len(messages))
            yield marker, commit, self._blocks(commit, messages)
            after, attempt = commit.sequence, commit.attempt

    def _blocks(self, commit: Commit, messages: list[Message]) -> Blocks:
        return blocks_of(messages, self._keys, commit.states, self._where)

    def _is_whole(self, commit: Commit, messages: list[Message]) -> bool:
        """Return true if these are all records of a commit. Checking the first one is enough: they are in order."""
        if len(messages) != commit.records:
            return False
        return not messages or sequence_of(messages[0].headers(), self._where) == commit.sequence

    def _broken(self, marker: Marker, after: int, count: int) -> CorruptionError | HistoryCompacted:
        """Return the error for a commit that is not whole, or does not follow."""
        commit = marker.commit
        message = (
            f"commit {after} is followed by commit {commit.sequence} with {count} records, and its marker has "
            f"{commit.records} after attempt {commit.previous!r}"
        )
        age_ms = time.time() * 1000 - marker.time_ms
        if age_ms + _SKEW_MS < int(self._partition.cluster.topic_settings(self._partition.topic)[_LAG]):
            where = f"{self._where}, offset {marker.offset}"
            return CorruptionError(f"{message}, although it is not compacted yet", where=where)
        return HistoryCompacted(f"{self._where}: {message}: it was compacted; read again from the start (after=0)")

    def _parts(self, consumer: Consumer, start: int) -> Iterator[tuple[Marker, list[Message]]]:
        """Yield the records from an offset on, in parts that end with a marker."""
        part: list[Message] = []
        for messages in self._partition.read(consumer, start):
            for message in messages:
                key = message.key() or b""
                if key[:1] == ENTRY:
                    part.append(message)
                elif key == COMMIT:
                    yield _marker(message, self._header, self._partition), part
                    part = []
                elif key == HEADER:
                    self._check_header(decode_header(message.value() or b"", self._where))
                else:
                    where = f"{self._where}, offset {message.offset()}"
                    raise CorruptionError(f"{key[:40]!r} is not a key of a changelog's record", where=where)

    def _check_header(self, header: LogHeader) -> None:
        if header != self._header:
            raise ChangelogError(
                f"{self._where} is now changelog {header.log_id}, and was {self._header.log_id}: the topic was "
                "recreated; open a new reader"
            )

    def _offset_near(self, consumer: Consumer, after: int) -> int:
        """Return an offset before the commit that follows a sequence, and not far before it, by binary search."""
        low, high = self._partition.offsets(consumer)
        while high - low > self.near:
            middle = (low + high) // 2
            first = next(self._partition.read(consumer, middle), None)
            if first is not None and sequence_of(first[0].headers(), self._where) <= after:
                low = middle
            else:
                high = middle
        return low


class KafkaWriter:
    """A `ChangelogWriter` on a partition.

    Args:
        partition: The partition, whose number is the index of the key group.
        header: Its header.

    Raises:
        ChangelogError: The broker does not answer, or refuses.
        CorruptionError: The end of the log cannot be read.
    """

    def __init__(self, partition: Partition, header: LogHeader) -> None:
        self._partition = partition
        self._header = header
        self._where = str(partition)
        self._keys = RecordKeys(header.operator, self._where)
        self._transactions: Transactions | None = None
        self._last: Commit | None = None
        # The sequence of the newest snapshot, and the offset after the newest marker.
        self._base = self._end = 0
        self._open()

    def last(self) -> Commit | None:
        """See `ChangelogWriter.last`."""
        self._open()
        return self._last

    def append(self, commit: Commit, blocks: Blocks) -> Commit:
        """See `ChangelogWriter.append`."""
        return self.append_all([(commit, blocks)])

    def append_all(self, commits: Sequence[tuple[Commit, Blocks]]) -> Commit:
        """See `GroupingWriter.append_all`."""
        transactions, last = self._open(), self._last
        number = self._partition.number
        new = [
            (attrs.evolve(commit, log_id=commit.log_id or self._header.log_id, group=number), blocks)
            for commit, blocks in commits
        ]
        while new and last is not None and new[0][0].sequence <= last.sequence:
            existing = self._existing(new.pop(0)[0], last)
        if not new:
            return existing
        reason = self._refusal_reason(new, last)
        if reason is not None:
            raise ChangelogDiverged(f"{self._where}: {reason}; give changelog= an empty topic")
        with closing_on_error(self):
            return self._append(transactions, new)

    def close(self) -> None:
        """See `ChangelogWriter.close`."""
        transactions, self._transactions = self._transactions, None
        if transactions is not None:
            transactions.close()

    def _open(self) -> Transactions:
        """Take the id and read the end of the log, unless that was done already."""
        if self._transactions is None:
            own = f"keyed-{self._header.log_id}-{self._partition.number}"
            consumer = self._partition.cluster.consumer()
            transactions = transactions_of(self._partition, consumer, own, lambda message: message.key() == COMMIT)
            with closing_on_error(transactions):
                self._check_header(consumer)
                marker = newest_marker(self._partition, consumer, self._header)
            self._last, self._base, self._end = None, 0, 0
            if marker is not None:
                self._last, self._base, self._end = marker.commit, marker.base, marker.offset + 1
            self._transactions = transactions
        return self._transactions

    def _check_header(self, consumer: Consumer) -> None:
        """Check that the topic is still the one that the writer was opened for."""
        header = read_header(self._partition, consumer)
        if header != self._header:
            now = "empty" if header is None else header.log_id
            raise ChangelogDiverged(
                f"{self._where} was changelog {self._header.log_id}, and is now {now}: the topic was deleted and "
                "recreated. Start the query again, with an empty topic"
            )

    def _refusal_reason(self, commits: Sequence[tuple[Commit, Blocks]], last: Commit | None) -> str | None:
        """Return the reason why commits do not belong to this log, or do not follow its last one."""
        for commit, _ in commits:
            if commit.log_id != self._header.log_id:
                ours = self._header.log_id
                return f"this is changelog {ours}, and the commit belongs to {commit.log_id}, which is gone"
        return refusal_of(commits, last)

    def _existing(self, commit: Commit, last: Commit) -> Commit:
        """Return the existing commit of the same sequence."""
        existing: Commit | None = last
        if commit.sequence < last.sequence:
            reader = KafkaReader(self._partition, self._header)
            try:
                existing = next((stored for stored, _ in reader.commits(commit.sequence - 1, commit.sequence)), None)
            except HistoryCompacted:
                existing = None
        if existing is None or existing.sequence != commit.sequence:
            raise ChangelogFenced(
                f"{self._where}: the log has continued to commit {last.sequence}, and commit {commit.sequence} is "
                "compacted; unless this is an outdated attempt, open the writer again"
            )
        if existing.attempt != commit.attempt:
            raise ChangelogDiverged(
                f"{self._where}: another commit {commit.sequence} exists, of attempt {existing.attempt} and not "
                f"{commit.attempt}; give changelog= an empty topic"
            )
        return existing

    def _append(self, transactions: Transactions, commits: Sequence[tuple[Commit, Blocks]]) -> Commit:
        transactions.begin()
        base, last = self._base, self._last
        for commit, blocks in commits:
            tables = tables_of(commit.states, self._where)
            headers = entry_headers(commit)
            count = sum(transactions.send(self._partition, self._records(block, tables), headers) for block in blocks)
            if commit.snapshot or last is None:
                base = commit.sequence
            last = attrs.evolve(commit, records=count)
            transactions.send(self._partition, [(COMMIT, encode_commit(last))], marker_headers(last, base))
        # The last marker was sent last, so its offset is where the log now ends.
        end = transactions.deliver() + 1
        if end <= self._end:
            raise ChangelogDiverged(
                f"{self._where}: the log ended at offset {self._end}, and now at {end}: the topic was deleted and "
                "recreated, or records were lost; nothing was committed. Give changelog= an empty topic"
            )
        transactions.commit()
        assert last is not None
        self._last, self._base, self._end = last, base, end
        return last

    def _records(self, block: Block, tables: Mapping[int, TableEntries]) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the records of a block: keys and values."""
        key = self._keys.key
        return ((key(prefix, sub), value) for prefix, sub, value in entries_of(block, tables, self._where))
