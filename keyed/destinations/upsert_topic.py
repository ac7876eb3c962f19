"""Compacted topics that hold a state table, as sinks of its copies.

A record's key has the columns that identify the row, its value all columns; without a value the row was removed. Its
headers:

=================  ====================================================================================================
``keyed-table``    operator and table, ``operator.table``
``keyed-batch``    id of the batch, as progress and sinks have it; for a snapshot the batch of the snapshot
=================  ====================================================================================================

Each batch is one transaction with a mark (`keyed.changelog.kafka.marked_writer`). The number is that of the
transaction. The text is a JSON object with ``table``, ``token``, ``key`` and ``value`` (digests of their formats and
columns) and ``partitions``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import attrs
import msgspec
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from keyed.base.arguments import Duration, shown, text
from keyed.base.extras import extra
from keyed.base.schemas import Schema
from keyed.changelog.kafka.marked_writer import Mark, MarkedWriter
from keyed.destinations.sink import CopiedTable, Owner, Sink, SinkWriter, TableChanges
from keyed.errors import ChangelogError, ChangelogFenced, DefinitionError, KeyedError, SinkError
from keyed.formats.declared_formats import Avro, Json
from keyed.formats.json_writer import as_json
from keyed.formats.sql_types import avro_record
from keyed.formats.topic_values import check_format, encoder, is_unreachable
from keyed.kafka.client import Headers, Partition, declared_cluster, is_permanent

_TABLE, _BATCH = "keyed-table", "keyed-batch"
#: Keys are assigned to partitions as Java's producers do, so that topics can be joined.
_DEFAULTS: Mapping[str, Any] = {"partitioner": "murmur2_random"}
_COMPACT = "cleanup.policy"
Encode = Callable[[Any], bytes]


class _Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """The text of a mark.

    Attributes:
        table: Operator and table.
        token: Token of the last batch.
        key: Digest of the format and the columns of keys; empty if they were not known.
        value: That of values.
        partitions: Number of partitions.
    """

    table: str
    token: str
    key: str
    value: str
    partitions: int


_decode_mark = msgspec.json.Decoder(_Mark).decode


def _plain_format(_: Any, attribute: Any, value: Any) -> None:
    """Check the format of a key or value of an `UpsertTopic`."""
    if not isinstance(value, Json | Avro) or (isinstance(value, Json) and value.registry is not None):
        raise DefinitionError(
            f"UpsertTopic: {attribute.name}={value!r} must be Json() or Avro(...); a Json with a registry and Protobuf "
            "are not supported here"
        )


@attrs.frozen(eq=False)
class UpsertTopic(Sink):
    """A compacted topic that holds a state table, for `keyed.tables.StateTable.replicate`.

    A record's key has the columns that identify a row, its value all columns; null removes the row. A missing topic is
    created. It needs the extra ``keyed-streams[kafka]``.

    Args:
        topic: The topic; it belongs to one table.
        bootstrap: Brokers, ``host:port``, separated by commas.
        key: Format of the keys: `Json` or `Avro`.
        value: Format of the values. The schema of an `Avro` without ``schema=`` is made from the table's columns.
        namespaces: True for state under namespaces: the key has the column ``namespace``, as JSON text. Windows have
            their own columns instead.
        partitions: Number of partitions of a new topic.
        replication_factor: Number of replicas of a new topic; by default the broker's.
        settings: Settings of librdkafka; its ``partitioner`` is ``murmur2_random``, as in Kafka's Java client.
        timeout: Of operations at a broker: `int` milliseconds or `timedelta`.

    Raises:
        DefinitionError: A parameter is missing or out of its range.
    """

    topic: str
    bootstrap: str = attrs.field(kw_only=True)
    key: Json | Avro = attrs.field(factory=Json, kw_only=True, validator=_plain_format)
    value: Json | Avro = attrs.field(factory=Json, kw_only=True, validator=_plain_format)
    namespaces: bool = attrs.field(default=False, kw_only=True)
    partitions: int = attrs.field(default=1, kw_only=True)
    replication_factor: int | None = attrs.field(default=None, kw_only=True)
    settings: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True, repr=False)
    timeout: Duration = attrs.field(default=60_000, kw_only=True)

    def __attrs_post_init__(self) -> None:
        text(self.topic, "UpsertTopic: topic", "text that is not empty")
        if type(self.namespaces) is not bool:
            raise DefinitionError(f"UpsertTopic: namespaces={shown(self.namespaces)} must be True or False")
        for name in ("partitions", "replication_factor"):
            number = getattr(self, name)
            if (type(number) is not int or number < 1) and (number is not None or name == "partitions"):
                raise DefinitionError(f"UpsertTopic: {name}={shown(number)} must be a number from 1")
        declared_cluster("UpsertTopic", self.bootstrap, self.settings, self.timeout)

    @property
    def transactional_id(self) -> str:
        """The transactional id and consumer group: one writer of the topic is active, the last one that started."""
        return f"keyed-changes-{self.topic}"

    def open(self, owner: Owner, schema: Schema | None) -> SinkWriter:
        """Refuse an output. See `Sink`."""
        raise DefinitionError(f"{self!r} holds copies of state tables; give a keyed.topics.KafkaSink for an output")

    def open_copy(self, owner: Owner) -> SinkWriter:
        """See `Sink`."""
        return UpsertTopicWriter(self, owner.query)


class UpsertTopicWriter(SinkWriter):
    """Writes a table to a topic.

    Args:
        to: The topic.
        table: Operator and table.

    Raises:
        ExtraNotInstalled: A package is not installed.
    """

    def __init__(self, to: UpsertTopic, table: str) -> None:
        with extra("kafka", repr(to)):
            import confluent_kafka  # noqa: F401
        for each in (to.key, to.value):
            check_format(each)
        self._to = to
        self._table = table
        self.id = f"topic {to.topic!r}"
        self._cluster = declared_cluster("UpsertTopic", to.bootstrap, {**_DEFAULTS, **to.settings}, to.timeout)
        self._writer = MarkedWriter(self._cluster, to.topic, to.transactional_id, self.id)
        self._partitions = 0
        #: Number of the last transaction.
        self._number = 0
        #: The table whose columns the encoders have.
        self._encoded_table: CopiedTable | None = None
        self._mark: _Mark | None = None

    def claim(self, repeated: int | None = None) -> None:
        """Create the topic, or check it, and fence other writers. See `SinkWriter`."""
        with self._translated():
            self._partitions = self._partitions or self._create_or_check_topic()
            mark = self._writer.claim()
        self._number, self._mark = max(mark.number, 0), None
        if mark.number < 0:
            return
        try:
            last = self._mark = _decode_mark(mark.text)
        except msgspec.MsgspecError as error:
            raise SinkError(
                f"{self._to!r}: the consumer group {self._to.transactional_id!r} was committed by another program; "
                "give another topic"
            ) from error
        self._check_owner(last.table)
        if last.partitions != self._partitions:
            raise SinkError(
                f"{self._to!r}: the topic had {last.partitions} partitions, and has {self._partitions}: keys would go "
                "to other partitions than their earlier records; replicate the table to a new topic"
            )

    def last_copy(self) -> tuple[int, Mapping[str, str]]:
        """See `SinkWriter`. Records of a topic whose position Kafka has forgotten are a copy too."""
        if self._mark is not None:
            return self._number, {"token": self._mark.token, "columns": self._mark.value}
        with self._translated():
            self._number = int(any(True for _ in self._messages()))
        return self._number, {}

    def digest_copy(self, table: CopiedTable) -> str:
        """See `SinkWriter`."""
        self._use(table)
        if self._mark is not None and self._mark.key and self._mark.key != self._digests[0]:
            raise SinkError(
                f"{self._to!r}: the topic has keys with other columns or in another format than {', '.join(table.key)} "
                f"as {self._to.key!r}; replicate the table to a new topic, or delete this one"
            )
        return self._digests[1]

    def write_changes(self, changes: TableChanges, number: int, note: Mapping[str, str]) -> bool:
        """Write records, of a whole table those that differ. See `SinkWriter`."""
        if self._number != number - 1:
            return False
        key = "" if self._mark is None or changes.replaces else self._mark.key
        if changes.table is not None:
            self._use(changes.table)
            key = self._digests[0]
        mark = _Mark(self._table, note["token"], key, note["columns"], self._partitions)
        headers: Headers = [(_TABLE, self._table.encode()), (_BATCH, note["state-batch"].encode())]
        with self._translated():
            records = self._records(changes, self._read() if changes.replaces else {})
            self._writer.write(records, Mark(number, msgspec.json.encode(mark).decode()), headers)
        self._number, self._mark = number, mark
        return True

    def is_transient(self, error: BaseException) -> bool:
        """See `SinkWriter`."""
        if isinstance(error, ChangelogError):
            return not is_permanent(error)
        return isinstance(error, Exception) and is_unreachable(error)

    def close(self) -> None:
        """See `SinkWriter`."""
        self._writer.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate errors of the client."""
        try:
            yield
        except ChangelogFenced as error:
            raise SinkError(
                f"{self._to!r}: another replication of this topic has started after this one, and goes on in its place"
            ) from error
        except ChangelogError as error:
            raise SinkError(f"{self._to!r}: {error}") from error

    def _create_or_check_topic(self) -> int:
        """Create the topic, or check that it is compacted. Returns the number of its partitions."""
        to, cluster = self._to, self._cluster
        partitions = cluster.partitions(to.topic)
        if not partitions:
            cluster.create_topic(to.topic, to.partitions, to.replication_factor, {_COMPACT: "compact"})
            partitions = cluster.partitions(to.topic)
        policy = cluster.topic_settings(to.topic).get(_COMPACT)
        if policy != "compact":
            raise SinkError(
                f"{to!r}: the topic has {_COMPACT}={policy}, which removes rows that the table still has; set it with "
                f"kafka-configs --alter --topic {to.topic} --add-config {_COMPACT}=compact, or give another topic"
            )
        return len(partitions)

    def _use(self, table: CopiedTable) -> None:
        """Make the encoders of rows, and the digests of the formats and columns of keys and values."""
        if self._encoded_table is not table:
            self._key, key_digest = self._encoder(table, is_key=True)
            self._value, value_digest = self._encoder(table, is_key=False)
            self._digests = (key_digest, value_digest) if table.digest else ("", "")
            self._key_names = table.key
            self._encoded_table = table

    def _records(self, changes: TableChanges, digests: dict[bytes, int]) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield records of changes.

        Args:
            changes: The changes.
            digests: Digests of the values in the topic by key, if they are replaced.
        """
        for part in changes.upserts:
            for row in part.rows:
                key = self._encoded(self._key, {name: row[name] for name in self._key_names})
                value = self._encoded(self._value, row)
                if changes.replaces and digests.pop(key, None) == xxh3_64_intdigest(value):
                    changes.written.rows -= 1
                else:
                    yield key, value
        for part in changes.removed:
            for row in part.rows:
                yield self._encoded(self._key, row), None
        for key in digests:
            changes.written.tombstones += 1
            yield key, None

    def _encoder(self, table: CopiedTable, *, is_key: bool) -> tuple[Encode, str]:
        """Return an encoder, and the digest of its format and columns."""
        format_ = self._to.key if is_key else self._to.value
        if isinstance(format_, Json):
            columns = sorted((name, str(type_)) for name, type_ in table.columns.items() if name in table.key)
            return as_json, xxh3_64_hexdigest(f"json {json.dumps(columns)}".encode()) if is_key else table.digest
        schema = json.loads(format_.schema) if format_.schema is not None else None
        if schema is None:
            fields = [field for field in table.schema() if not is_key or field.name in table.key]
            name = re.sub(r"^(?=\d)|[^A-Za-z0-9_]", "_", f"{self._table}_{'key' if is_key else 'value'}")
            schema = avro_record(fields, name, f"table {self._table!r}", table.key)
        else:
            self._check_schema(schema, table, is_key=is_key)
        written = json.dumps(schema)
        encode = encoder(Avro(written, registry=format_.registry), self._to.topic, is_key=is_key)
        return encode, xxh3_64_hexdigest(f"avro {written} {format_.registry is not None}".encode())

    def _check_schema(self, schema: Any, table: CopiedTable, *, is_key: bool) -> None:
        """Check that a user's schema has all columns: without one of a key different rows would have the same key."""
        names = table.key if is_key else tuple(table.columns)
        fields = [field["name"] for field in schema.get("fields", ())] if isinstance(schema, dict) else []
        missing = [name for name in names if name not in fields]
        if missing:
            raise DefinitionError(
                f"UpsertTopic: {'key' if is_key else 'value'}=Avro(...) has no field {missing[0]!r}, a column of the "
                f"table; give a record with the fields {', '.join(names)}, or leave schema= out"
            )

    def _encoded(self, encode: Encode, row: Any) -> bytes:
        try:
            return encode(row)
        except KeyedError:
            raise
        except Exception as error:
            raise SinkError(
                f"{self._to!r}: the row {row!r:.200} does not have the format: {type(error).__name__}: {error}"
            ) from error

    def _read(self) -> dict[bytes, int]:
        """Return the digests of the values in the topic by key.

        Raises:
            SinkError: It has records of another table, or that keyed has not written.
        """
        digests: dict[bytes, int] = {}
        for message in self._messages():
            key, value = message.key(), message.value()
            owner = dict(message.headers() or ()).get(_TABLE)
            self._check_owner(owner.decode(errors="replace") if isinstance(owner, bytes) else None)
            if value is None:
                digests.pop(key, None)
            else:
                digests[key] = xxh3_64_intdigest(value)
        return digests

    def _messages(self) -> Iterator[Any]:
        """Yield the committed records of the topic."""
        with closing(self._cluster.consumer()) as consumer:
            for number in range(self._partitions):
                partition = Partition(self._cluster, self._to.topic, number)
                low, high = partition.offsets(consumer)
                for messages in partition.read(consumer, low) if low < high else ():
                    yield from messages

    def _check_owner(self, table: str | None) -> None:
        if table != self._table:
            whose = "records that keyed has not written" if table is None else f"the table {table!r}"
            raise SinkError(f"{self._to!r}: the topic has {whose}, and not {self._table!r}; give another topic")
