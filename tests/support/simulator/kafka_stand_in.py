"""An in-process Kafka broker for simulations, with the parts that keyed's client uses: topics, transactions, fencing.

It replaces the lowest layer, where `keyed.kafka.client.Cluster` creates clients of ``confluent_kafka``:
everything above it is the real code. There is no compaction and no background work, so a seed reproduces a run.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import attrs
from confluent_kafka import KafkaError, KafkaException

from keyed.kafka.client import Cluster
from tests.support.simulator.faults import Faults


def _error(name: str, *, retriable: bool = False) -> KafkaError:
    # The type stubs lack the codes and the flags.
    kind: Any = KafkaError
    made: KafkaError = kind(getattr(KafkaError, name), name, False, retriable)
    return made


@attrs.define
class _Stored:
    """A record of a partition, in the form that a consumer gets.

    Attributes:
        committed: ``None`` while its transaction is open, false if that was aborted.
        is_marker: It is the marker of a transaction, which has an offset and is not a record.
    """

    _offset: int
    _key: bytes | None
    _value: bytes | None
    _headers: Any
    _time_ms: int
    committed: bool | None = None
    is_marker: bool = False

    def error(self) -> KafkaError | None:
        return None

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def offset(self) -> int:
        return self._offset

    def headers(self) -> Any:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return 1, self._time_ms


class StandInBroker:
    """The broker.

    Args:
        faults: Faults between it and its clients.
    """

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.topics: dict[str, list[list[_Stored]]] = {}
        self.settings: dict[str, dict[str, str]] = {}
        #: The owner of each transactional id, and its open records.
        self.epochs: dict[str, int] = {}
        self.open: dict[str, list[tuple[list[_Stored], _Stored]]] = {}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Replace all clusters."""
        kinds = {"Producer": _Producer, "Consumer": _Consumer, "admin.AdminClient": _Admin}
        with patch.object(Cluster, "_client", lambda _, kind, settings: kinds[kind](self, settings)):
            yield

    def fails(self, call: str, chance: float = 0.01, error: str = "_TIMED_OUT") -> None:
        """Make a call fail at random, before it has an effect."""
        if self.faults.strikes(f"broker: {call} fails", chance):
            raise KafkaException(_error(error))

    def log(self, place: Any) -> list[_Stored]:
        """Return the records of a ``TopicPartition``."""
        if place.topic not in self.topics:
            raise KafkaException(_error("UNKNOWN_TOPIC_OR_PART"))
        return self.topics[place.topic][place.partition]

    def end(self, transactional_id: str, *, commit: bool) -> None:
        """Commit or abort the open transaction of an id."""
        ended = self.open.pop(transactional_id, [])
        for _, stored in ended:
            stored.committed = commit
        for partition in {id(log): log for log, _ in ended}.values():
            marker = _Stored(len(partition), None, None, None, 0, commit, is_marker=True)
            partition.append(marker)


class _Producer:
    """The part of ``confluent_kafka.Producer`` that `keyed.kafka.client` uses."""

    def __init__(self, broker: StandInBroker, settings: dict[str, Any]) -> None:
        self._broker = broker
        self._id = settings["transactional.id"]
        self._reported = settings["on_delivery"]
        self._epoch = -1
        self._begun = False
        self._queue: list[tuple[list[_Stored], bytes, bytes | None, Any]] = []

    def __len__(self) -> int:
        return len(self._queue)

    def init_transactions(self, timeout: float) -> None:
        broker = self._broker
        broker.fails("init_transactions")
        broker.end(self._id, commit=False)
        self._epoch = broker.epochs[self._id] = broker.epochs.get(self._id, 0) + 1
        if broker.faults.strikes("broker: init_transactions gets no answer", 0.01):
            raise KafkaException(_error("_TIMED_OUT"))

    def begin_transaction(self) -> None:
        self._check()
        if self._begun:
            raise KafkaException(_error("_STATE"))
        self._begun = True

    def produce(self, topic: str, value: bytes | None, key: bytes, partition: int, *, headers: Any = None) -> None:
        if not self._begun:
            raise KafkaException(_error("_STATE"))
        if self._queue and self._broker.faults.strikes("broker: the queue of a producer is full", 0.002):
            raise BufferError
        self._queue.append((self._broker.topics[topic][partition], key, value, headers))

    def poll(self, timeout: float) -> int:
        return self._deliver(1)

    def flush(self, timeout: float) -> int:
        self._check()
        taken = len(self._queue)
        if taken and self._broker.faults.strikes("broker: not all records are taken in time", 0.01):
            taken = self._broker.faults.random.randrange(taken)
        self._deliver(taken)
        return len(self._queue)

    def _deliver(self, count: int) -> int:
        broker, taken = self._broker, self._queue[:count]
        del self._queue[:count]
        for log, key, value, headers in taken:
            if broker.faults.strikes("broker: a record is refused", 0.02):
                self._reported(_error("_MSG_TIMED_OUT"), None)
                continue
            stored = _Stored(len(log), key, value, headers, time.time_ns() // 1_000_000)
            log.append(stored)
            broker.open.setdefault(self._id, []).append((log, stored))
            self._reported(None, stored)
        return len(taken)

    def commit_transaction(self, timeout: float) -> None:
        broker = self._broker
        self._check()
        if not self._begun:
            raise KafkaException(_error("_STATE"))
        broker.fails("commit_transaction", 0.02)
        if broker.faults.strikes("broker: commit_transaction is late", 0.02):
            self._begun = False
            broker.faults.late.append(self._commit_late)
            raise KafkaException(_error("_TIMED_OUT"))
        self._begun = False
        broker.end(self._id, commit=True)
        if broker.faults.strikes("broker: commit_transaction gets no answer", 0.02):
            raise KafkaException(_error("_TIMED_OUT"))

    def abort_transaction(self, timeout: float) -> None:
        broker = self._broker
        self._check()
        if not self._begun:
            raise KafkaException(_error("_STATE"))
        broker.fails("abort_transaction", 0.02)
        self._begun = False
        self._queue.clear()
        broker.end(self._id, commit=False)

    def _commit_late(self) -> None:
        self._check()
        self._broker.end(self._id, commit=True)

    def purge(self) -> None:
        self._queue.clear()

    def _check(self) -> None:
        """Check that no other producer has taken over the id."""
        if self._broker.epochs.get(self._id) != self._epoch:
            raise KafkaException(_error("_FENCED"))


class _Consumer:
    """The part of ``confluent_kafka.Consumer`` that `keyed.kafka.client` uses."""

    def __init__(self, broker: StandInBroker, settings: dict[str, Any]) -> None:
        self._broker = broker
        self._committed_only = settings["isolation.level"] == "read_committed"
        self._messages: deque[Any] = deque()

    def assign(self, places: list[Any]) -> None:
        (place,) = places
        self._broker.fails("assign", 0.002)
        log = self._broker.log(place)
        high = self._stable_end(log)
        found = (log[offset] for offset in range(place.offset, high))
        self._messages = deque(
            each for each in found if not each.is_marker and (each.committed or not self._committed_only)
        )
        self._messages.append(SimpleNamespace(error=lambda: _error("_PARTITION_EOF")))

    def unassign(self) -> None:
        self._messages.clear()

    def poll(self, timeout: float) -> Any:
        self._broker.fails("poll", 0.002)
        return self._messages.popleft() if self._messages else None

    def consume(self, count: int, timeout: float) -> list[Any]:
        return [self._messages.popleft() for _ in range(min(count, len(self._messages)))]

    def get_watermark_offsets(self, place: Any, *, timeout: float) -> tuple[int, int] | None:
        self._broker.fails("get_watermark_offsets", 0.002)
        return 0, self._stable_end(self._broker.log(place))

    def _stable_end(self, log: list[_Stored]) -> int:
        """Return the last stable offset: the first open transaction hides later records."""
        if not self._committed_only:
            return len(log)
        return next((stored.offset() for stored in log if stored.committed is None), len(log))


class _Admin:
    """The part of ``confluent_kafka.admin.AdminClient`` that keyed uses."""

    def __init__(self, broker: StandInBroker, settings: dict[str, Any]) -> None:
        self._broker = broker

    def poll(self, timeout: float) -> None:
        """Do nothing: all results are returned by calls."""

    def list_topics(self, topic: str, *, timeout: float) -> Any:
        self._broker.fails("list_topics", 0.002)
        logs = self._broker.topics.get(topic)
        partitions = {number: SimpleNamespace(replicas=[1]) for number in range(len(logs or ()))}
        error = None if logs is not None else _error("UNKNOWN_TOPIC_OR_PART")
        return SimpleNamespace(topics={topic: SimpleNamespace(error=error, partitions=partitions)})

    def create_topics(self, topics: list[Any], *, operation_timeout: float) -> dict[str, Future[None]]:
        (new,) = topics
        self._broker.topics[new.topic] = [[] for _ in range(new.num_partitions)]
        self._broker.settings[new.topic] = dict(new.config)
        return {new.topic: _done(None)}

    def describe_configs(self, resources: list[Any]) -> dict[Any, Future[Any]]:
        (resource,) = resources
        found = self._broker.settings[resource.name]
        return {resource: _done({name: SimpleNamespace(value=value) for name, value in found.items()})}


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
