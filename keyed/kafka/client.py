"""Clients of a Kafka cluster: their settings, the translation of Kafka's errors, and the creation of topics.

`Transactions` is a transactional producer with back-pressure and translated errors.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import attrs

from keyed.base.arguments import Duration, milliseconds_of, text, type_of
from keyed.base.closing import closing_on_error
from keyed.base.extras import extra
from keyed.errors import ChangelogError, ChangelogFenced, DefinitionError, HistoryCompacted

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer
    from confluent_kafka.admin import AdminClient


_log = logging.getLogger(__name__)

#: The headers of a record.
Headers = list[tuple[str, str | bytes | None]]

#: Settings that transactions, and readers of transactions, require.
_FIXED_PRODUCER: dict[str, Any] = {"enable.idempotence": True, "acks": "all", "allow.auto.create.topics": False}
_FIXED_CONSUMER: dict[str, Any] = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # A missing offset is an error; reading must not jump to another offset.
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
    "check.crcs": True,
}
_PRODUCER: dict[str, Any] = {
    "compression.type": "lz4",
    # A snapshot is one transaction.
    "transaction.timeout.ms": 300_000,
    # Limits of a producer's queue, in records and kilobytes; a process has one producer for each key group.
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 65_536,
}
_CONSUMER: dict[str, Any] = {
    # No offsets are committed for this group.
    "group.id": "keyed",
    # By default the client waits half a second at the end of a partition, and a second if it has read ahead.
    "fetch.wait.max.ms": 20,
    "fetch.queue.backoff.ms": 5,
}
_RESERVED = {*_FIXED_PRODUCER, *_FIXED_CONSUMER, "bootstrap.servers", "transactional.id", "request.required.acks"}

#: Transient errors: the leader of a partition changes, a topic is new, a connection broke.
_PASSING = {
    "NOT_LEADER_FOR_PARTITION",
    "LEADER_NOT_AVAILABLE",
    "OFFSET_NOT_AVAILABLE",
    "FENCED_LEADER_EPOCH",
    "_TRANSPORT",
    "_ALL_BROKERS_DOWN",
    "_DESTROY_BROKER",
}
_PAUSE = 0.05
_FENCED = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}
_OUT_OF_RANGE = {"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE", "_LOG_TRUNCATION"}
_GONE = (
    "the topic or a partition of it is gone; start with a new topic and the checkpoint (the log then begins with a "
    "snapshot), or restore from another changelog"
)
_UNREACHABLE = "no broker answered; check bootstrap, the network and the settings of TLS and SASL, then start again"
_TOO_LARGE = (
    "an entry is larger than the topic or the client allows; raise max.message.bytes of the topic and the client "
    "setting message.max.bytes"
)
_FORBIDDEN = "the user in the settings lacks a permission; docs/how-to/kafka.md lists those that keyed needs"
_REMEDIES = {
    **dict.fromkeys(("UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"), _GONE),
    **dict.fromkeys(
        ("_TIMED_OUT", "_MSG_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_SSL"), _UNREACHABLE
    ),
    **dict.fromkeys(("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "TOPIC_AUTHORIZATION_FAILED"), _FORBIDDEN),
    **dict.fromkeys(("CLUSTER_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED"), _FORBIDDEN),
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": _FORBIDDEN,
    **dict.fromkeys(("MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"), _TOO_LARGE),
    "INVALID_TRANSACTION_TIMEOUT": (
        "the broker allows only shorter transactions; give settings={'transaction.timeout.ms': ...} at most its "
        "transaction.max.timeout.ms"
    ),
    "INVALID_TIMESTAMP": (
        "the topic refuses timestamps so far from the present; raise message.timestamp.after.max.ms or "
        "message.timestamp.before.max.ms of the topic, and run again"
    ),
    "NOT_ENOUGH_REPLICAS": "fewer replicas are in sync than min.insync.replicas; wait for brokers to come back",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": "fewer replicas are in sync than min.insync.replicas; wait for brokers",
    "_INVALID_ARG": "the settings have a name or value that the client does not support",
}


def translated(error: BaseException | KafkaError, doing: str) -> ChangelogError:
    """Return keyed's error for a Kafka error.

    Args:
        error: The client's exception, or its error event.
        doing: The operation, for the message.
    """
    if isinstance(error, TimeoutError):
        return ChangelogError(f"{doing}: no answer in time; {_UNREACHABLE}")
    kafka_error: Any = error.args[0] if isinstance(error, BaseException) and error.args else error
    if not hasattr(kafka_error, "name"):
        return ChangelogError(f"{doing}: {error}")
    name = kafka_error.name()
    message = f"{doing}: Kafka reports {name}: {kafka_error.str()}"
    if name in _FENCED:
        return ChangelogFenced(
            f"{message}; another writer has taken over this key group. If that is the job itself, it continues; if two "
            "jobs write one changelog, stop one of them"
        )
    if name in _OUT_OF_RANGE:
        return HistoryCompacted(
            f"{message}; the last read offset is no longer in the topic: records were deleted, or the topic was "
            "recreated. Read again from the start (after=0)"
        )
    remedy = _REMEDIES.get(name)
    return ChangelogError(f"{message}; {remedy}" if remedy else message)


def is_permanent(error: ChangelogError) -> bool:
    """Return true for an error of `translated` that comes again at each attempt until someone changes something."""
    return isinstance(error, ChangelogFenced) or any(why in str(error) for why in (_GONE, _TOO_LARGE, _FORBIDDEN))


def check_client(bootstrap: str, settings: Mapping[str, Any]) -> None:
    """Check the addresses of brokers and the client settings of a user.

    Raises:
        DefinitionError: An address has credentials, or a setting is keyed's own or not a plain value.
    """
    if "@" in bootstrap:
        raise DefinitionError(
            "bootstrap= is not 'host:port', separated by commas: it has an @; give user and password in settings= "
            "(sasl.username, sasl.password)"
        )
    if not isinstance(settings, Mapping):
        raise DefinitionError(f"settings must be a dict of the client's settings, not {type_of(settings)}")
    for name, value in settings.items():
        if name in _RESERVED:
            raise DefinitionError(
                f"settings={{{name!r}: ...}}: keyed sets this itself"
                + (", from bootstrap=" if name == "bootstrap.servers" else "; leave it out")
            )
        if not isinstance(value, str | int | float):
            raise DefinitionError(
                f"settings={{{name!r}: ...}} is {type_of(value)}; settings are sent to the executors as data: "
                "give a string or a number"
            )


def declared_cluster(owner: str, bootstrap: str, settings: Mapping[str, Any], timeout: Duration) -> Cluster:
    """Return a cluster for the parameters of a public class.

    Args:
        owner: The class, for messages.
        bootstrap: Addresses of brokers.
        settings: Client settings of the user.
        timeout: Of operations at a broker.

    Raises:
        DefinitionError: A parameter is out of its range, or a setting is keyed's own.
    """
    text(bootstrap, f"{owner}: bootstrap", "text that is not empty")
    check_client(bootstrap, settings)
    return Cluster(bootstrap, dict(settings), milliseconds_of(timeout, f"{owner}(timeout)", least=1) / 1000)


class _Logger:
    """Logger of the client. Important messages are raised as errors too; fencing is routine and not logged."""

    def log(self, _level: int, message: str, *arguments: Any) -> None:
        _log.info(message, *arguments)


class LastError:
    """The last error of a client outside of calls, such as the reason for a missing connection. For messages."""

    def __init__(self) -> None:
        self._text = ""

    def record(self, error: Any) -> None:
        """Record an error outside of calls. Most of them are transient."""
        # "All brokers are down" follows the error with the reason.
        if not self._text or error.name() != "_ALL_BROKERS_DOWN":
            self._text = f" (the client reported: {error.str()})"

    def __str__(self) -> str:
        return self._text


@attrs.frozen
class Cluster:
    """A Kafka cluster, with the settings of its clients.

    Attributes:
        bootstrap: Brokers, ``host:port``, separated by commas.
        settings: Client settings of the user.
        timeout: Seconds without progress after which an operation fails.
    """

    bootstrap: str
    settings: Mapping[str, Any] = attrs.field(repr=False)
    timeout: float

    def producer(
        self, transactional_id: str, reported: Callable[[Any, Any], None], failed: Callable[[Any], None]
    ) -> Producer:
        """Return a producer of transactions.

        Args:
            transactional_id: Its id.
            reported: Called for each message that was delivered or abandoned, with an error or ``None``.
            failed: Called with errors outside of messages.
        """
        own = {**_FIXED_PRODUCER, "transactional.id": transactional_id, "on_delivery": reported, "error_cb": failed}
        client: Producer = self._client("Producer", {**_PRODUCER, **self.settings, **own})
        return client

    def consumer(self, isolation: str = "read_committed") -> Consumer:
        """Return a consumer without group management, by default of committed records."""
        fixed = {**_FIXED_CONSUMER, "isolation.level": isolation}
        client: Consumer = self._client("Consumer", {**_CONSUMER, **self.settings, **fixed})
        return client

    def admin(self, failed: Callable[[Any], None] | None = None) -> AdminClient:
        """Return a client that creates and describes topics.

        Args:
            failed: Called with errors outside of calls, when the client is polled.
        """
        # Otherwise brokers may create a topic on a mere request for its metadata.
        own = {"allow.auto.create.topics": False, **({"error_cb": failed} if failed else {})}
        client: AdminClient = self._client("admin.AdminClient", {**self.settings, **own})
        return client

    def _client(self, kind: str, settings: dict[str, Any]) -> Any:
        with extra("kafka", f"Kafka at {self.bootstrap}"):
            import confluent_kafka.admin
        make = attrgetter(kind)(confluent_kafka)
        try:
            return make({**settings, "bootstrap.servers": self.bootstrap}, logger=_Logger())
        except (confluent_kafka.KafkaException, TypeError, ValueError) as error:
            raise translated(error, f"Kafka at {self.bootstrap}") from error

    def topic_settings(self, topic: str) -> dict[str, Any]:
        """Return the effective settings of a topic."""
        # The client has to exist until it has its answer.
        client: Any = self.admin()
        import confluent_kafka as ck
        import confluent_kafka.admin

        kafka: Any = confluent_kafka.admin
        resource = kafka.ConfigResource(kafka.ResourceType.TOPIC, topic)
        try:
            settings = client.describe_configs([resource])[resource].result(self.timeout)
        except (ck.KafkaException, TimeoutError) as error:
            raise translated(error, f"settings of topic {topic!r}") from error
        return {name: entry.value for name, entry in settings.items()}

    def partitions(self, topic: str) -> dict[int, int]:
        """Return the number of replicas of each partition of a topic; empty if there is no such topic.

        Raises:
            ChangelogError: The broker does not answer, or refuses.
        """
        last_error = LastError()
        client = self.admin(last_error.record)
        import confluent_kafka as ck

        where = f"topic {topic!r}"
        try:
            description = client.list_topics(topic, timeout=self.timeout).topics[topic]
        except ck.KafkaException as error:
            # Usually the first call of all, so errors of the address, TLS or the log-in are reported here.
            client.poll(0)
            raise translated(error, f"{where}{last_error}") from error
        if description.error is None:
            return {number: len(partition.replicas) for number, partition in description.partitions.items()}
        if description.error.code() in {ck.KafkaError.UNKNOWN_TOPIC_OR_PART, ck.KafkaError._UNKNOWN_TOPIC}:  # noqa: SLF001
            return {}
        raise translated(description.error, where)

    def create_or_check_topic(
        self,
        topic: str,
        count: int,
        replication_factor: int | None,
        settings: Mapping[str, str],
        settings_if_new: Mapping[str, str],
    ) -> None:
        """Create a topic, or check that an existing one matches the options.

        Args:
            topic: The topic.
            count: Number of partitions.
            replication_factor: Number of replicas; ``None`` for the broker's default.
            settings: Settings of the topic.
            settings_if_new: Defaults for ``settings`` of a new topic, which are not checked.

        Raises:
            ChangelogError: It cannot be created, or differs; the message has the differences.
        """
        partitions = self.partitions(topic)
        if not partitions:
            self.create_topic(topic, count, replication_factor, {**settings_if_new, **settings})
            partitions = self.partitions(topic)
        differences = []
        if len(partitions) != count:
            needed = f"and {count} are needed: one for each key group and one"
            differences.append(f"it has {len(partitions)} partitions, {needed}")
        wrong = [replicas for replicas in partitions.values() if replication_factor not in {None, replicas}]
        if wrong:
            differences.append(f"it has {wrong[0]} replicas, replication_factor={replication_factor}")
        have = self.topic_settings(topic)
        differences += [
            f"{name} is {have.get(name)}, and should be {value}"
            for name, value in settings.items()
            if have.get(name) != value
        ]
        if differences:
            raise ChangelogError(
                f"topic {topic!r} differs from the options: {'; '.join(differences)}. Alter the topic or the options, "
                "or give another topic, which is then created"
            )

    def create_topic(self, topic: str, count: int, replication_factor: int | None, settings: Mapping[str, str]) -> None:
        """Create a topic, unless another program has done so meanwhile.

        Args:
            topic: The topic.
            count: Number of partitions.
            replication_factor: Number of replicas; ``None`` for the broker's default.
            settings: Settings of the topic.

        Raises:
            ChangelogError: It cannot be created.
        """
        import confluent_kafka as ck
        import confluent_kafka.admin

        kafka: Any = confluent_kafka.admin
        # The client has to exist until it has its answer.
        client = self.admin()
        new = kafka.NewTopic(topic, count, replication_factor or -1, config=dict(settings))
        try:
            client.create_topics([new], operation_timeout=self.timeout)[topic].result(self.timeout)
        except (ck.KafkaException, TimeoutError) as error:
            # Another driver may have created it in the meantime.
            if isinstance(error, TimeoutError) or error.args[0].code() != ck.KafkaError.TOPIC_ALREADY_EXISTS:
                raise translated(error, f"creating topic {topic!r} with {count} partitions") from error
        # Metadata reaches the brokers with a delay.
        deadline = time.monotonic() + self.timeout
        while len(self.partitions(topic)) != count and time.monotonic() < deadline:
            time.sleep(0.05)


@attrs.frozen
class Partition:
    """A partition of a topic.

    Attributes:
        cluster: The cluster.
        topic: The topic.
        number: Number of the partition: in a changelog the index of the key group; the last one has the positions.
    """

    cluster: Cluster
    topic: str
    number: int

    def __str__(self) -> str:
        return f"topic {self.topic!r}, partition {self.number}"

    def read(self, consumer: Consumer, start: int) -> Iterator[list[Message]]:
        """Yield the committed records from an offset to the current end, some thousands at a time.

        Raises:
            HistoryCompacted: The offset is not in the partition.
            ChangelogError: Kafka's errors, or no answer in time.
        """
        import confluent_kafka as ck

        doing, timeout = f"reading {self}", self.cluster.timeout
        try:
            consumer.assign([ck.TopicPartition(self.topic, self.number, start)])
            deadline = time.monotonic() + timeout
            while True:
                first = consumer.poll(0.5)
                if first is None:
                    if time.monotonic() > deadline:
                        raise ChangelogError(f"{doing}: no answer for {timeout:g} s; {_UNREACHABLE}")
                    continue
                deadline = time.monotonic() + timeout
                # Further records that were fetched already: with a time-out, consume() would wait at the end of the
                # partition.
                messages = [first, *consumer.consume(9_999, 0)]
                ended = False
                good = []
                for message in messages:
                    error = message.error()
                    if error is None:
                        good.append(message)
                    elif error.code() == ck.KafkaError._PARTITION_EOF:  # noqa: SLF001 - that is its name
                        ended = True
                    elif error.code() == ck.KafkaError.GROUP_AUTHORIZATION_FAILED:
                        pass  # The client looks for the coordinator of its group, which is not used.
                    elif not error.retriable() or error.fatal():
                        raise translated(error, doing)
                if good:
                    yield good
                if ended:
                    return
        except ck.KafkaException as error:
            raise translated(error, doing) from error
        finally:
            consumer.unassign()

    def offsets(self, consumer: Consumer) -> tuple[int, int]:
        """Return the offset of the first record, and the one after the last committed record."""
        import confluent_kafka as ck

        timeout = self.cluster.timeout
        deadline = time.monotonic() + timeout
        while True:
            try:
                watermarks = consumer.get_watermark_offsets(ck.TopicPartition(self.topic, self.number), timeout=timeout)
            except ck.KafkaException as error:
                if error.args[0].name() not in _PASSING or time.monotonic() > deadline:
                    raise translated(error, str(self)) from error
                time.sleep(_PAUSE)
                continue
            if watermarks is None:
                raise ChangelogError(f"{self}: no answer in time; {_UNREACHABLE}")
            return watermarks


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
