"""Positions of a runner, and the data that they depend on: records of the topic's last partition.

Each is a separate transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from xxhash import xxh3_128_digest

from keyed.base.closing import closing_on_error
from keyed.changelog.kafka.kafka_records import KEPT, POSITION, kept_key, position_key
from keyed.changelog.model import batch_id
from keyed.changelog.records import decode_kept, decode_position, encode_kept, encode_position
from keyed.errors import ChangelogDiverged
from keyed.kafka.client import Partition
from keyed.kafka.transactions import transactions_of

#: Number of positions that a writer remembers: a run that is further behind is not a repetition.
_KNOWN = 1_000


def read_positions(partition: Partition) -> dict[int, bytes]:
    """Return the stored positions, by sequence, in order.

    Raises:
        CorruptionError: One fails its checks.
        ChangelogError: They cannot be read.
    """
    return dict(decode_position(record, where) for record, where in _records(partition, POSITION))


def read_kept(partition: Partition) -> dict[str, bytes]:
    """Return the stored data by name.

    Raises:
        CorruptionError: A record fails its checks.
        ChangelogError: It cannot be read.
    """
    return dict(decode_kept(record, where) for record, where in _records(partition, KEPT))


def _records(partition: Partition, kind: bytes) -> Iterator[tuple[bytes, str]]:
    """Yield the records of a kind that were not removed, and their places for messages."""
    consumer = partition.cluster.consumer()
    low, _ = partition.offsets(consumer)
    records: dict[bytes, Any] = {}
    for messages in partition.read(consumer, low):
        records |= {key: message for message in messages if (key := message.key() or b"").startswith(kind)}
    for message in records.values():
        if message.value() is not None:
            yield message.value(), f"{partition}, offset {message.offset()}"


class Positions:
    """Writes positions with a producer that stays open.

    Args:
        partition: Their partition.
        log_id: Identity of the changelog.
    """

    def __init__(self, partition: Partition, log_id: str) -> None:
        self._partition = partition
        # Each record stands for itself.
        self._transactions = transactions_of(
            partition, partition.cluster.consumer(), f"keyed-{log_id}-positions", lambda _: True
        )
        self._end = 0
        with closing_on_error(self):
            self._known = read_positions(partition)
            self._kept = {name: xxh3_128_digest(data) for name, data in read_kept(partition).items()}

    def put(self, sequence: int, data: bytes) -> None:
        """See `Changelog.put_position`."""
        known = self._known.get(sequence)
        if known is None:
            self._send([(position_key(sequence), encode_position(sequence, data))])
            self._known[sequence] = data
            if len(self._known) > _KNOWN:
                del self._known[min(self._known)]
        elif known != data:
            raise ChangelogDiverged(
                f"{self._partition}: another position is stored for batch {batch_id(sequence)}: two runs write one "
                "changelog. Give the new one an empty topic"
            )

    def keep(self, name: str, data: bytes) -> None:
        """See `Changelog.keep`."""
        digest = xxh3_128_digest(data)
        known = self._kept.get(name)
        if known is None:
            self._send([(kept_key(name), encode_kept(name, data))])
            self._kept[name] = digest
        elif known != digest:
            raise ChangelogDiverged(
                f"{self._partition}: other data is stored as {name!r}: two runs write one changelog. Give the "
                "new one an empty topic"
            )

    def forget(self, names: Iterable[str]) -> None:
        """See `Changelog.forget`."""
        known = [name for name in names if name in self._kept]
        if known:
            self._send([(kept_key(name), None) for name in known])
            for name in known:
                del self._kept[name]

    def _send(self, records: list[tuple[bytes, bytes | None]]) -> None:
        transactions = self._transactions
        transactions.begin()
        transactions.send(self._partition, records)
        end = transactions.deliver() + 1
        if end <= self._end:
            raise ChangelogDiverged(
                f"{self._partition} ended at offset {self._end}, and now at {end}: the topic was deleted and "
                "recreated; nothing was committed. Give changelog= an empty topic"
            )
        transactions.commit()
        self._end = end

    def close(self) -> None:
        """Close the producer."""
        self._transactions.close()
