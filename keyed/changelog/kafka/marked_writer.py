"""Transactions of records of one topic, each with a mark, from which the next writer continues.

The mark is the offset of partition 0 of the topic, committed in the same transaction in the consumer group whose name
is the transactional id: a number from 0 as the offset, and a text as its metadata. So it is written if and only if the
records are.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import attrs

from keyed.base.closing import closing_on_error
from keyed.errors import ChangelogError
from keyed.kafka.client import Cluster, Headers, Transactions, translated

#: Errors while the coordinator of a consumer group starts or moves to another broker.
_MOVING = ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR")
#: Seconds between two requests meanwhile.
_PAUSE = 0.1
#: Settings of the producer: milliseconds after which it repeats a refused request, doubled each time, up to a second;
#: and for which records wait for others.
_OWN = {"retry.backoff.ms": 1, "linger.ms": 1}
#: Seconds after which a broker is expected to have completed a transaction, of which it has acknowledged the commit.
_COMPLETED = 0.01
#: In messages: the broker gives the id, but not the mark.
_UNENDED = (
    " has a transaction that the broker does not end; Kafka 4.1 to 4.3 leave it open if all replicas of a partition "
    "crash just after its commit (KAFKA-20734): look for it with kafka-transactions.sh find-hanging, and for its "
    "records at the end of the topic, before you end it"
)


@attrs.frozen
class Mark:
    """The mark of a transaction.

    Attributes:
        number: A number from 0; negative if there was no transaction.
        text: Up to 4,096 characters (``offset.metadata.max.bytes`` of the broker).
    """

    number: int
    text: str


class MarkedWriter:
    """Writes transactions with marks. After an error it is closed; `claim` returns the outcome.

    Args:
        cluster: The cluster.
        topic: The topic.
        transactional_id: The transactional id, and the name of the consumer group.
        where: For messages.
    """

    def __init__(self, cluster: Cluster, topic: str, transactional_id: str, where: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._id = transactional_id
        self._where = where
        self._transactions: Transactions | None = None
        self._committed_at = time.monotonic()
        #: Metadata of the consumer group.
        self._group: Any = None

    @property
    def is_claimed(self) -> bool:
        """True between `claim` and the next error or `close`."""
        return self._transactions is not None

    def claim(self) -> Mark:
        """Fence other writers with the transactional id, and return the mark of the last transaction.

        Raises:
            ChangelogError: The topic does not exist, or no broker answers.
        """
        import confluent_kafka as ck

        self.close()
        cluster = self._cluster
        reading = attrs.evolve(cluster, settings={**cluster.settings, "group.id": self._id})
        with closing_on_error(self):
            try:
                consumer: Any
                with closing(reading.consumer()) as consumer:
                    description = consumer.list_topics(self._topic, timeout=cluster.timeout).topics[self._topic]
                    if description.error is not None:
                        raise ChangelogError(f"{self._where} does not exist: Kafka reports {description.error.name()}")
                    self._transactions = Transactions(self._writing(), self._id, self._where)
                    mark = committed(consumer, ck.TopicPartition(self._topic, 0), cluster.timeout)
                    self._group = consumer.consumer_group_metadata()
                if mark.error is not None:
                    raise ck.KafkaException(mark.error)
            except ck.KafkaException as error:
                is_unended = self._transactions is not None and error.args[0].name() == "_TIMED_OUT"
                raise translated(error, self._where + (_UNENDED if is_unended else "")) from error
        return Mark(mark.offset, mark.metadata or "")

    def write(
        self, records: Iterable[Any], mark: Mark, headers: Headers | None = None, *, is_timed: bool = False
    ) -> None:
        """Write records and a mark in one transaction.

        Args:
            records: Keys and values.
            mark: The mark.
            headers: The headers of all records.
            is_timed: They have timestamps too.

        Raises:
            ChangelogError: They cannot be written. The outcome is unknown if the commit failed.
        """
        import confluent_kafka as ck

        transactions = self._transactions
        assert transactions is not None, "claim was called"
        send = transactions.send_timed if is_timed else transactions.send
        with closing_on_error(self):
            transactions.begin()
            # While the broker still completes the transaction before, it refuses requests of this one. The client
            # repeats the first request with records after 20 ms, and that with an offset after its retry.backoff.ms.
            # Otherwise the broker gets the records meanwhile.
            sends_first = time.monotonic() >= self._committed_at + _COMPLETED
            if sends_first:
                send(self._topic, records, headers)
            offset = ck.TopicPartition(self._topic, 0, mark.number, metadata=mark.text)
            transactions.commit_offset(offset, self._group)
            if not sends_first:
                send(self._topic, records, headers)
            transactions.deliver()
            transactions.commit()
            self._committed_at = time.monotonic()

    def close(self) -> None:
        """Release the client. Closing again does nothing."""
        transactions, self._transactions = self._transactions, None
        if transactions is not None:
            transactions.close()

    def _writing(self) -> Cluster:
        """Return the cluster with the settings of the producer."""
        timeout = self._cluster.timeout
        # The client's commit of an offset ignores its time-out, and ends with that of its request, again and again.
        own = {"socket.timeout.ms": max(10, min(int(timeout * 1000), 60_000)), **_OWN}
        settings = {**own, **self._cluster.settings}
        settings.pop("group.id", None)
        return attrs.evolve(self._cluster, settings=settings)


def committed(consumer: Any, partition: Any, seconds: float) -> Any:
    """Return the committed offset of a group, asking again while the group's coordinator starts or moves.

    Raises:
        KafkaException: Another error, or the coordinator is not found in time.
    """
    import confluent_kafka as ck

    deadline = time.monotonic() + seconds
    while True:
        is_last = time.monotonic() >= deadline
        try:
            (offset,) = consumer.committed([partition], max(deadline - time.monotonic(), 0.1))
            if is_last or offset.error is None or offset.error.name() not in _MOVING:
                return offset
        except ck.KafkaException as error:
            if is_last or error.args[0].name() not in _MOVING:
                raise
        time.sleep(_PAUSE)
