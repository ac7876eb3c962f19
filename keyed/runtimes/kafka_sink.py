"""Writing of a `keyed.topics.KafkaSink`: a batch is one transaction, with the batch's id as a committed offset.

The offset of partition 0 of the topic, in the consumer group ``transactional_id``, is the id after that of the last
written batch. The offset's metadata is the id of the query, a space, and the digest of the batch's records. A batch
that comes again with the same records is skipped; with others it is written again, so that no row is lost.

The local runtime commits the records of a batch with its state, and sends them afterwards, again after a crash if they
were not sent (`keyed.recovery.outbox`). So they are the same records. On Spark a batch that runs again has the input
that Spark has logged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from xxhash import xxh3_64_intdigest

from keyed.changelog.kafka.client import Cluster, check_settings, translated
from keyed.changelog.kafka.transactions import Transactions
from keyed.durations import milliseconds_of
from keyed.errors import ChangelogError, SinkError
from keyed.kafka_values import check_format, encoder, json_bytes
from keyed.recovery.outbox import Record
from keyed.shown import shown
from keyed.topics import Encode, KafkaSink

_log = logging.getLogger(__name__)
#: Errors while the coordinator of a consumer group starts or moves to another broker.
_MOVING = ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR")
#: Seconds between two requests meanwhile.
_PAUSE = 0.1
#: The records of ``encode=`` are packed, since they may have no value, and have timestamps.
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[bytes | None, bytes | None, int | None]).decode


class TopicWriter:
    """Writes the batches of one query to a topic.

    Args:
        sink: The sink.
        queries: Id of the query, after those of the queries that it was restored from.

    Attributes:
        id: Name of the topic and the transactional id, by which records are committed with the state of a batch.
        old_id: The transactional id, by which earlier versions committed them.

    Raises:
        DefinitionError: A setting is keyed's own.
        ExtraNotInstalled: A package is not installed.
    """

    def __init__(self, sink: KafkaSink, queries: Sequence[str]) -> None:
        check_settings(sink.settings)
        check_format(sink.value)
        self.id = f"topic {sink.topic!r} with transactional_id={sink.transactional_id!r}"
        self.old_id = sink.transactional_id
        self._sink = sink
        self._queries = queries
        self._seconds = milliseconds_of(sink.timeout, "timeout") / 1000
        self._encode = encoder(sink.value, sink.topic)
        self._transactions: Transactions | None = None
        #: Metadata of the consumer group, and the id of the next batch.
        self._group: Any = None
        self._next = 0
        self._digest = ""

    def claim(self) -> None:
        """Fence other writers with the transactional id, and read the id of the last written batch.

        Raises:
            SinkError: The topic does not exist, another query has the transactional id, or no broker answers.
        """
        import confluent_kafka as ck

        sink = self._sink
        self.close()
        try:
            cluster = Cluster(sink.bootstrap, {**sink.settings, "group.id": sink.transactional_id}, self._seconds)
            consumer: Any = cluster.consumer()
            try:
                found = consumer.list_topics(sink.topic, timeout=self._seconds).topics[sink.topic]
                if found.error is not None:
                    raise SinkError(f"{sink!r}: Kafka reports {found.error.name()}: create the topic before the query")
                self._transactions = self._begun()
                mark = committed(consumer, ck.TopicPartition(sink.topic, 0), self._seconds)
                self._group = consumer.consumer_group_metadata()
            finally:
                consumer.close()
        except (ck.KafkaException, ChangelogError) as error:
            self.close()
            raise self._failed(error) from error
        if mark.error is not None:
            self.close()
            raise SinkError(f"{sink!r}: the last written batch cannot be read: {mark.error.str()}")
        query, _, digest = (mark.metadata or "").partition(" ")
        if mark.offset >= 0 and query not in self._queries:
            self.close()
            raise SinkError(
                f"{sink!r}: another query has written with transactional_id={sink.transactional_id!r}, and its batches "
                "would be taken for those of this one; continue with the checkpoint of that query, or give another "
                "transactional_id="
            )
        # A restored query may cut its input into other batches than the one before it.
        self._next, self._digest = (mark.offset, digest) if query == self._queries[-1] else (0, "")

    def records(self, rows: Iterable[Any]) -> list[Record]:
        """Return rows as records.

        Raises:
            SinkError: A row has no columns, or not those of the key; or the registry refuses the schema.
        """
        encode = self._sink.encode
        if encode is not None:
            return [(None, _pack(self._encoded(encode, row))) for row in rows]
        return [(self._key(row), self._encode(row)) for row in map(_columns, rows)]

    def write(self, records: Sequence[Record], batch_id: int) -> None:
        """Write the records of a batch, unless they were written before.

        Raises:
            SinkError: They cannot be written.
        """
        import confluent_kafka as ck

        sink = self._sink
        if self._transactions is None:
            self.claim()
        transactions = self._transactions
        assert transactions is not None
        digest = _digest(records)
        if not records or batch_id < self._next - 1 or (batch_id < self._next and digest == self._digest):
            return
        if batch_id < self._next:
            _log.warning("%r: batch %d came again with other rows, and is written again", sink, batch_id)
        try:
            transactions.begin()
            if sink.encode is None:
                transactions.send_anywhere(sink.topic, records)
            else:
                transactions.send_timed(sink.topic, (_unpack(packed) for _, packed in records))
            transactions.deliver()
            offset = ck.TopicPartition(sink.topic, 0, batch_id + 1, metadata=f"{self._queries[-1]} {digest}")
            transactions.commit_offset(offset, self._group)
            transactions.commit()
        except BaseException as error:
            transactions.abort()
            self.close()
            if isinstance(error, ChangelogError):
                raise self._failed(error) from error
            raise
        self._next, self._digest = batch_id + 1, digest

    def close(self) -> None:
        """Release the client. Closing again does nothing."""
        transactions, self._transactions = self._transactions, None
        if transactions is not None:
            transactions.close()

    def _begun(self) -> Transactions:
        """Return a producer with the transactional id, which fences earlier ones."""
        sink = self._sink
        # The client's commit of an offset ignores its time-out, and ends with that of its request, again and again.
        settings = {"socket.timeout.ms": max(10, min(int(self._seconds * 1000), 60_000)), **sink.settings}
        settings.pop("group.id", None)
        return Transactions(Cluster(sink.bootstrap, settings, self._seconds), sink.transactional_id, self.id)

    def _key(self, row: Mapping[str, Any]) -> bytes | None:
        names = self._sink.key_columns
        missing = [name for name in names if name not in row]
        if missing:
            raise SinkError(f"{self._sink!r}: the output has no column {missing[0]!r}, only {', '.join(row)}")
        if len(names) > 1:
            return json_bytes({name: row[name] for name in names})
        key = row[names[0]] if names else None
        return key if key is None or isinstance(key, bytes) else str(key).encode()

    def _encoded(self, encode: Encode, row: Any) -> tuple[bytes | None, bytes | None, int | None]:
        found = encode(row)
        kinds = (bytes | None, bytes | None, int | None)
        if not isinstance(found, tuple) or len(found) != 3 or not all(map(isinstance, found, kinds)):
            raise SinkError(
                f"{self._sink!r}: encode returned {shown(found)}; it must return a tuple of key, value and timestamp: "
                "bytes, bytes and an int, each of which may be None"
            )
        return found

    def _failed(self, error: Exception) -> SinkError:
        said = str(error) if isinstance(error, ChangelogError) else str(translated(error, self.id))
        return SinkError(said.replace("another writer has taken over this key group", "another writer has its id"))


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
            (found,) = consumer.committed([partition], max(deadline - time.monotonic(), 0.1))
            if is_last or found.error is None or found.error.name() not in _MOVING:
                return found
        except ck.KafkaException as error:
            if is_last or error.args[0].name() not in _MOVING:
                raise
        time.sleep(_PAUSE)


def _digest(records: Sequence[Record]) -> str:
    """Return a digest of records in any order."""
    total = sum(xxh3_64_intdigest((b"" if key is None else key) + b"\0" + value) for key, value in records)
    return f"{len(records)}-{total % 2**64:x}"


def _columns(row: Any) -> dict[str, Any]:
    """Return a row's columns by name."""
    if isinstance(row, dict):
        return row
    names = getattr(row, "_fields", None) or [field.name for field in getattr(type(row), "__attrs_attrs__", ())]
    if not names:
        raise SinkError(
            f"a KafkaSink writes rows with named columns, not {type(row).__name__}; give process(..., output=...)"
        )
    return {name: getattr(row, name) for name in names}
