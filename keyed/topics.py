"""Formats of the values of Kafka records, with or without a schema registry, and topics that are written.

For writers of jobs and readers of state: `keyed.KafkaSource` and `KafkaSink` take a format as ``value=``, `UpsertTopic`
takes one for keys too. With ``registry=`` values have the wire format of Confluent's Schema Registry, read and written
by confluent-kafka's serializers (``keyed-streams[registry]``).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from keyed.base.arguments import text
from keyed.base.durations import Duration
from keyed.base.shown import Shown, shown
from keyed.destinations.kafka import KafkaSink
from keyed.errors import DefinitionError
from keyed.formats.declared_formats import Avro, Format, Json, Protobuf
from keyed.kafka.client import declared_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Avro", "Json", "KafkaSink", "Protobuf", "UpsertTopic", "decode_values"]


def decode_values(frame: DataFrame, value: Format, schema: Any) -> DataFrame:
    """Return a DataFrame of Spark's Kafka source with decoded values, for `keyed.stream`.

    The workers decode them. The result has the columns of ``schema``, and

    - ``record``: a struct of the record's ``key``, ``topic``, ``partition``, ``offset`` and ``timestamp``, and of its
      ``value`` if that could not be decoded;
    - ``reason``: null, or the reason why the value could not be decoded. Then the columns of ``schema`` are null: make
      one of them the key, so that the row is a bad row of the stream. A record without a value (a tombstone) has a
      reason too.

    Args:
        frame: A streaming or batch DataFrame of ``format("kafka")``.
        value: Format of the values. The workers need its packages, and reach its registry.
        schema: Columns of the values to keep, as ``output=`` of a stage names them. A member that a value lacks is
            null.

    Raises:
        DefinitionError: A parameter is wrong, or the DataFrame is not one of a Kafka source.
        ExtraNotInstalled: The format needs a package that is not installed.
    """
    frames = importlib.import_module("keyed.runtimes.spark.kafka_frames")
    decoded: DataFrame = frames.decoded_frame(frame, value, schema)
    return decoded


def _plain_format(format: Any, attribute: Any, value: Any) -> None:
    """Check the format of a key or value of an `UpsertTopic`."""
    del format
    if not isinstance(value, Json | Avro) or (isinstance(value, Json) and value.registry is not None):
        raise DefinitionError(
            f"UpsertTopic: {attribute.name}={value!r} must be Json() or Avro(...); a Json with a registry and Protobuf "
            "are not supported here"
        )


@attrs.frozen(eq=False)
class UpsertTopic(Shown):
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
