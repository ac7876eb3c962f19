"""A producer of transactions: takes its id, sends no faster than the broker takes, and commits or says why not."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from keyed.changelog.kafka.client import Cluster, Partition, Trouble, translated
from keyed.changelog.kafka.kafka_records import Headers
from keyed.errors import ChangelogError

#: A failed transaction takes messages back that had nothing wrong; what was wrong is another message's error.
_TAKEN_BACK = {"_PURGE_QUEUE", "_PURGE_INFLIGHT"}


class Transactions:
    """Transactions under one id. After an error it can only be closed: another one finds out what was committed.

    Args:
        cluster: The cluster.
        transactional_id: The id. Producers that had it before are fenced, and what they left open is aborted.
        where: For messages.

    Raises:
        ChangelogError: The broker does not answer, or refuses.
    """

    def __init__(self, cluster: Cluster, transactional_id: str, where: str) -> None:
        self._timeout = cluster.timeout
        self._where = where
        self._offset = -1
        self._failed: Any = None
        self._trouble = Trouble()
        self._producer = cluster.producer(transactional_id, self._reported, self._trouble.tell)
        try:
            self._guarded(self._producer.init_transactions, self._timeout)
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """Begin a transaction."""
        self._guarded(self._producer.begin_transaction)

    def send(
        self, partition: Partition, records: Iterable[tuple[bytes, bytes | None]], headers: Headers | None = None
    ) -> int:
        """Send records, as fast as the broker takes them.

        Args:
            partition: Where they go.
            records: Keys and values.
            headers: The headers of all of them.

        Returns:
            How many there were.
        """
        return int(self._guarded(self._send, partition, records, headers))

    def deliver(self) -> int:
        """Wait until the broker has all that was sent.

        Returns:
            The offset of the record that was sent last.
        """
        left = self._guarded(self._producer.flush, self._timeout)
        if self._failed is not None:
            raise translated(self._failed, self._where)
        if left:
            raise ChangelogError(f"{self._where}: the broker has not taken {left} records in {self._timeout:g} s")
        return self._offset

    def commit(self) -> None:
        """Commit the transaction. If this fails, the result is known when the id is taken again."""
        self._guarded(self._producer.commit_transaction, self._timeout)

    def close(self) -> None:
        """Close the producer. An open transaction is aborted when its id is taken the next time."""
        producer = self.__dict__.pop("_producer", None)
        # Its own close() would wait for a broker, as long as it takes.
        if producer is not None:
            producer.purge()

    def _send(
        self, partition: Partition, records: Iterable[tuple[bytes, bytes | None]], headers: Headers | None
    ) -> int:
        produce, topic, number = self._producer.produce, partition.topic, partition.number
        count = 0
        for key, value in records:
            while True:
                try:
                    produce(topic, value, key, number, headers=headers)
                    break
                except BufferError:
                    self._make_room()
            count += 1
        return count

    def _make_room(self) -> None:
        """Wait until fewer messages are in the client's queue."""
        waiting, deadline = len(self._producer), time.monotonic() + self._timeout
        while len(self._producer) >= waiting:
            self._producer.poll(0.05)
            if time.monotonic() > deadline:
                raise ChangelogError(
                    f"{self._where}: the broker took none of {waiting} waiting records in {self._timeout:g} s"
                )

    def _reported(self, error: Any, message: Any) -> None:
        """Take a report; called for each message that was delivered, or given up."""
        if error is None:
            self._offset = message.offset()
        elif self._failed is None or self._failed.name() in _TAKEN_BACK:
            self._failed = error

    def _guarded(self, call: Any, *arguments: Any) -> Any:
        from confluent_kafka import KafkaException

        try:
            return call(*arguments)
        except (KafkaException, SystemError) as error:
            raise self._final(error) from error

    def _final(self, error: Exception) -> Exception:
        """Return the error to raise for one of a call.

        Of an error that is final a call may only hear that there is one; and if the client has more to call us back for
        when it finds it, Python hears of a SystemError.
        """
        from confluent_kafka import KafkaException

        if isinstance(error, SystemError) or error.args[0].name() == "_FATAL":
            try:
                self._producer.begin_transaction()
            except KafkaException as final:
                # Without its frames, which would keep the producer alive.
                error = final.with_traceback(None)
        return self._translated(error) if isinstance(error, KafkaException) else error

    def _translated(self, error: Exception) -> ChangelogError:
        """Return keyed's error: the first failure of a message is the cause of later ones."""
        if self._failed is None or error.args[0].fatal():
            return translated(error, f"{self._where}{self._trouble}")
        return translated(self._failed, self._where)
