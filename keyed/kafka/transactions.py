"""A transactional producer with back-pressure and translated errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from keyed.base.closing import closing_on_error
from keyed.errors import ChangelogError
from keyed.kafka.client import Cluster, Headers, LastError, Partition, translated

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

#: Errors of messages that were purged because the transaction failed; the cause is another message's error.
_TAKEN_BACK = {"_PURGE_QUEUE", "_PURGE_INFLIGHT"}

#: Seconds that an abort waits for the broker, which aborts the transaction of the id's next owner anyway.
_ABORT = 5.0


class Transactions:
    """Transactions under one id. After an error it can only be closed: the next instance reads the outcome.

    Args:
        cluster: The cluster.
        transactional_id: The id. Earlier producers with this id are fenced, and their open transactions are aborted.
        where: For messages.

    Raises:
        ChangelogError: The broker does not answer, or refuses.
    """

    def __init__(self, cluster: Cluster, transactional_id: str, where: str) -> None:
        self._timeout = cluster.timeout
        self._where = where
        self._offset = -1
        self._is_open = False
        self._failed: Any = None
        self._last_error = LastError()
        self._producer = cluster.producer(transactional_id, self._reported, self._last_error.record)
        with closing_on_error(self):
            self._guarded(self._producer.init_transactions, self._timeout)

    def begin(self) -> None:
        """Begin a transaction."""
        self._guarded(self._producer.begin_transaction)
        self._is_open = True

    def send(
        self, to: Partition | str, records: Iterable[tuple[bytes | None, bytes | None]], headers: Headers | None = None
    ) -> int:
        """Send records, as fast as the broker accepts them.

        Args:
            to: Their partition; or their topic, of which the client chooses partitions by the keys.
            records: Keys and values.
            headers: The headers of all of them.

        Returns:
            Their number.
        """
        topic, place = (to, {}) if isinstance(to, str) else (to.topic, {"partition": to.number})
        return int(self._guarded(self._send, topic, records, {**place, "headers": headers}))

    def send_timed(
        self, topic: str, records: Iterable[tuple[bytes | None, bytes | None, int | None]], headers: Headers | None
    ) -> None:
        """Send records with timestamps to the partitions that the client chooses by their keys.

        Args:
            topic: The topic.
            records: Keys, values and timestamps; ``None`` is the present time.
            headers: The headers of all of them.
        """
        for key, value, at in records:
            options = {"headers": headers} if at is None else {"headers": headers, "timestamp": at}
            self._guarded(self._send, topic, [(key, value)], options)

    def commit_offset(self, offset: Any, group: Any) -> None:
        """Commit an offset of a consumer group with the transaction.

        Args:
            offset: The offset with its partition.
            group: The consumer group's metadata.
        """
        self._guarded(self._producer.send_offsets_to_transaction, [offset], group, self._timeout)

    def deliver(self) -> int:
        """Wait until the broker has all sent records.

        Returns:
            The offset of the last sent record.
        """
        left = self._guarded(self._producer.flush, self._timeout)
        if self._failed is not None:
            raise translated(self._failed, self._where)
        if left:
            raise ChangelogError(f"{self._where}: the broker has not accepted {left} records in {self._timeout:g} s")
        return self._offset

    def commit(self) -> None:
        """Commit the transaction. If this fails, the outcome is known once the id is taken again."""
        self._guarded(self._producer.commit_transaction, self._timeout)
        self._is_open = False

    def close(self) -> None:
        """Abort an open transaction, and close the producer.

        If the broker does not answer, it aborts the transaction when its id is taken the next time. A producer that is
        destroyed while it still adds partitions to its transaction ends the process (an assertion of librdkafka,
        ``txn_req_cnt > 0``); once the abort has begun, it adds none.
        """
        if self._is_open:
            self._is_open = False
            with suppress(ChangelogError):
                self._guarded(self._producer.abort_transaction, min(self._timeout, _ABORT))
        producer = self.__dict__.pop("_producer", None)
        # Its own close() would wait for a broker without a limit.
        if producer is not None:
            producer.purge()

    def _send(
        self, topic: str, records: Iterable[tuple[bytes | None, bytes | None]], options: Mapping[str, Any]
    ) -> int:
        produce = self._producer.produce
        count = 0
        try:
            for key, value in records:
                while True:
                    try:
                        produce(topic, value, key, **options)
                        break
                    except BufferError:
                        self._make_room()
                count += 1
        finally:
            # See `_guarded`.
            del produce
        return count

    def _make_room(self) -> None:
        """Wait until fewer messages are in the client's queue."""
        waiting, deadline = len(self._producer), time.monotonic() + self._timeout
        while len(self._producer) >= waiting:
            self._producer.poll(0.05)
            if time.monotonic() > deadline:
                raise ChangelogError(
                    f"{self._where}: the broker accepted none of {waiting} waiting records in {self._timeout:g} s"
                )

    def _reported(self, error: Any, message: Any) -> None:
        """Handle a delivery report; called for each message that was delivered or abandoned."""
        if error is None:
            self._offset = message.offset()
        elif self._failed is None or self._failed.name() in _TAKEN_BACK:
            self._failed = error

    def _guarded(self, call: Any, *arguments: Any) -> Any:
        from confluent_kafka import KafkaException

        try:
            return call(*arguments)
        except (KafkaException, SystemError) as error:
            # A frame in the traceback of an error that is kept would keep the producer, with its threads.
            del call
            raise self._final(error.with_traceback(None)) from error

    def _final(self, error: Exception) -> Exception:
        """Return the error to raise for an error of a call.

        A call may raise a mere notice of a fatal error; and if callbacks are pending when the client detects it, Python
        raises a SystemError.
        """
        from confluent_kafka import KafkaException

        if isinstance(error, SystemError) or error.args[0].name() == "_FATAL":
            try:
                self._producer.begin_transaction()
            except KafkaException as final:
                # Without its frames, which would hold a reference to the producer.
                error = final.with_traceback(None)
        return self._translated(error) if isinstance(error, KafkaException) else error

    def _translated(self, error: Exception) -> ChangelogError:
        """Return keyed's error: the first failure of a message is the cause of later ones."""
        if self._failed is None or error.args[0].fatal():
            return translated(error, f"{self._where}{self._last_error}")
        return translated(self._failed, self._where)


def transactions_of(
    partition: Partition, consumer: Consumer, transactional_id: str, is_end: Callable[[Message], bool]
) -> Transactions:
    """Take the id that alone writes to a partition, and end its last transaction if the broker has not done that.

    A broker that comes back from a crash gives up the end of a transaction whose commit it has confirmed, while the
    partition has no leader (KAFKA-20734, Kafka 4.1 to 4.3): readers then wait for it without end, and the next
    transaction of the id would take its records along.

    Args:
        partition: The partition.
        consumer: A consumer of committed records that is not in use.
        transactional_id: The id.
        is_end: Returns true for the last record of a transaction that may be committed.

    Raises:
        ChangelogError: The broker does not answer, or refuses; or another program has an open transaction.
    """
    cluster = partition.cluster
    # A broker confirms an end before it reaches the partition; taking the id waits for that.
    for _ in range(2):
        transactions = Transactions(cluster, transactional_id, str(partition))
        with closing_on_error(transactions):
            _, committed = partition.offsets(consumer)
            reader = cluster.consumer("read_uncommitted")
            if partition.offsets(reader)[1] <= committed:
                return transactions
            last: Any = None
            for messages in partition.read(reader, committed):
                last = messages[-1]
            # Only a partition with a record of the transaction gets its end. This one is there already.
            transactions.begin()
            transactions.send(partition, [(last.key(), last.value())], last.headers())
            transactions.deliver()
            if is_end(last):
                transactions.commit()
        transactions.close()
    raise ChangelogError(
        f"{partition} has had an open transaction since offset {committed}, which is not of {transactional_id!r}: end "
        "it with kafka-transactions.sh, and let no other program write there"
    )
