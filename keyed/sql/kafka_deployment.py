"""Kafka topics of a deployed script: which ones are read and written, in which formats, and how they are created."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import attrs

from keyed.arguments import text
from keyed.durations import Duration, milliseconds_of
from keyed.errors import DefinitionError, SourceError
from keyed.formats.record_formats import WireFormats
from keyed.kafka_topics import Topics, TopicsReader
from keyed.shown import Shown, shown
from keyed.sql.catalog import SqlSource
from keyed.sql.definitions import Definitions, WrittenQuery
from keyed.sql.packed_changes import unpack
from keyed.sql.row_changes import KEY, TIME, VALUE, WINDOW, Change
from keyed.sql.script_source import Extractor
from keyed.topics import Encode, KafkaSink, Registry, check_registry, shown_registry

_RESET = "auto.offset.reset"


@attrs.frozen
class Kafka(Shown):
    """The Kafka cluster of a deployed script: it reads and writes the topics that its statements name.

    Nothing of it is part of the script. It needs the extra ``keyed[kafka]``, and ``keyed[registry]`` for Avro and
    Protocol Buffers.

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
    registry: Registry | None = attrs.field(default=None, kw_only=True, repr=shown_registry)
    bounded: bool = attrs.field(default=False, kw_only=True)
    batch_interval: Duration = attrs.field(default=1000, kw_only=True)
    settings: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True, repr=False)
    timeout: Duration = attrs.field(default=60_000, kw_only=True)
    transactional_id: str = attrs.field(default="keyed-sql", kw_only=True)

    def __attrs_post_init__(self) -> None:
        text(self.bootstrap, "Kafka: bootstrap", "text that is not empty")
        text(self.transactional_id, "Kafka: transactional_id", "text that is not empty")
        check_registry("Kafka", self.registry)
        if not isinstance(self.bounded, bool):
            raise DefinitionError(f"Kafka: bounded={shown(self.bounded)} must be True or False")
        milliseconds_of(self.batch_interval, "Kafka(batch_interval)", least=1)
        self.topics()

    def topics(self) -> Topics:
        """Return the topics of the cluster."""
        return Topics(self.bootstrap, self.settings, milliseconds_of(self.timeout, "Kafka(timeout)", least=1) / 1000)


class Deployment:
    """The topics of a script on a cluster.

    Args:
        found: The checked script.
        kafka: The cluster.
        given: Topics whose records are given otherwise: as rows, files or lists.

    Attributes:
        formats: The formats of the topics.
        reads: The topics that are read; true for those that a new script begins at their end.

    Raises:
        DefinitionError: A stream or table has no topic, or one that cannot be read or written.
    """

    def __init__(self, found: Definitions, kafka: Kafka, given: Collection[str]) -> None:
        self._found = found
        self._kafka = kafka
        self.formats = WireFormats(kafka.registry)
        #: The queries whose output is written, with the output.
        self._written = [
            (query, found.sources[query.target])
            for query in found.queries
            if found.sources[query.target].topic_options.is_named
        ]
        self.reads: dict[str, bool] = {}
        self._sources: list[SqlSource] = []
        inner = {found.sources[query.target].topic for query in found.queries}
        latest = self._begins_at_end()
        # Of records with equal timestamps, those of tables are read first.
        for name in sorted(found.read, key=lambda name: (not found.sources[name].is_table, name)):
            source = found.sources[name]
            if source.topic in inner:
                self._check_loop(source)
            elif source.topic not in given:
                if not source.topic_options.is_named:
                    raise DefinitionError(
                        f"{name} has no rows: name its topic, WITH (KAFKA_TOPIC = '...'), or give its rows "
                        f"(streams={{{name!r}: ...}}, or --input {name}=FILE)"
                    )
                self._sources.append(source)
                # The rows of a table are its records from the first on.
                self.reads[source.topic] = self.reads.get(source.topic, True) and latest and not source.is_table
        self._check_inserts()
        for source in (*self._sources, *(target for _, target in self._written)):
            self.formats.check(source)

    def _begins_at_end(self) -> bool:
        reset = self._found.properties.get(_RESET, "earliest").lower()
        if reset not in ("earliest", "latest"):
            raise DefinitionError(f"SET {_RESET!r}={reset!r} must be 'earliest' or 'latest'")
        return reset == "latest"

    def _check_loop(self, source: SqlSource) -> None:
        if not source.is_query:
            raise DefinitionError(
                f"{source.name} is read by a query, and another query writes its topic {source.topic!r}: its records "
                "would come twice. Write to another topic, or create it by CREATE STREAM ... AS SELECT and insert into "
                "that"
            )

    def _check_inserts(self) -> None:
        for each in self._found.inserts:
            if self._found.sources[each.target].topic_options.is_named:
                raise DefinitionError(
                    f"INSERT INTO {each.target} ... VALUES: a deployed script does not insert rows into a Kafka topic; "
                    "send them by a producer"
                )

    @property
    def writes(self) -> bool:
        """True if an output is written to a topic."""
        return bool(self._written)

    def prepare(self) -> None:
        """Create the topics that are missing, and check the others.

        Raises:
            SourceError: A topic is missing and the script does not create it, or no broker answers.
            DefinitionError: A topic has another number of partitions than its statement.
        """
        topics = self._kafka.topics()
        counts: dict[str, int] = {}
        for source in self._sources:
            counts[source.topic] = self._prepared(topics, source, source.topic_options.partitions)
        for query, target in self._written:
            # What is given otherwise may be a topic too: a DataFrame of it.
            read = [counts.get(each) or topics.count(each) or 1 for each in self._topics_of(query)]
            count = target.topic_options.partitions or max(read, default=1)
            counts[target.topic] = self._prepared(topics, target, count)

    def _topics_of(self, query: WrittenQuery) -> list[str]:
        return [self._found.sources[name].topic for name in query.read]

    def _prepared(self, topics: Topics, source: SqlSource, count: int | None) -> int:
        options, topic = source.topic_options, source.topic
        there = topics.count(topic)
        if not there:
            if count is None:
                raise SourceError(
                    f"{source.name}: Kafka at {self._kafka.bootstrap} has no topic {topic!r}; create it, or let the "
                    "script do so: WITH (PARTITIONS = ...)"
                )
            settings = {}
            policy = options.cleanup_policy or (
                source.is_table and ("compact" if source.window is None else "compact,delete")
            )
            if policy:
                settings["cleanup.policy"] = policy
            if options.retention_ms is not None:
                settings["retention.ms"] = str(options.retention_ms)
            topics.create(topic, count, options.replicas, settings)
            return count
        if options.partitions not in (None, there):
            raise DefinitionError(
                f"{source.name}: PARTITIONS={options.partitions}, and the topic {topic!r} has {there}; leave the "
                "option out, or name another topic"
            )
        return there

    def reader(self, extractors: Mapping[str, Extractor]) -> TopicsReader | None:
        """Return the reader of the topics, ``None`` if none is read.

        Args:
            extractors: Functions that return the timestamp of a record, by topic.
        """

        def time_of(message: Any) -> int:
            extract = extractors.get(message.topic())
            _, time = message.timestamp()
            found = time if extract is None else extract(message.key(), message.value(), time)
            return -1 if found is None else found

        if not self.reads:
            return None
        return self._kafka.topics().reader(self.reads, time_of, bounded=self._kafka.bounded)

    def frames(self, spark: Any) -> dict[str, Any]:
        """Return the topics as streaming DataFrames of Spark's Kafka source, by the names of their streams and tables.

        Args:
            spark: The session.

        Raises:
            DefinitionError: Spark has no Kafka source, or there are settings of this process's client.
        """
        if self._kafka.settings and self._sources:
            raise DefinitionError(
                f"Kafka: settings={sorted(self._kafka.settings)} are of this process's client, and "
                f"{self._sources[0].name} is read by Spark's; give its DataFrame in streams=, with the options of "
                "Spark's Kafka source"
            )
        found = {}
        for source in self._sources:
            reader = spark.readStream.format("kafka").option("subscribe", source.topic)
            reader = reader.option("kafka.bootstrap.servers", self._kafka.bootstrap)
            reader = reader.option("startingOffsets", "latest" if self.reads[source.topic] else "earliest")
            try:
                found[source.name] = reader.option("includeHeaders", bool(source.headers)).load()
            except Exception as error:
                if "kafka" not in str(error).lower():
                    raise
                raise DefinitionError(
                    f"{source.name}: this Spark has no Kafka source; name its package before the session starts, such "
                    "as in PYSPARK_SUBMIT_ARGS='--packages org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION "
                    "pyspark-shell'"
                ) from error
        return found

    @property
    def interval_seconds(self) -> float:
        """Time after which a batch ends."""
        return milliseconds_of(self._kafka.batch_interval, "Kafka(batch_interval)") / 1000

    def sink(self, query: WrittenQuery, *, is_packed: bool) -> KafkaSink | None:
        """Return the sink of a query's output, ``None`` if it is not written to a topic.

        Args:
            query: The query.
            is_packed: Its changes come as rows of `packed_changes`.

        Raises:
            SinkError: The schema registry is not reached, or refuses a schema.
        """
        target = self._found.sources[query.target]
        if not target.topic_options.is_named:
            return None
        kafka = self._kafka
        return KafkaSink(
            target.topic,
            bootstrap=kafka.bootstrap,
            encode=self._encode(target, is_packed=is_packed),
            transactional_id=f"{kafka.transactional_id}-{target.topic}-{query.name}",
            # Kafka's own clients choose partitions so. Equal keys of all writers are in one partition.
            settings={"partitioner": "murmur2_random", **kafka.settings},
            timeout=kafka.timeout,
        )

    def _encode(self, target: SqlSource, *, is_packed: bool) -> Encode:
        encode = self.formats.encoder(target)

        def record(row: Any) -> tuple[bytes | None, bytes | None, int | None]:
            change: Change = unpack(row) if is_packed else row
            return (*encode(change[KEY], change[VALUE], change[WINDOW]), change[TIME])

        return record
