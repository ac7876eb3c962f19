"""Conversion of records to blocks: of the records of a commit, or of compacted records, which are folded to a state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from keyed.changelog.kafka.kafka_records import RecordKeys, sequence_of
from keyed.changelog.model import Blocks, Commit
from keyed.content.delta import described_tables
from keyed.content.entry_hash import hash_sum, hash_text
from keyed.content.table_entries import blocks_of as entry_blocks
from keyed.content.table_entries import tables_of
from keyed.errors import CorruptionError

if TYPE_CHECKING:
    from confluent_kafka import Message


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
