"""Kafka topics as sinks: a batch is one transaction, with the batch's id as a committed offset.

The offset of partition 0 of the topic, in the consumer group ``transactional_id``, is the id after that of the last
written batch. The offset's metadata is the id of the query, a space, and the digest of the batch's records. A batch
that comes again with the same records is skipped; with others it is written again, so that no row is lost.

The local runtime commits the records of a batch with its state, and sends them afterwards, again after a crash if they
were not sent (`keyed.recovery.local_checkpoint`). So they are the same records. On Spark a batch that runs again has
the input that Spark has logged.

Kafka forgets a committed offset a week after its last commit (``offsets.retention.minutes`` of the broker). Only a
batch that an earlier run may have written needs it: if it is forgotten then, the sink refuses to continue. A position
that was forgotten differs from one that never was, because a query commits one before its first batch.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import attrs
import msgspec
from xxhash import xxh3_64_intdigest

from keyed.base.arguments import Duration, names, shown, text
from keyed.base.schemas import Schema
from keyed.changelog.kafka.marked_writer import Mark, MarkedWriter
from keyed.codec.keys import STORED_AS_THEY_ARE
from keyed.codec.refusals import type_name
from keyed.destinations.sink import BatchMark, Owner, Record, Sink, SinkBatch, SinkWriter
from keyed.errors import ChangelogError, DefinitionError, SinkError
from keyed.formats.declared_formats import Format, Json, Protobuf
from keyed.formats.topic_values import check_format, encoder
from keyed.kafka.client import declared_cluster
from keyed.rows import members_of

_log = logging.getLogger(__name__)
#: The records of ``encode=`` are packed, since they may have no value, and have timestamps.
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[bytes | None, bytes | None, int | None]).decode
#: Types of a key that has a text of its own; that of an object may be its address.
_WITH_TEXT = STORED_AS_THEY_ARE | {float, Decimal, dt.datetime}
#: Timestamps of records are less: they have 64 bits and a sign.
_NEVER = 1 << 63


#: Returns the key, the value and the timestamp of the record of a row.
Encode = Callable[[Any], tuple[bytes | None, bytes | None, int | None]]


@attrs.frozen(eq=False)
class KafkaSink(Sink):
    """Writes the rows of an output as records of a topic, each exactly once for readers of committed records.

    A batch is one transaction, in which its id is committed as the offset of the consumer group ``transactional_id``:
    a repeated batch is not written twice, unless on Spark, where the driver writes, it has other rows. It needs the
    extra ``keyed-streams[kafka]``.

    Args:
        topic: The topic, which exists.
        bootstrap: Brokers, ``host:port``, separated by commas.
        key: The columns of the record's key: one is written as text (bytes unchanged), several as a JSON object. By
            default records have no key.
        value: Format of the values, which have all columns.
        encode: Instead of ``key`` and ``value`` a function from a row to key, value (``None`` for a tombstone) and
            timestamp in milliseconds; each may be None.
        transactional_id: Id of the transactions; it belongs to one query and its checkpoint. By default ``keyed-``
            and the topic.
        settings: Settings of the client, which is librdkafka.
        timeout: Of operations at a broker: `int` milliseconds or `timedelta`.

    Raises:
        DefinitionError: A parameter is missing or out of its range.
    """

    topic: str
    bootstrap: str = attrs.field(kw_only=True)
    key: str | Sequence[str] | None = attrs.field(default=None, kw_only=True)
    value: Format = attrs.field(factory=Json, kw_only=True)
    encode: Encode | None = attrs.field(default=None, kw_only=True, repr=False)
    transactional_id: str = attrs.field(kw_only=True)
    settings: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True, repr=False)
    timeout: Duration = attrs.field(default=60_000, kw_only=True)

    @transactional_id.default
    def _id(self) -> str:
        return f"keyed-{self.topic}"

    def __attrs_post_init__(self) -> None:
        for name in ("topic", "transactional_id"):
            text(getattr(self, name), f"KafkaSink: {name}", "text that is not empty")
        if self.key is not None and not names(self.key, "KafkaSink: key"):
            raise DefinitionError("KafkaSink: key=[] names no column; leave it out for records without a key")
        declared_cluster("KafkaSink", self.bootstrap, self.settings, self.timeout)
        if self.encode is not None and not callable(self.encode):
            raise DefinitionError(f"KafkaSink: encode={shown(self.encode)} must be a function of a row")
        if self.encode is not None and (self.key is not None or self.value != Json()):
            raise DefinitionError("KafkaSink: encode= returns key and value; leave out key= and value=")
        if not isinstance(self.value, Format):
            raise DefinitionError(f"KafkaSink: value={self.value!r} must be a Json, an Avro or a Protobuf")
        if not isinstance(self.value, Protobuf) and self.value.registry is not None and self.value.schema is None:
            raise DefinitionError(
                f"KafkaSink: value={self.value!r} needs schema=, which is registered with the first value"
            )

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of the key."""
        return () if self.key is None else (self.key,) if isinstance(self.key, str) else tuple(self.key)

    @property
    def identity(self) -> tuple[str, str]:
        """See `Sink`."""
        return self.bootstrap, self.transactional_id

    @property
    def clash(self) -> str:
        """See `Sink`."""
        return (
            f"two outputs have the transactional_id {self.transactional_id!r}, and the batches of one would be "
            "taken for those of the other; give each KafkaSink a transactional_id= of its own"
        )

    def open(self, owner: Owner, schema: Schema | None) -> SinkWriter:
        """See `Sink`."""
        return TopicWriter(self, owner)


class TopicWriter(SinkWriter):
    """Writes the batches of one query to a topic.

    Args:
        sink: The sink.
        owner: The query.

    Attributes:
        id: Name of the topic and the transactional id, by which records are committed with the state of a batch.

    Raises:
        DefinitionError: A setting is keyed's own.
        ExtraNotInstalled: A package is not installed.
    """

    def __init__(self, sink: KafkaSink, owner: Owner) -> None:
        check_format(sink.value)
        self.id = f"topic {sink.topic!r} with transactional_id={sink.transactional_id!r}"
        self._sink = sink
        self._owner = owner
        self._encode = encoder(sink.value, sink.topic)
        self._encode_key = encoder(Json(), sink.topic, is_key=True)
        cluster = declared_cluster("KafkaSink", sink.bootstrap, sink.settings, sink.timeout)
        self._writer = MarkedWriter(cluster, sink.topic, sink.transactional_id, self.id)
        #: The last written batch, with the digest of its records if it is known.
        self._last = BatchMark(owner.query)

    def claim(self, repeated: int | None = None) -> None:
        """Fence other writers with the transactional id, and read the id of the last written batch.

        Args:
            repeated: Id of a batch that an earlier run may have written; ``None`` if the next batch is a new one.

        Raises:
            SinkError: The topic does not exist, another query has the transactional id, no broker answers, or Kafka has
                forgotten whether the repeated batch was written.
        """
        sink = self._sink
        self.close()
        with self._translated():
            committed = self._writer.claim()
        last = BatchMark.of_offset(committed.number, committed.text)
        is_own = self._owner.continues([last.query])
        # The first position of another query, which has written nothing, is nobody's.
        if committed.number < 0 or (committed.number == 0 and last.query and not is_own):
            self._begin(repeated)
            return
        if not is_own:
            self.close()
            raise SinkError(
                f"{sink!r}: another query has written with transactional_id={sink.transactional_id!r}, and its batches "
                "would be taken for those of this one; continue with the checkpoint of that query, or give another "
                "transactional_id="
            )
        # A restored query may cut its input into other batches than the one before it.
        self._last = last if last.query == self._owner.query else BatchMark(self._owner.query)

    def _begin(self, repeated: int | None) -> None:
        """Commit a position before the first batch, or the first one after a week without any."""
        sink = self._sink
        if repeated is not None:
            self.close()
            raise SinkError(
                f"{sink!r}: Kafka has no position of the consumer group {sink.transactional_id!r} any more, which says "
                f"whether batch {repeated} was written: it forgets positions after offsets.retention.minutes, a week "
                "by default. Read the end of the topic; then set the position, the id of the next batch to write: "
                f"confluent_kafka.Consumer({{'bootstrap.servers': {sink.bootstrap!r}, 'group.id': "
                f"{sink.transactional_id!r}}}).commit(offsets=[confluent_kafka.TopicPartition({sink.topic!r}, 0, N, "
                f"{self._owner.query + ' '!r})], asynchronous=False), where N is {repeated + 1} if the batch is there, "
                f"and {repeated} if it is not"
            )
        self._last = BatchMark(self._owner.query)
        with self._translated():
            self._writer.write((), Mark(*self._last.offset))

    def pack(self, batch: SinkBatch) -> list[Record]:
        """See `SinkWriter`."""
        return self.records(batch.rows)

    def records(self, rows: Iterable[Any]) -> list[Record]:
        """Return rows as records.

        Raises:
            SinkError: A row has no columns, or not those of the key; or the registry refuses the schema.
        """
        encode = self._sink.encode
        if encode is not None:
            return [(None, _pack(self._encoded(encode, row))) for row in rows]
        return [(self._key(row), self._encode(row)) for row in map(_columns, rows)]

    def write(self, rows: Sequence[Record], batch_id: int) -> None:
        """See `SinkWriter`."""
        sink = self._sink
        if not self._writer.is_claimed:
            self.claim()
        digest = _digest(rows)
        last, mark = self._last, BatchMark(self._owner.query, batch_id, {"digest": digest})
        is_same = last.note.get("digest", digest) == digest
        if not rows or batch_id < last.batch or (batch_id == last.batch and is_same):
            return
        if batch_id == last.batch:
            _log.warning("%r: batch %d came again with other rows, and is written again", sink, batch_id)
        records = rows if sink.encode is None else (_unpack(packed) for _, packed in rows)
        with self._translated():
            self._writer.write(records, Mark(*mark.offset), is_timed=sink.encode is not None)
        self._last = mark

    def close(self) -> None:
        """See `SinkWriter`."""
        self._writer.close()

    def _key(self, row: Mapping[str, Any]) -> bytes | None:
        columns = self._sink.key_columns
        missing = [name for name in columns if name not in row]
        if missing:
            raise SinkError(f"{self._sink!r}: the output has no column {missing[0]!r}, only {', '.join(row)}")
        if len(columns) > 1:
            return self._encode_key({name: row[name] for name in columns})
        key = row[columns[0]] if columns else None
        if key is None or type(key) is bytes:
            return key
        if type(key) not in _WITH_TEXT:
            raise SinkError(
                f"{self._sink!r}: the column {columns[0]!r} of the key has {shown(key)} of type "
                f"{type_name(type(key))}; "
                "give it text, bytes, a number, a date or a time, or give encode="
            )
        try:
            return str(key).encode()
        except UnicodeEncodeError as error:
            raise SinkError(f"{self._sink!r}: the key {key!r} is not text: {error}") from error

    def _encoded(self, encode: Encode, row: Any) -> tuple[bytes | None, bytes | None, int | None]:
        record = encode(row)
        kinds = (bytes | None, bytes | None, int | None)
        is_record = isinstance(record, tuple) and len(record) == 3 and all(map(isinstance, record, kinds))
        if not is_record or not (record[2] is None or 0 <= record[2] < _NEVER):
            raise SinkError(
                f"{self._sink!r}: encode returned {shown(record)}; it must return a tuple of key, value and timestamp: "
                "bytes, bytes and an int from 0 on (milliseconds), each of which may be None"
            )
        return record

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate errors of the client."""
        try:
            yield
        except ChangelogError as error:
            message = str(error).replace("another writer has taken over this key group", "another writer has its id")
            missing = f"{self.id} does not exist"
            if message.startswith(missing):
                message = f"{self._sink!r}: {message.removeprefix(missing + ': ')}: create the topic before the query"
            raise SinkError(message) from error


def _digest(records: Sequence[Record]) -> str:
    """Return a digest of records in any order."""
    total = sum(xxh3_64_intdigest((b"" if key is None else key) + b"\0" + value) for key, value in records)
    return f"{len(records)}-{total % 2**64:x}"


def _columns(row: Any) -> dict[str, Any]:
    """Return a row's columns by name."""
    members = members_of(row)
    if members is None:
        raise SinkError(
            f"a KafkaSink writes rows with named columns, not {type(row).__name__}; give process(..., output=...)"
        )
    return members
