"""Writes a key group's log: one transaction for each export of one or more commits, with a producer that stays open.

The transactional id consists of the log and the group: taking it over fences earlier writers, and aborts their open
transactions. Only then is the end of the log read, so no other record can come before the appended ones. After any
error the producer is closed; the next append takes the id again and reads the outcome of the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from keyed.base.closing import closing_on_error
from keyed.changelog.kafka.kafka_reader import KafkaReader, newest_marker
from keyed.changelog.kafka.kafka_records import COMMIT, RecordKeys, entry_headers, marker_headers, read_header
from keyed.changelog.model import Blocks, Commit, LogHeader, refusal_of
from keyed.changelog.records import encode_commit
from keyed.content.blocks import Block
from keyed.content.table_entries import TableEntries, entries_of, tables_of
from keyed.errors import ChangelogDiverged, ChangelogFenced, HistoryCompacted
from keyed.kafka.client import Partition
from keyed.kafka.transactions import Transactions, transactions_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer


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
