"""A changelog as a compacted topic of a Kafka cluster."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs

from keyed.base.arguments import setting_text, text
from keyed.base.closing import closing_on_error
from keyed.base.durations import Duration, milliseconds_of
from keyed.base.shown import shown
from keyed.changelog.kafka.kafka_reader import KafkaReader
from keyed.changelog.kafka.kafka_writer import KafkaWriter
from keyed.changelog.kafka.positions import Positions, read_kept, read_positions
from keyed.changelog.kafka.topic import read_header, write_headers
from keyed.changelog.model import LogHeader
from keyed.errors import ChangelogError, DefinitionError
from keyed.kafka.client import Cluster, Partition, check_client

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
