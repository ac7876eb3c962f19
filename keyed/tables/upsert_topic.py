"""Copies of a state table in compacted topics: `keyed.topics.UpsertTopic`.

A record's key has the columns that identify the row, its value all columns; without a value the row was removed. Its
headers:

=================  ====================================================================================================
``keyed-table``    operator and table, ``operator.table``
``keyed-batch``    id of the batch, as progress and sinks have it; for a snapshot the batch of the snapshot
=================  ====================================================================================================

Each batch is one transaction, with the token of the batch in its mark (`keyed.changelog.kafka.marked_writer`): the text
is a JSON object with ``table``, ``token``, ``key`` and ``value`` (digests of their formats and columns) and
``partitions``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from keyed.base.extras import extra
from keyed.changelog.kafka.marked_writer import Mark, MarkedWriter
from keyed.errors import ChangelogError, ChangelogFenced, DefinitionError, KeyedError, SinkError
from keyed.formats.column_schemas import avro_record
from keyed.formats.declared_formats import Avro, Json
from keyed.formats.json_writer import as_json
from keyed.formats.topic_values import check_format, encoder, is_unreachable
from keyed.kafka.client import Headers, Partition, declared_cluster, is_permanent
from keyed.kafka.topic_creation import make_or_check, partitions
from keyed.tables.entries import Entry
from keyed.tables.replicated_rows import ReplicatedRows, Row, Written
from keyed.topics import UpsertTopic

_TABLE, _BATCH = "keyed-table", "keyed-batch"
#: Keys are assigned to partitions as Java's producers do, so that topics can be joined.
_DEFAULTS: Mapping[str, Any] = {"partitioner": "murmur2_random"}
_COMPACT = "cleanup.policy"
Encode = Callable[[Row], bytes]


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


class UpsertTopicWriter:
    """Writes a table to a topic, as `keyed.tables.sink_copy.SinkCopy` does to a sink.

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
        self.name = f"topic {to.topic!r}"
        self._cluster = declared_cluster("UpsertTopic", to.bootstrap, {**_DEFAULTS, **to.settings}, to.timeout)
        self._writer = MarkedWriter(self._cluster, to.topic, to.transactional_id, self.name)
        self._partitions: int | None = None
        self._rows: ReplicatedRows | None = None
        self._mark: _Mark | None = None
        self.namespaces = to.namespaces

    def claim(self) -> tuple[str, str] | None:
        """See `SinkCopy`."""
        if self._partitions is None:
            self._partitions = self._create_or_check_topic()
        mark = self._writer.claim()
        if mark.number < 0:
            self._mark = None
            return None
        try:
            found = self._mark = _decode_mark(mark.text)
        except msgspec.MsgspecError as error:
            raise SinkError(
                f"{self._to!r}: the consumer group {self._to.transactional_id!r} was committed by another program; "
                "give another topic"
            ) from error
        self._check_owner(found.table)
        if found.partitions != self._partitions:
            raise SinkError(
                f"{self._to!r}: the topic had {found.partitions} partitions, and has {self._partitions}: keys would go "
                "to other partitions than their earlier records; replicate the table to a new topic"
            )
        return found.token, found.value

    def shape(self, rows: ReplicatedRows) -> str:
        """See `SinkCopy`."""
        self._use(rows)
        if self._mark is not None and self._mark.key and rows.are_types_known and self._mark.key != self._shapes[0]:
            raise SinkError(
                f"{self._to!r}: the topic has keys with other columns or in another format than {', '.join(rows.key)} "
                f"as {self._to.key!r}; replicate the table to a new topic, or delete this one"
            )
        return self._shapes[1]

    def write(
        self, rows: ReplicatedRows, upserts: Sequence[Entry], removed: Sequence[Entry], token: str, batch: int
    ) -> Written:
        """See `SinkCopy`."""
        self._use(rows)

        def records() -> Iterator[tuple[bytes, bytes | None]]:
            yield from self._records(upserts)
            for key in rows.keys(removed):
                yield self._encoded(self._key, key), None

        self._transaction(records(), token, batch)
        return Written(len(upserts), len(removed))

    def replace(self, rows: ReplicatedRows, snapshot: Iterator[Any], token: str, batch: int) -> Written:
        """See `SinkCopy`."""
        self._use(rows)
        there = self._read()
        written = Written(was_empty=not there)

        def records() -> Iterator[tuple[bytes, bytes | None]]:
            for key, value in self._records(snapshot):
                if there.pop(key, None) != xxh3_64_intdigest(value):
                    written.rows += 1
                    yield key, value
            for key in there:
                written.tombstones += 1
                yield key, None

        self._transaction(records(), token, batch)
        return written

    def note(self, token: str, batch: int) -> None:
        """See `SinkCopy`."""
        if self._mark is not None:
            self._commit((), msgspec.structs.replace(self._mark, token=token), batch)

    def is_transient(self, error: Exception) -> bool:
        """See `SinkCopy`."""
        return (isinstance(error, ChangelogError) and not is_permanent(error)) or is_unreachable(error)

    def translated(self, error: Exception) -> Exception:
        """Return the error to raise for one of the client."""
        if not isinstance(error, ChangelogError):
            return error
        if isinstance(error, ChangelogFenced):
            return SinkError(
                f"{self._to!r}: another replication of this topic has started after this one, and goes on in its place"
            )
        return SinkError(f"{self._to!r}: {error}")

    def close(self) -> None:
        """See `SinkCopy`."""
        self._writer.close()

    def _create_or_check_topic(self) -> int:
        """Create the topic, or check that it is compacted. Returns the number of its partitions."""
        to, cluster = self._to, self._cluster
        there = partitions(cluster, to.topic)
        if not there:
            make_or_check(cluster, to.topic, to.partitions, to.replication_factor, {_COMPACT: "compact"}, {})
            return to.partitions
        policy = cluster.topic_settings(to.topic).get(_COMPACT)
        if policy != "compact":
            raise SinkError(
                f"{to!r}: the topic has {_COMPACT}={policy}, which removes rows that the table still has; set it with "
                f"kafka-configs --alter --topic {to.topic} --add-config {_COMPACT}=compact, or give another topic"
            )
        return len(there)

    def _use(self, rows: ReplicatedRows) -> None:
        """Make the encoders of rows, and the digests of the formats and columns of keys and values."""
        if self._rows is not rows:
            self._key, key_shape = self._encoder(rows, is_key=True)
            self._value, value_shape = self._encoder(rows, is_key=False)
            self._shapes = (key_shape, value_shape) if rows.are_types_known else ("", "")
            self._rows = rows

    def _records(self, entries: Iterable[Entry]) -> Iterator[tuple[bytes, bytes]]:
        assert self._rows is not None
        names = self._rows.key
        for row in self._rows.rows(entries):
            key = self._encoded(self._key, {name: row[name] for name in names})
            yield key, self._encoded(self._value, row)

    def _encoder(self, rows: ReplicatedRows, *, is_key: bool) -> tuple[Encode, str]:
        """Return an encoder, and the digest of its format and columns."""
        format_ = self._to.key if is_key else self._to.value
        if isinstance(format_, Json):
            columns = {name: str(type_) for name, type_ in rows.columns.items() if not is_key or name in rows.key}
            results = "" if is_key else rows.results
            return as_json, xxh3_64_hexdigest(f"json {json.dumps(sorted(columns.items()))}{results}".encode())
        schema = json.loads(format_.schema) if format_.schema is not None else None
        if schema is None:
            fields = [field for field in rows.schema() if not is_key or field.name in rows.key]
            name = re.sub(r"^(?=\d)|[^A-Za-z0-9_]", "_", f"{self._table}_{'key' if is_key else 'value'}")
            schema = avro_record(fields, name, f"table {self._table!r}", rows.key)
        else:
            self._check_schema(schema, rows, is_key=is_key)
        written = json.dumps(schema)
        encode = encoder(Avro(written, registry=format_.registry), self._to.topic, is_key=is_key)
        return encode, xxh3_64_hexdigest(f"avro {written} {format_.registry is not None}".encode())

    def _check_schema(self, schema: Any, rows: ReplicatedRows, *, is_key: bool) -> None:
        """Check that a user's schema has all columns: without one of a key different rows would have the same key."""
        wanted = rows.key if is_key else tuple(rows.columns)
        fields = [field["name"] for field in schema.get("fields", ())] if isinstance(schema, dict) else []
        missing = [name for name in wanted if name not in fields]
        if missing:
            raise DefinitionError(
                f"UpsertTopic: {'key' if is_key else 'value'}=Avro(...) has no field {missing[0]!r}, a column of the "
                f"table; give a record with the fields {', '.join(wanted)}, or leave schema= out"
            )

    def _encoded(self, encode: Encode, row: Row) -> bytes:
        try:
            return encode(row)
        except KeyedError:
            raise
        except Exception as error:
            raise SinkError(
                f"{self._to!r}: the row {row!r:.200} does not have the format: {type(error).__name__}: {error}"
            ) from error

    def _transaction(self, records: Iterator[tuple[bytes, bytes | None]], token: str, batch: int) -> None:
        assert self._partitions is not None
        self._commit(records, _Mark(self._table, token, *self._shapes, self._partitions), batch)

    def _commit(self, records: Any, mark: _Mark, batch: int) -> None:
        headers: Headers = [(_TABLE, self._table.encode()), (_BATCH, str(batch).encode())]
        # The offset of the group only shows the batch; the token decides.
        number = max(batch + 1, 0)
        self._writer.write(records, Mark(number, msgspec.json.encode(mark).decode()), headers)
        self._mark = mark

    def _read(self) -> dict[bytes, int]:
        """Return the digests of the values in the topic by key.

        Raises:
            SinkError: It has records of another table, or that keyed has not written.
        """
        found: dict[bytes, int] = {}
        consumer = self._cluster.consumer()
        assert self._partitions is not None
        try:
            for number in range(self._partitions):
                partition = Partition(self._cluster, self._to.topic, number)
                low, high = partition.offsets(consumer)
                for message in (each for part in partition.read(consumer, low) for each in part) if low < high else ():
                    key, value = message.key(), message.value()
                    owner = dict(message.headers() or ()).get(_TABLE)
                    self._check_owner(owner.decode(errors="replace") if isinstance(owner, bytes) else None)
                    assert isinstance(key, bytes)
                    if value is None:
                        found.pop(key, None)
                    else:
                        found[key] = xxh3_64_intdigest(value)
        finally:
            consumer.close()
        return found

    def _check_owner(self, table: str | None) -> None:
        if table != self._table:
            whose = "records that keyed has not written" if table is None else f"the table {table!r}"
            raise SinkError(f"{self._to!r}: the topic has {whose}, and not {self._table!r}; give another topic")
