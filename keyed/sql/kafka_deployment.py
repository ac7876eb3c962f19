"""Kafka topics of a deployed script: which ones are read and written, in which formats, and how they are created."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any, Literal

import attrs
import pyarrow as pa

from keyed.base.arguments import Duration, Shown, milliseconds_of, shown, text
from keyed.errors import ChangelogError, DefinitionError, SourceError
from keyed.formats.declared_formats import Registry, check_registry, shown_registry
from keyed.joins.matching import last_rows
from keyed.kafka.client import declared_cluster
from keyed.kafka.kafka_source import KafkaSource
from keyed.sql.catalog import CHANGE, SqlSource
from keyed.sql.definitions import Definitions, WrittenQuery
from keyed.sql.name_scope import BOUNDS
from keyed.sql.sql_operators import MOMENT
from keyed.topics import KafkaSink
from keyed.vectorized import TIMESTAMP_COLUMN

#: The columns of records as bytes.
_RECORD = "key binary, value binary, time bigint"


@attrs.frozen
class Kafka(Shown):
    """The Kafka cluster of a deployed script: it reads and writes the topics that its statements name.

    It needs ``keyed-streams[kafka]``, and for Avro and Protocol Buffers ``keyed-streams[registry]``.

    Args:
        bootstrap: Addresses of brokers, ``host:port``, separated by commas.
        registry: Address of a schema registry, or a dict of its settings, for the formats ``AVRO``, ``PROTOBUF`` and
            ``JSON_SR``.
        bounded: End the script at the offsets at which its topics ended when it started.
        batch_interval: A batch ends when its first record has waited this long, or with ``rows_per_batch`` records:
            `int` milliseconds or `timedelta`.
        settings: Settings of the client, which is librdkafka, such as ``{"security.protocol": "SASL_SSL"}``.
        timeout: Time for which an operation waits for a broker: `int` milliseconds or `timedelta`.
        transactional_id: Prefix of the ids of transactions, which continue with topic and query. A script that is
            deployed twice over the same topics needs two.

    Raises:
        DefinitionError: A parameter is out of its range, or a setting is keyed's own.
    """

    bootstrap: str
    registry: Registry | None = attrs.field(default=None, kw_only=True, repr=shown_registry, validator=check_registry)
    bounded: bool = attrs.field(default=False, kw_only=True)
    batch_interval: Duration = attrs.field(default=1000, kw_only=True)
    settings: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True, repr=False)
    timeout: Duration = attrs.field(default=60_000, kw_only=True)
    transactional_id: str = attrs.field(default="keyed-sql", kw_only=True)

    def __attrs_post_init__(self) -> None:
        text(self.transactional_id, "Kafka: transactional_id", "text that is not empty")
        if not isinstance(self.bounded, bool):
            raise DefinitionError(f"Kafka: bounded={shown(self.bounded)} must be True or False")
        milliseconds_of(self.batch_interval, "Kafka(batch_interval)", least=1)
        declared_cluster("Kafka", self.bootstrap, self.settings, self.timeout)


class Deployment:
    """The topics of a script on a cluster.

    Args:
        definitions: The checked script.
        kafka: The cluster.
        bound: Streams and tables whose rows are given otherwise: as rows, files or lists.

    Attributes:
        sources: The streams and tables that are read from topics.
        written: The queries whose output is written to a topic.

    Raises:
        DefinitionError: A stream or table has no topic, or one that cannot be read or written.
    """

    def __init__(self, definitions: Definitions, kafka: Kafka, bound: Collection[str]) -> None:
        self._kafka = kafka
        self._cluster = declared_cluster("Kafka", kafka.bootstrap, kafka.settings, kafka.timeout)
        self.written = [query for query in definitions.queries if query.target.topic_options.is_named]
        self.sources: list[SqlSource] = []
        #: The topics, with the end of them at which a new script begins.
        self._reads: dict[str, Literal["earliest", "latest"]] = {}
        inner = {query.target.topic for query in definitions.queries}
        latest = definitions.begins_at_end
        for source in definitions.read:
            if source.topic in inner:
                if not source.is_query:
                    raise DefinitionError(
                        f"{source.name} is read by a query, and another query writes its topic {source.topic!r}: its "
                        "records would come twice. Write to another topic, or create it by CREATE STREAM ... AS SELECT "
                        "and insert into that"
                    )
            elif source.name not in bound:
                if not source.topic_options.is_named:
                    raise DefinitionError(
                        f"{source.name} has no rows: name its topic, WITH (KAFKA_TOPIC = '...'), or give its rows "
                        f"(streams={{{source.name!r}: ...}}, or --input {source.name}=FILE)"
                    )
                self.sources.append(source)
                # The rows of a table are its records from the first on.
                is_late = latest and not source.is_table and self._reads.get(source.topic) != "earliest"
                self._reads[source.topic] = "latest" if is_late else "earliest"
        for name in definitions.inserts:
            if definitions.named(name).topic_options.is_named:
                raise DefinitionError(
                    f"INSERT INTO {name} ... VALUES: a deployed script does not insert rows into a Kafka topic; "
                    "send them by a producer"
                )
        for source in (*self.sources, *(query.target for query in self.written)):
            for part in source.parts:
                part.check(kafka.registry)

    def prepare(self) -> None:
        """Create the topics that are missing, and check the others.

        Raises:
            SourceError: A topic is missing and the script does not create it, or no broker answers.
            DefinitionError: A topic has another number of partitions than its statement.
        """
        counts: dict[str, int] = {}
        try:
            for source in self.sources:
                counts[source.topic] = self._prepared(source, source.topic_options.partitions)
            for query in self.written:
                # What is given otherwise may be a topic too: a DataFrame of it.
                named = [each.topic for each in query.plan.relation.sources if each.topic_options.is_named]
                read = [counts.get(topic) or len(self._cluster.partitions(topic)) or 1 for topic in named]
                count = query.target.topic_options.partitions or max(read, default=1)
                counts[query.target.topic] = self._prepared(query.target, count)
        except ChangelogError as error:
            raise SourceError(f"Kafka at {self._cluster.bootstrap}: {error}") from error

    def _prepared(self, source: SqlSource, count: int | None) -> int:
        options, topic = source.topic_options, source.topic
        present = len(self._cluster.partitions(topic))
        if not present:
            if count is None:
                raise SourceError(
                    f"{source.name}: Kafka at {self._kafka.bootstrap} has no topic {topic!r}; create it, or let the "
                    "script do so: WITH (PARTITIONS = ...)"
                )
            kind = "compact" if source.window is None else "compact,delete"
            policy = options.cleanup_policy or (kind if source.is_table else None)
            optional = {"cleanup.policy": policy, "retention.ms": options.retention_ms}
            settings = {name: str(each) for name, each in optional.items() if each is not None}
            self._cluster.create_topic(topic, count, options.replicas, settings)
            return count
        if options.partitions not in (None, present):
            raise DefinitionError(
                f"{source.name}: PARTITIONS={options.partitions}, and the topic {topic!r} has {present}; leave the "
                "option out, or name another topic"
            )
        return present

    def records(self) -> KafkaSource:
        """Return the source of the topics' records."""
        kafka = self._kafka
        return KafkaSource(
            [*self._reads],
            bootstrap=kafka.bootstrap,
            start=self._reads,
            bounded=kafka.bounded,
            batch_interval=kafka.batch_interval,
            settings=kafka.settings,
            timeout=kafka.timeout,
        )

    def frames(self, spark: Any) -> dict[str, Any]:
        """Return the topics as streaming DataFrames of Spark's Kafka source, by the names of their streams and tables.

        Args:
            spark: The session.

        Raises:
            DefinitionError: Spark has no Kafka source, or there are settings of this process's client.
        """
        if self._kafka.settings and self.sources:
            raise DefinitionError(
                f"Kafka: settings={sorted(self._kafka.settings)} are of this process's client, and "
                f"{self.sources[0].name} is read by Spark's; give its DataFrame in streams=, with the options of "
                "Spark's Kafka source"
            )
        frames = {}
        for source in self.sources:
            reader = spark.readStream.format("kafka").option("subscribe", source.topic)
            reader = reader.option("kafka.bootstrap.servers", self._kafka.bootstrap)
            reader = reader.option("startingOffsets", self._reads[source.topic])
            try:
                frames[source.name] = reader.option("includeHeaders", bool(source.headers)).load()
            except Exception as error:
                if "kafka" not in str(error).lower():
                    raise
                raise DefinitionError(
                    f"{source.name}: this Spark has no Kafka source; name its package before the session starts, such "
                    "as in PYSPARK_SUBMIT_ARGS='--packages org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION "
                    "pyspark-shell'"
                ) from error
        return frames

    def to_topic(self, query: WrittenQuery, output: Any) -> Any:
        """Return an output with the sink of its topic; ``None`` if it is not written to one.

        Raises:
            SinkError: The schema registry is not reached, or refuses a schema.
        """
        target, kafka = query.target, self._kafka
        if not target.topic_options.is_named:
            return None
        records = Encoded(target, kafka.registry)
        _ = records.writers
        sink = KafkaSink(
            target.topic,
            bootstrap=kafka.bootstrap,
            encode=lambda record: (record.key, record.value, record.time),
            transactional_id=f"{kafka.transactional_id}-{target.topic}-{query.name}",
            # Kafka's own clients choose partitions so. Equal keys of all writers are in one partition.
            settings={"partitioner": "murmur2_random", **kafka.settings},
            timeout=kafka.timeout,
        )
        return output.to(sink, records, _RECORD)


@attrs.frozen(eq=False, repr=False)
class Encoded:
    """Makes the changes of a batch records: of a table the last one of each key.

    Attributes:
        target: What they are written to.
        registry: The schema registry.
    """

    target: SqlSource
    registry: Registry | None

    @cached_property
    def writers(self) -> list[Any]:
        """The functions that write keys and values, made in each process."""
        return [part.writer(self.registry) for part in self.target.parts]

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the records, as bytes."""
        table = last_changes(self.target, table)
        count = table.num_rows
        parts = []
        for write, columns in zip(self.writers, (self.target.keys, self.target.stored), strict=True):
            cells = [table.column(name) for name, _ in columns]
            parts.append(write(cells) if cells else [write([pa.nulls(count)])[0]] * count if count else [])
        keys, values = parts
        if len(self.target.keys) == 1:
            nulls = table.column(self.target.keys[0][0]).is_null().to_pylist()
            keys = [None if is_null else key for key, is_null in zip(keys, nulls, strict=True)]
        if "WINDOWSTART" in table.column_names:
            bounds = [table.column(name).to_pylist() for name in ("WINDOWEND", "WINDOWSTART")]
            ends = bounds if self.target.window == "SESSION" else bounds[1:]
            packed = [b"".join(number.to_bytes(8, signed=True) for number in each) for each in zip(*ends, strict=True)]
            keys = [(key or b"") + end for key, end in zip(keys, packed, strict=True)]
        if CHANGE in table.column_names:
            changes: list[Any] = table.column(CHANGE).to_pylist()
            values = [None if change < 0 else value for value, change in zip(values, changes, strict=True)]
        records: dict[str, Any] = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        records["time"] = table.column(MOMENT)
        if TIMESTAMP_COLUMN in table.column_names:
            records[TIMESTAMP_COLUMN] = table.column(TIMESTAMP_COLUMN)
        return pa.table(records)


def last_changes(target: SqlSource, table: pa.Table) -> pa.Table:
    """Return the last change of each key and window of a batch, in their order; all rows of a stream."""
    if CHANGE not in table.column_names or not table.num_rows:
        return table
    names = [name for name in (*dict(target.keys), *BOUNDS) if name in table.column_names]
    return table.take(last_rows(table, names))
