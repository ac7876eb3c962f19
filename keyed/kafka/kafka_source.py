"""`KafkaSource`: a topic as a source of the local runtime, read from offsets that the checkpoint keeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from keyed.base.arguments import text
from keyed.base.durations import Duration, milliseconds_of
from keyed.base.shown import shown
from keyed.base.sources import PAUSE, BadElement
from keyed.errors import CheckpointError, DefinitionError
from keyed.formats.declared_formats import Format
from keyed.formats.sql_types import BadValue
from keyed.formats.topic_values import NO_VALUE, check_format, decoder
from keyed.kafka.client import Cluster, check_client
from keyed.kafka.topics_reader import Place, TopicsReader
from keyed.rows import Row, row_class

#: Seconds for which a source waits for records before it yields `PAUSE`; also the time that a query takes to stop.
_WAIT = 0.1
#: Seconds after which a batch ends if there are always further records.
_LONGEST = 1.0
_RECORD = row_class(("key", "value", "topic", "partition", "offset", "timestamp", "headers"))
_BAD = row_class(("key", "value", "topic", "partition", "offset", "timestamp", "headers", "reason"))


class KafkaSource:
    """The records of a topic, each exactly once: a checkpoint keeps the offsets, and none are committed in Kafka.

    An element is a `Row` with the columns of Spark's Kafka source: ``key`` and ``value`` (bytes or None), ``topic``,
    ``partition``, ``offset``, ``timestamp`` (milliseconds) and ``headers`` (a list of name and value); or the value
    decoded by ``value``; or the result of ``decode``. Only records of committed transactions are read. A value that
    cannot be decoded, or is missing, is a bad row (``on_bad_row``), with the record's columns and ``reason``.

    Args:
        topic: The topic. Its partitions are determined when the query starts.
        bootstrap: Addresses of brokers, ``host:port``, separated by commas.
        value: A `keyed.topics.Json`, `keyed.topics.Avro` or `keyed.topics.Protobuf`.
        decode: Converts a record to an element. With ``value``, the record has the decoded value, None for a
            tombstone.
        start: A new query starts at the ``"earliest"`` record, or after the ``"latest"``. A partition added before a
            later run is read from its start.
        bounded: End at the offsets at which the topic ended when the query started.
        batch_interval: A batch ends when its first record has waited this long, or with ``rows_per_batch`` records. By
            default it ends when the topic has no more records, after a second at the latest; it lasts a second if each
            batch makes a file or a version of a table.
        settings: Settings of librdkafka, such as ``{"security.protocol": "SASL_SSL"}``.
        timeout: Time for which the start waits for a broker.

    Raises:
        DefinitionError: A parameter is out of its range, or a setting is keyed's own.
        ExtraNotInstalled: The format needs a package that is not installed.
    """

    def __init__(
        self,
        topic: str,
        *,
        bootstrap: str,
        value: Format | None = None,
        decode: Callable[[Row], Any] | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        bounded: bool = False,
        batch_interval: Duration | None = None,
        settings: Mapping[str, Any] | None = None,
        timeout: Duration = 60_000,
    ) -> None:
        text(topic, "KafkaSource: topic", "text that is not empty")
        text(bootstrap, "KafkaSource: bootstrap", "text that is not empty")
        if decode is not None and not callable(decode):
            raise DefinitionError(f"KafkaSource: decode={shown(decode)} must be a function of a record")
        if start not in ("earliest", "latest"):
            raise DefinitionError(f"KafkaSource: start={start!r} must be 'earliest' or 'latest'")
        if not isinstance(bounded, bool):
            raise DefinitionError(f"KafkaSource: bounded={shown(bounded)} must be True or False")
        settings = {} if settings is None else settings
        check_client(bootstrap, settings)
        if value is not None:
            check_format(value)
        self._value = value
        self.topic = topic
        self._decode = decode
        self._start = start
        self._bounded = bounded
        self._interval: float | None = None
        if batch_interval is not None:
            self._interval = milliseconds_of(batch_interval, "KafkaSource(batch_interval)", least=1) / 1000
        #: Seconds for which it waits for the first record of a batch, and from then on for others.
        self._waits = _WAIT, _LONGEST if self._interval is None else self._interval
        self._seconds = milliseconds_of(timeout, "KafkaSource(timeout)", least=1) / 1000
        self._cluster = Cluster(bootstrap, dict(settings), self._seconds)
        self._offsets: dict[Place, int] = {}
        self._sought = False
        self._closed = False

    def __repr__(self) -> str:
        return f"KafkaSource({self.topic!r}, bootstrap={self._cluster.bootstrap!r})"

    def position(self) -> dict[str, Any]:
        """Return the next offset of each partition."""
        return {"topic": self.topic, "offsets": {str(partition): at for (_, partition), at in self._offsets.items()}}

    def seek(self, position: Any) -> None:
        """Resume from offsets.

        Raises:
            CheckpointError: They belong to another topic.
        """
        self._check_topic(position)
        self._offsets = self._places(position)
        self._sought = True

    def between(self, before: Any, after: Any) -> Iterator[Any]:
        """Return the records between two positions that `position` gave, for replay.

        Args:
            before: First position; ``None`` for the start of the topic.
            after: Last position.

        Raises:
            CheckpointError: They belong to another topic.
            SourceError: The records are gone, or cannot be read.
        """
        self._check_topic(after)
        self._offsets, self._sought = {}, False
        if before is not None:
            self.seek(before)
        return (element for element in self._records(self._places(after)) if element is not PAUSE)

    def set_waits(self, first: float, more: float) -> None:
        """Set how long a batch waits for records. See `keyed.SeekableSource`."""
        self._waits = min(first, _WAIT), more if self._interval is None else self._interval

    def close(self) -> None:
        """End the iteration within a moment. It may be called from another thread."""
        self._closed = True

    def _places(self, position: Any) -> dict[Place, int]:
        return {(self.topic, int(partition)): at for partition, at in position["offsets"].items()}

    def _check_topic(self, position: Any) -> None:
        if not isinstance(position, dict) or position.get("topic") != self.topic:
            raise CheckpointError(
                f"the checkpoint has the position {position!r}, and the source is the topic {self.topic!r}; give the "
                "source that it has read, or start from a new checkpoint"
            )

    def __iter__(self) -> Iterator[Any]:
        """Return the records from the position of `seek` on, or from the start; `keyed.PAUSE` ends a batch."""
        return self._records(None)

    def _records(self, given_ends: dict[Place, int] | None) -> Iterator[Any]:
        """Read up to the given offsets, or up to the end of a bounded source."""
        self._closed = False
        # A run that does not resume begins at the start, whatever an earlier run of this program has read.
        before, self._sought = dict(self._offsets) if self._sought else {}, False
        bounded = self._bounded or given_ends is not None
        reader = TopicsReader(self._cluster, {self.topic: self._start == "latest"}, bounded=bounded)
        self._offsets = reader.open(before, given_ends)
        make = self._maker()
        try:
            began: float | None = None
            while not self._closed and not reader.is_ended:
                wait, more = self._waits
                if began is not None:
                    wait = min(_WAIT, max(0.0, began + more - time.monotonic()))
                is_busy = reader.fetch(wait)
                for message in reader.in_turn():
                    began = began or time.monotonic()
                    yield make(_record(message))
                # Without a wait the batch ends when nothing more comes.
                if began is None or time.monotonic() >= began + (more or (_LONGEST if is_busy else 0.0)):
                    began = None
                    yield PAUSE
        finally:
            reader.close()

    def _maker(self) -> Callable[[Row], Any]:
        """Return the function from a record to its element."""
        decode = self._decode
        if self._value is None:
            return decode or (lambda record: record)
        values = decoder(self._value, self.topic)

        def make(record: Row) -> Any:
            value = record.value
            try:
                if value is not None:
                    value = values(value)
                elif decode is None:
                    raise BadValue(f"{NO_VALUE}; decode= gets such records too")
            except BadValue as error:
                place = f"topic {record.topic!r}, partition {record.partition}, offset {record.offset}"
                return BadElement(_BAD((*record, str(error))), f"its value cannot be read: {error}", place)
            if decode is None:
                return value
            return decode(_RECORD((record.key, value, *record[2:])))

        return make


def _record(message: Any) -> Row:
    _, timestamp = message.timestamp()
    return _RECORD(
        (
            message.key(),
            message.value(),
            message.topic(),
            message.partition(),
            message.offset(),
            timestamp,
            message.headers() or [],
        )
    )
