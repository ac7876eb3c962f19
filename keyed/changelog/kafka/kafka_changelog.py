"""A changelog as a compacted topic of a Kafka cluster.

Positions of a runner, and the data that they depend on, are records of the topic's last partition, each written in its
own transaction.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
from xxhash import xxh3_128_digest

from keyed.base.arguments import Duration, milliseconds_of, setting_text, shown, text
from keyed.base.closing import closing_on_error
from keyed.changelog.kafka.kafka_group import KafkaReader, KafkaWriter
from keyed.changelog.kafka.kafka_records import KEPT, POSITION, kept_key, position_key, read_header, write_headers
from keyed.changelog.model import LogHeader, batch_id, decode_kept, decode_position, encode_kept, encode_position
from keyed.errors import ChangelogDiverged, ChangelogError, DefinitionError
from keyed.kafka.client import Cluster, Partition, check_client, transactions_of

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


_HOUR_MS = 3_600_000
#: Segments smaller than Kafka's 1 GB, because the active one is never compacted.
_NEW = {"segment.bytes": str(100 << 20)}
#: Seconds after which an unused writer of positions is closed: its query has ended.
_IDLE_SECONDS = 900.0


def _pairs(settings: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    try:
        return tuple(sorted(dict(settings).items()))
    except (TypeError, ValueError):
        raise DefinitionError(f"KafkaChangelog: settings={shown(settings)} must be a dict") from None


def _lag(value: Duration) -> int:
    return milliseconds_of(value, "KafkaChangelog(compaction_lag)")


def _retention(value: Duration) -> int:
    return milliseconds_of(value, "KafkaChangelog(tombstone_retention)")


def _interval(value: Duration) -> int:
    return milliseconds_of(value, "KafkaChangelog(export_interval)")


def _timeout(value: Duration) -> int:
    return milliseconds_of(value, "KafkaChangelog(timeout)", least=1)


@attrs.define(eq=False)
class _PositionsSlot:
    """This process's writer of positions for a changelog. One thread at a time uses it.

    Attributes:
        lock: Held by the thread that uses it.
        positions: The writer, ``None`` if none is open.
        used: Time of its last use.
    """

    lock: threading.Lock = attrs.field(factory=threading.Lock)
    positions: Positions | None = None
    used: float = attrs.field(factory=time.monotonic)

    def close(self) -> None:
        positions, self.positions = self.positions, None
        if positions is not None:
            positions.close()


#: The writers of this process, and the lock on this dictionary.
_positions: dict[KafkaChangelog, _PositionsSlot] = {}
_guard = threading.Lock()
#: Writers of the parent in a forked process: they are not even closed, because their threads are the parent's.
_inherited: list[object] = []


def _close_unused(seconds: float) -> None:
    """Close the writers that no thread has used for a number of seconds."""
    limit = time.monotonic() - seconds
    with _guard:
        unused = [
            (changelog, slot)
            for changelog, slot in _positions.items()
            if slot.used < limit and slot.lock.acquire(blocking=False)
        ]
        for changelog, _ in unused:
            del _positions[changelog]
    for _, slot in unused:
        try:
            slot.close()
        finally:
            slot.lock.release()


def _forget_parent() -> None:
    """Begin without writers in a forked process."""
    global _guard, _positions
    _inherited.append(_positions)
    _positions, _guard = {}, threading.Lock()


os.register_at_fork(after_in_child=_forget_parent)
# A producer that exists when the interpreter exits may call back into it.
atexit.register(_close_unused, -1.0)


def _names(settings: tuple[tuple[str, Any], ...]) -> str:
    """Show names only: the values may be secrets."""
    return repr([name for name, _ in settings])


@attrs.frozen
class KafkaChangelog:
    """A changelog in Kafka: a compacted topic with a partition for each key group, and one more for positions.

    The topic is created when a query starts, or checked if it exists. Every commit is a transaction.

    Args:
        topic: The topic; one for each operator.
        bootstrap: Brokers, ``host:port``, separated by commas.
        replication_factor: Number of replicas; by default, the broker's ``default.replication.factor``.
        compaction_lag: As in `DirectoryChangelog`, as ``min.compaction.lag.ms``.
        tombstone_retention: Time for which removals are kept (``delete.retention.ms``), longer than reading a
            partition takes: `int` milliseconds or `timedelta`.
        export_interval: As in `DirectoryChangelog`.
        topic_settings: Other settings of the topic, such as ``{"min.insync.replicas": 2}``.
        settings: Settings of librdkafka, such as ``{"security.protocol": "SASL_SSL"}``, which are sent to the query's
            workers. Those on which transactions depend are refused.
        timeout: Of operations at a broker: `int` milliseconds or `timedelta`.

    Raises:
        DefinitionError: A parameter is out of its range, or a setting is keyed's own.
    """

    topic: str
    bootstrap: str = attrs.field(kw_only=True)
    replication_factor: int | None = attrs.field(default=None, kw_only=True)
    compaction_lag: int = attrs.field(default=_HOUR_MS, converter=_lag, kw_only=True)
    tombstone_retention: int = attrs.field(default=24 * _HOUR_MS, converter=_retention, kw_only=True)
    export_interval: int = attrs.field(default=0, converter=_interval, kw_only=True, eq=False)
    topic_settings: tuple[tuple[str, Any], ...] = attrs.field(default=(), converter=_pairs, kw_only=True)
    settings: tuple[tuple[str, Any], ...] = attrs.field(default=(), converter=_pairs, kw_only=True, repr=_names)
    timeout: int = attrs.field(default=60_000, converter=_timeout, kw_only=True)

    def __attrs_post_init__(self) -> None:
        text(self.topic, "topic", "text that is not empty")
        text(self.bootstrap, "bootstrap", "text that is not empty")
        replicas = self.replication_factor
        if replicas is not None and (type(replicas) is not int or not 0 < replicas < 2**15):
            raise DefinitionError(f"replication_factor={shown(replicas)} must be an int from 1 to 32767, or None")
        reserved = dict(self.topic_settings).keys() & self._topic_settings().keys()
        if reserved:
            raise DefinitionError(
                f"topic_settings={sorted(reserved)}: keyed sets these itself, by compaction_lag and "
                "tombstone_retention; leave them out"
            )
        check_client(self.bootstrap, dict(self.settings))

    def __str__(self) -> str:
        return f"changelog in topic {self.topic!r} at {self.bootstrap}"

    def prepare(self, operator: str, parallelism: int) -> LogHeader:
        """See `Changelog.prepare`."""
        cluster = self._cluster()
        self.close_positions()
        # Before the check of the topic, which would report another number of partitions without this reason.
        header = self.header()
        if header is not None and (header.operator, header.parallelism) != (operator, parallelism):
            raise ChangelogError(
                f"topic {self.topic!r} is the changelog of operator {header.operator!r} with {header.parallelism} key "
                f"groups, and the query has {operator!r} with {parallelism}; give changelog= another topic, and "
                "restore_from= this one to continue with its state"
            )
        settings = {**self._topic_settings(), **{name: setting_text(value) for name, value in self.topic_settings}}
        cluster.create_or_check_topic(self.topic, parallelism + 1, self.replication_factor, settings, _NEW)
        return header or write_headers(cluster, self.topic, operator, parallelism)

    def header(self) -> LogHeader | None:
        """See `Changelog.header`."""
        cluster = self._cluster()
        count = len(cluster.partitions(self.topic))
        return read_header(Partition(cluster, self.topic, count - 1)) if count else None

    def writer(self, group: int) -> KafkaWriter:
        """See `Changelog.writer`."""
        return KafkaWriter(*self._prepared(group))

    def reader(self, group: int) -> KafkaReader:
        """See `Changelog.reader`."""
        return KafkaReader(*self._prepared(group))

    def put_position(self, sequence: int, data: bytes) -> None:
        """See `Changelog.put_position`."""
        with self._open_positions() as positions:
            positions.put(sequence, data)

    def close_positions(self) -> None:
        """Close the writer of positions, once no thread uses it."""
        with _guard:
            slot = _positions.pop(self, None)
        if slot is not None:
            with slot.lock:
                slot.close()

    def positions(self, after: int = 0) -> Iterator[tuple[int, bytes]]:
        """See `Changelog.positions`."""
        kept = read_positions(self._prepared()[0])
        return iter(sorted(item for item in kept.items() if item[0] > after))

    def keep(self, name: str, data: bytes) -> None:
        """See `Changelog.keep`."""
        with self._open_positions() as positions:
            positions.keep(name, data)

    def forget(self, names: Iterable[str]) -> None:
        """See `Changelog.forget`."""
        with self._open_positions() as positions:
            positions.forget(names)

    def kept(self) -> Iterator[tuple[str, bytes]]:
        """See `Changelog.kept`."""
        return iter(sorted(read_kept(self._prepared()[0]).items()))

    @contextmanager
    def _open_positions(self) -> Iterator[Positions]:
        """Use the writer of positions. After an error it is closed: the next one reads the outcome."""
        with self._locked_slot() as slot:
            if slot.positions is None:
                partition, header = self._prepared()
                slot.positions = Positions(partition, header.log_id)
            with closing_on_error(slot):
                yield slot.positions
            slot.used = time.monotonic()
        _close_unused(_IDLE_SECONDS)

    @contextmanager
    def _locked_slot(self) -> Iterator[_PositionsSlot]:
        """Lock this process's slot for the writer of positions."""
        while True:
            with _guard:
                slot = _positions.setdefault(self, _PositionsSlot())
            with slot.lock:
                # It may have been closed and removed from the dictionary in the meantime.
                if _positions.get(self) is slot:
                    yield slot
                    return

    def _prepared(self, group: int | None = None) -> tuple[Partition, LogHeader]:
        """Return the partition of a key group, or of the positions, with its header.

        Raises:
            ChangelogError: The topic has no header.
        """
        header = self.header() if group is None else read_header(Partition(self._cluster(), self.topic, group))
        if header is None:
            raise ChangelogError(f"topic {self.topic!r} has no changelog yet; a query that starts with it creates one")
        if group is not None and group >= header.parallelism:
            raise ChangelogError(f"topic {self.topic!r} has {header.parallelism} key groups; there is no group {group}")
        number = header.parallelism if group is None else group
        return Partition(self._cluster(), self.topic, number), header

    def _cluster(self) -> Cluster:
        return Cluster(self.bootstrap, dict(self.settings), self.timeout / 1000)

    def _topic_settings(self) -> dict[str, str]:
        """Return the settings of the topic that keyed requires."""
        return {
            "cleanup.policy": "compact",
            "min.compaction.lag.ms": str(self.compaction_lag),
            "delete.retention.ms": str(self.tombstone_retention),
        }
