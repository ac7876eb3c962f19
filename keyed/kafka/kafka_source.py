"""`KafkaSource`: the records of topics, from offsets that a checkpoint keeps, for local jobs and scripts.

Fetched records wait until they are taken: round-robin by partition, so that none is read far ahead of another (a
consumer returns a megabyte of one partition and then of the next); by their timestamps; or those of one partition, for
a script, which merges them with other inputs. In each a partition without fetched records delays the others unless its
end was reached. It does so only once, and briefly, because its leader may be down.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import Any, Literal, TypeAlias

from keyed.base.arguments import Duration, milliseconds_of, shown, text
from keyed.base.sources import PAUSE, BadElement
from keyed.errors import ChangelogError, CheckpointError, DefinitionError, SourceError
from keyed.formats.declared_formats import Format
from keyed.formats.sql_types import BadValue
from keyed.formats.topic_values import NO_VALUE, check_format, decoder
from keyed.kafka.client import Partition, declared_cluster
from keyed.rows import Row, row_class

#: A topic and the number of a partition.
Place: TypeAlias = tuple[str, int]
_Start: TypeAlias = Literal["earliest", "latest"]
#: Seconds for which a source waits for records before it yields `PAUSE`; also the time that a query takes to stop.
WAIT = 0.1
#: Seconds after which a batch ends if there are always further records.
_LONGEST = 1.0
#: Records that a consumer returns at once.
_AT_ONCE = 1000
#: Seconds for which a silent partition delays the others, once; the bytes of other partitions' records held in the
#: meantime; and the bytes that an empty record takes.
_PATIENCE, _AHEAD, _MESSAGE = 1.0, 64 << 20, 256
#: Errors that the client retries by itself, or that concern only consumer groups.
_IGNORED = {"_TRANSPORT", "_ALL_BROKERS_DOWN", "GROUP_AUTHORIZATION_FAILED"}
_OUT_OF_RANGE = {"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"}
_RECORD = row_class(("key", "value", "topic", "partition", "offset", "timestamp", "headers"))
_BAD = row_class(("key", "value", "topic", "partition", "offset", "timestamp", "headers", "reason"))


def position_of(topics: Iterable[str], offsets: Mapping[Place, int]) -> dict[str, dict[str, int]]:
    """Return the position for the offsets of topics: by topic and partition, as Spark's Kafka source has it."""
    position: dict[str, dict[str, int]] = {topic: {} for topic in topics}
    for (topic, partition), at in offsets.items():
        position[topic][str(partition)] = at
    return position


def offsets_of(position: Mapping[str, Mapping[str, int]]) -> dict[Place, int]:
    """Return the offsets of a position."""
    return {(topic, int(partition)): at for topic, each in position.items() for partition, at in each.items()}


class KafkaSource:
    """The records of topics, each exactly once: a checkpoint keeps the offsets, and none are committed in Kafka.

    An element is a `Row` with the columns of Spark's Kafka source: ``key`` and ``value`` (bytes or None), ``topic``,
    ``partition``, ``offset``, ``timestamp`` (milliseconds) and ``headers`` (a list of name and value); or the value
    decoded by ``value``; or the result of ``decode``. Only records of committed transactions are read. A value that
    cannot be decoded, or is missing, is a bad row (``on_bad_row``), with the record's columns and ``reason``.

    Args:
        topic: A topic, or a list of them. Partitions are determined when the query starts.
        bootstrap: Addresses of brokers, ``host:port``, separated by commas.
        value: A `keyed.topics.Json`, `keyed.topics.Avro` or `keyed.topics.Protobuf`.
        decode: Converts a record to an element. With ``value``, the record has the decoded value, None for a
            tombstone.
        start: A new query starts at the ``"earliest"`` record, or after the ``"latest"``; a dict has one for each
            topic. A partition added before a later run is read from its start.
        order: Partitions are read in turn (``"arrival"``), or by ``"timestamp"``, as in Kafka Streams.
        bounded: End at the offsets at which the topics ended when the query started.
        batch_interval: A batch ends when its first record has waited this long, or with ``rows_per_batch`` records. By
            default it ends when there are no more records, after a second at the latest; it lasts a second if each
            batch makes a file or a version of a table.
        settings: Settings of librdkafka, such as ``{"security.protocol": "SASL_SSL"}``.
        timeout: Time for which the start waits for a broker.

    Raises:
        DefinitionError: A parameter is out of its range, or a setting is keyed's own.
        ExtraNotInstalled: The format needs a package that is not installed.
    """

    def __init__(
        self,
        topic: str | Sequence[str],
        *,
        bootstrap: str,
        value: Format | None = None,
        decode: Callable[[Row], Any] | None = None,
        start: _Start | Mapping[str, _Start] = "earliest",
        order: Literal["arrival", "timestamp"] = "arrival",
        bounded: bool = False,
        batch_interval: Duration | None = None,
        settings: Mapping[str, Any] | None = None,
        timeout: Duration = 60_000,
    ) -> None:
        self.topics = tuple(topic) if isinstance(topic, list | tuple) else (topic,)
        expected = "text that is not empty, or a list of different topics"
        names = {text(each, "KafkaSource: topic", expected) for each in self.topics}
        if not names or len(names) < len(self.topics):
            raise DefinitionError(f"KafkaSource: topic={shown(topic)} must be {expected}")
        if decode is not None and not callable(decode):
            raise DefinitionError(f"KafkaSource: decode={shown(decode)} must be a function of a record")
        starts = dict(start) if isinstance(start, Mapping) else dict.fromkeys(self.topics, start)
        if starts.keys() != names or not all(each in ("earliest", "latest") for each in starts.values()):
            raise DefinitionError(
                f"KafkaSource: start={shown(start)} must be 'earliest' or 'latest', or a dict of each topic to one of "
                "them"
            )
        if order not in ("arrival", "timestamp"):
            raise DefinitionError(f"KafkaSource: order={shown(order)} must be 'arrival' or 'timestamp'")
        if not isinstance(bounded, bool):
            raise DefinitionError(f"KafkaSource: bounded={shown(bounded)} must be True or False")
        self._cluster = declared_cluster("KafkaSource", bootstrap, {} if settings is None else settings, timeout)
        if value is not None:
            check_format(value)
        self._value = value
        self._decode = decode
        self._starts = starts
        self._by_time = order == "timestamp"
        self._bounded = bounded
        self._interval: float | None = None
        if batch_interval is not None:
            self._interval = milliseconds_of(batch_interval, "KafkaSource(batch_interval)", least=1) / 1000
        self.set_waits(WAIT, _LONGEST)
        self._offsets: dict[Place, int] = {}
        self._sought = False
        self._closed = False
        self._consumer: Any = None

    def __repr__(self) -> str:
        topic = self.topics[0] if len(self.topics) == 1 else [*self.topics]
        return f"KafkaSource({topic!r}, bootstrap={self._cluster.bootstrap!r})"

    def position(self) -> dict[str, Any]:
        """Return the next offset of each partition, by topic."""
        return position_of(self.topics, self._offsets)

    def seek(self, position: Any) -> None:
        """Resume from offsets.

        Raises:
            CheckpointError: They belong to other topics.
        """
        self._check_topics(position)
        self._offsets = offsets_of(position)
        self._sought = True

    def between(self, before: Any, after: Any) -> Iterator[Any]:
        """Return the records between two positions that `position` gave, for replay.

        Args:
            before: First position; ``None`` for the start of the topics.
            after: Last position.

        Raises:
            CheckpointError: They belong to other topics.
            SourceError: The records are gone, or cannot be read.
        """
        self._check_topics(after)
        self._offsets, self._sought = {}, False
        if before is not None:
            self.seek(before)
        return (element for element in self._elements(offsets_of(after)) if element is not PAUSE)

    def set_waits(self, first: float, more: float) -> None:
        """Set how long a batch waits for records. See `keyed.SeekableSource`."""
        #: Seconds for which it waits for the first record of a batch, and from then on for others.
        self._waits = min(first, WAIT), more if self._interval is None else self._interval

    def seconds_left(self, began: float | None) -> float:
        """Return how long a batch waits for further records, or for its first one if it has not begun."""
        first, more = self._waits
        return first if began is None else max(0.0, began + more - time.monotonic())

    def close(self) -> None:
        """End the iteration within a moment. It may be called from another thread."""
        self._closed = True

    def _check_topics(self, position: Any) -> None:
        if not isinstance(position, dict) or position.keys() != {*self.topics}:
            topics = ", ".join(map(repr, self.topics))
            raise CheckpointError(
                f"the checkpoint has the position {position!r}, and the source is the topic"
                f"{'s' * (len(self.topics) > 1)} {topics}; give the source that it has read, or start from a new "
                "checkpoint"
            )

    def __iter__(self) -> Iterator[Any]:
        """Return the records from the position of `seek` on, or from the start; `keyed.PAUSE` ends a batch."""
        return self._elements(None)

    def _elements(self, until: Mapping[Place, int] | None) -> Iterator[Any]:
        """Read up to the given offsets, or up to the end of a bounded source."""
        self._closed = False
        make = self._maker()
        try:
            self.open(until)
            began: float | None = None
            while not self._closed and not self.is_ended:
                is_busy = self.fetch(min(WAIT, self.seconds_left(began)))
                for message in self._in_order():
                    began = began or time.monotonic()
                    yield make(_record(message))
                # Without a wait the batch ends when nothing more comes.
                more = self._waits[1] or (_LONGEST if is_busy else 0.0)
                if began is None or time.monotonic() >= began + more:
                    began = None
                    yield PAUSE
        finally:
            self.disconnect()

    def _maker(self) -> Callable[[Row], Any]:
        """Return the function from a record to its element."""
        decode = self._decode
        if self._value is None:
            return decode or (lambda record: record)
        decoders = {topic: decoder(self._value, topic) for topic in self.topics}

        def make(record: Row) -> Any:
            value = record.value
            try:
                if value is not None:
                    value = decoders[record.topic](value)
                elif decode is None:
                    raise BadValue(f"{NO_VALUE}; decode= gets such records too")
            except BadValue as error:
                place = f"topic {record.topic!r}, partition {record.partition}, offset {record.offset}"
                return BadElement(_BAD((*record, str(error))), f"its value cannot be read: {error}", place)
            return value if decode is None else decode(_RECORD((record.key, value, *record[2:])))

        return make

    def open(self, until: Mapping[Place, int] | None = None) -> Mapping[Place, int]:
        """Connect, until `disconnect`, and return the offset of the next record of each partition.

        Args:
            until: Ends of partitions at which this run ends. Others end where they begin.

        Raises:
            SourceError: A topic is missing, records are gone, or no broker answers.
        """
        import confluent_kafka as ck

        # A run that does not resume begins at the start, whatever an earlier run of this program has read.
        before, self._sought = dict(self._offsets) if self._sought else {}, False
        self._offsets = dict(before)
        doing = f"Kafka at {self._cluster.bootstrap}"
        consumer: Any = self._cluster.consumer()
        self._consumer = consumer
        ends: dict[Place, int] = {}
        try:
            for topic in self.topics:
                metadata = consumer.list_topics(topic, timeout=self._cluster.timeout).topics[topic]
                if metadata.error is not None:
                    raise SourceError(
                        f"{doing} reports {metadata.error.name()} for topic {topic!r}: {metadata.error.str()}; name an "
                        "existing topic"
                    )
                for number in sorted(metadata.partitions):
                    place = topic, number
                    low, high = Partition(self._cluster, topic, number).offsets(consumer)
                    at = self._offsets.setdefault(place, low if before or self._starts[topic] == "earliest" else high)
                    if not low <= at <= high:
                        raise SourceError(self._describe_loss(place, f"partition {number} has offsets {low} to {high}"))
                    ends[place] = high if until is None else until.get(place, at)
            missing = self._offsets.keys() - ends.keys()
            if missing:
                raise SourceError(self._describe_loss(min(missing), "it does not exist anymore"))
            consumer.assign([ck.TopicPartition(*place, at) for place, at in self._offsets.items()])
        except (ck.KafkaException, ChangelogError) as error:
            raise SourceError(f"{doing} cannot be read: {error}") from error
        self._begin(ends, is_bounded=self._bounded or until is not None)
        return self._offsets

    def _begin(self, ends: Mapping[Place, int], *, is_bounded: bool) -> None:
        """Hold no records of the partitions that are assigned."""
        import confluent_kafka as ck

        self._ends, self._is_bounded = ends, is_bounded
        self._partitions = {place: ck.TopicPartition(*place) for place in self._offsets}
        self._waiting: dict[Place, deque[Any]] = {place: deque() for place in self._offsets}
        self._at_end = {place for place, at in self._offsets.items() if at >= ends[place]}
        self._lacks_since: float | None = None
        #: The partitions that stayed silent.
        self._silent: set[Place] = set()
        self._paused: list[Place] = []
        #: Bytes of the records that are held.
        self._bytes = 0

    def fetch(self, seconds: float) -> bool:
        """Fetch records, waiting for a first one for some seconds. Return whether there were any.

        Raises:
            SourceError: Records are gone, or Kafka refuses.
        """
        first = self._consumer.poll(seconds)
        # With a time-out, consume() would wait for the full number of records.
        messages = [] if first is None else [first, *self._consumer.consume(_AT_ONCE - 1, 0)]
        reached: dict[Place, int | None] = {}
        for message in messages:
            place, offset, error = (message.topic(), message.partition()), message.offset(), message.error()
            if error is not None and error.name() != "_PARTITION_EOF":
                if error.name() in _OUT_OF_RANGE:
                    raise SourceError(self._describe_loss(place, error.str()))
                # Others the client retries by itself, or they do not concern readers.
                if error.fatal() or not (error.retriable() or error.name() in _IGNORED):
                    raise SourceError(f"Kafka at {self._cluster.bootstrap} reports {error.name()}: {error.str()}")
                continue
            reached[place] = offset + 1 if error is None else None
            if not self._is_bounded or error is not None or offset < self._ends[place]:
                self._waiting[place].append(message)
                self._bytes += _size(message)
        self._silent -= reached.keys()
        for place, at in reached.items():
            _, end = self._consumer.get_watermark_offsets(self._partitions[place], cached=True)
            if self._is_bounded:
                end = self._ends[place]
            if at is None or at >= end >= 0:
                self._at_end.add(place)
            else:
                self._at_end.discard(place)
        return bool(messages)

    def take(self, place: Place, most: int) -> tuple[list[Any], int]:
        """Return the next records of a partition, and the offset after them."""
        queue = self._waiting[place]
        messages = [queue.popleft() for _ in range(min(most, len(queue)))]
        self._bytes -= sum(map(_size, messages))
        return list(filter(self._passes, messages)), self._offsets[place]

    def _in_order(self) -> Iterator[Any]:
        """Yield the records of all partitions, while every partition that has not ended has one."""
        now = time.monotonic()
        while any(self._waiting.values()):
            if self._is_delayed(now):
                return
            queues = [queue for queue in self._waiting.values() if queue]
            for queue in _oldest_first(queues) if self._by_time else queues:
                message = queue.popleft()
                self._bytes -= _size(message)
                if self._passes(message):
                    yield message
        self._lacks_since = None
        self._hold_back([*self._paused])

    def _passes(self, message: Any) -> bool:
        """Advance the offset of a partition, and return whether a message is a record."""
        # Transaction markers have offsets too, but are not records.
        is_record = message.error() is None
        place = message.topic(), message.partition()
        self._offsets[place] = max(self._offsets[place], message.offset() + is_record)
        return is_record

    def has_more(self, place: Place) -> bool:
        """Return whether a partition has more records, or they are expected."""
        return bool(self._waiting[place]) or place not in self._at_end | self._silent

    def wait_for_others(self, held: Collection[Place]) -> None:
        """Note the partitions that have not reached their end and delay the others.

        Args:
            held: The partitions of which records were taken that are not used yet.
        """
        if not self._is_delayed(time.monotonic(), held) and self._paused and not any(self._waiting.values()):
            self._hold_back([*self._paused])

    def _is_delayed(self, now: float, held: Collection[Place] = ()) -> bool:
        """Return whether a partition delays the others, except those that have messages elsewhere."""
        not_lacking = self._at_end | self._silent | set(held)
        lacking = [each for each, queue in self._waiting.items() if not queue and each not in not_lacking]
        if lacking:
            self._lacks_since = self._lacks_since or now
            if now < self._lacks_since + _PATIENCE:
                self._hold_back(lacking)
                return True
            self._silent.update(lacking)
        self._lacks_since = None
        return False

    def _hold_back(self, lacking: list[Place]) -> None:
        """Pause partitions with enough records while others have none, and resume all later."""
        if any(place in self._paused for place in lacking):
            self._consumer.resume([self._partitions[place] for place in self._paused])
            self._paused = []
        elif not self._paused and self._bytes > _AHEAD:
            self._paused = [place for place, queue in self._waiting.items() if queue]
            self._consumer.pause([self._partitions[place] for place in self._paused])

    @property
    def is_ended(self) -> bool:
        """True if the records of a bounded run were taken up to the end of all topics."""
        return self._is_bounded and all(self._offsets[place] >= end for place, end in self._ends.items())

    def disconnect(self) -> None:
        """Release the client."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _describe_loss(self, place: Place, why: str) -> str:
        return (
            f"topic {place[0]!r}, partition {place[1]} is to be read from offset {self._offsets[place]}, and {why}: "
            "records that were not read yet were deleted, or the topic was recreated; start from a new checkpoint, in "
            "Python with restore_from= a changelog, which keeps the state"
        )


def _oldest_first(queues: Sequence[deque[Any]]) -> Iterator[deque[Any]]:
    """Yield the queue whose next message is the oldest, until one is empty."""
    heap = [(queue[0].timestamp()[1], number) for number, queue in enumerate(queues)]
    heapify(heap)
    while True:
        number = heap[0][1]
        queue = queues[number]
        yield queue
        if not queue:
            return
        heapreplace(heap, (queue[0].timestamp()[1], number))


def _record(message: Any) -> Row:
    return _RECORD(
        (
            message.key(),
            message.value(),
            message.topic(),
            message.partition(),
            message.offset(),
            message.timestamp()[1],
            message.headers() or [],
        )
    )


def _size(message: Any) -> int:
    """Return the approximate number of bytes of a message, including the Python object."""
    return len(message.value() or b"") + len(message.key() or b"") + _MESSAGE
