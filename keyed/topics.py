"""Formats of the values of Kafka records, with or without a schema registry, and topics that are written.

For writers of jobs and readers of state: `keyed.KafkaSource` and `KafkaSink` take a format as ``value=``, `UpsertTopic`
takes one for keys too. With ``registry=`` values have the wire format of Confluent's Schema Registry, read and written
by confluent-kafka's serializers (``keyed-streams[registry]``).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from keyed.destinations.kafka import KafkaSink
from keyed.destinations.upsert_topic import UpsertTopic
from keyed.formats.declared_formats import Avro, Format, Json, Protobuf

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
