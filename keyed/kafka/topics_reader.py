"""The records of topics, partition by partition, for `keyed.KafkaSource` and scripts.

Fetched records wait until they are taken: round-robin by partition, so that none is read far ahead of another (a
consumer returns a megabyte of one partition and then of the next), or those of one partition, for a reader that merges
them by time. In both a partition without fetched records delays the others unless its end was reached. It does so only
once, and briefly, because its leader may be down. Offsets are kept by the caller's checkpoint.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

from keyed.errors import KeyedError, SourceError
from keyed.kafka.client import Cluster, Partition

#: A topic and the number of a partition.
Place: TypeAlias = tuple[str, int]
#: Records that a consumer returns at once.
_AT_ONCE = 1000
#: Seconds for which a silent partition delays the others, once; the bytes of other partitions' records held in the
#: meantime; and the bytes that an empty record takes.
_PATIENCE, _AHEAD, _MESSAGE = 1.0, 64 << 20, 256
#: Errors that the client retries by itself, or that concern only consumer groups.
_IGNORED = {"_PARTITION_EOF", "_TRANSPORT", "_ALL_BROKERS_DOWN", "GROUP_AUTHORIZATION_FAILED"}
_OUT_OF_RANGE = {"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"}


class TopicsReader:
    """Reads the committed records of topics, by partition.

    Args:
        cluster: The cluster.
        topics: The topics; true for those that a new reader begins at their end, not at their first record.
        bounded: End at the offsets at which the topics ended when reading began.
    """

    def __init__(self, cluster: Cluster, topics: Mapping[str, bool], *, bounded: bool) -> None:
        self._cluster = cluster
        self._topics = dict(topics)
        self._bounded = bounded
        self._offsets: dict[Place, int] = {}
        self._ends: dict[Place, int] = {}
        self._consumer: Any = None

    def open(self, offsets: Mapping[Place, int], until: Mapping[Place, int] | None = None) -> dict[Place, int]:
        """Connect, and return the offset of the next record of each partition, which reading advances.

        Args:
            offsets: Those of an earlier run.
            until: Ends of partitions for a bounded reader. Others end where they begin.

        Raises:
            SourceError: A topic is missing, records are gone, or no broker answers.
        """
        import confluent_kafka as ck

        doing = f"Kafka at {self._cluster.bootstrap}"
        consumer: Any = self._cluster.consumer()
        ends: dict[Place, int] = {}
        self._offsets = dict(offsets)
        try:
            for topic, from_end in self._topics.items():
                found = consumer.list_topics(topic, timeout=self._cluster.timeout).topics[topic]
                if found.error is not None:
                    raise SourceError(
                        f"{doing} reports {found.error.name()} for topic {topic!r}: {found.error.str()}; name an "
                        "existing topic"
                    )
                for number in sorted(found.partitions):
                    place = topic, number
                    low, high = Partition(self._cluster, topic, number).offsets(consumer)
                    at = self._offsets.setdefault(place, high if from_end and not offsets else low)
                    if not low <= at <= high:
                        raise SourceError(self._gone(place, f"partition {number} has offsets {low} to {high}"))
                    ends[place] = high if until is None else until.get(place, at)
            gone = self._offsets.keys() - ends.keys()
            if gone:
                raise SourceError(self._gone(min(gone), "it does not exist anymore"))
            consumer.assign([ck.TopicPartition(*place, at) for place, at in self._offsets.items()])
        except SourceError:
            consumer.close()
            raise
        except (ck.KafkaException, KeyedError) as error:
            consumer.close()
            raise SourceError(f"{doing} cannot be read: {error}") from error
        self._begin(consumer, ends)
        return self._offsets

    def _begin(self, consumer: Any, ends: dict[Place, int]) -> None:
        """Hold nothing of the partitions of a consumer that is assigned to them."""
        import confluent_kafka as ck

        self._consumer, self._ends = consumer, ends
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
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.name() in _OUT_OF_RANGE:
                raise SourceError(self._gone((message.topic(), message.partition()), error.str()))
            # Others the client retries by itself, or they do not concern readers.
            if error.fatal() or not (error.retriable() or error.name() in _IGNORED):
                raise SourceError(f"Kafka at {self._cluster.bootstrap} reports {error.name()}: {error.str()}")
        self._add(messages)
        return bool(messages)

    def _add(self, messages: list[Any]) -> None:
        """Add fetched messages: records, and ends of partitions; other errors are ignored."""
        reached: dict[Place, int | None] = {}
        for message in messages:
            place, offset, error = (message.topic(), message.partition()), message.offset(), message.error()
            if error is not None and error.name() != "_PARTITION_EOF":
                continue
            reached[place] = offset + 1 if error is None else None
            if not self._bounded or error is not None or offset < self._ends[place]:
                self._waiting[place].append(message)
                self._bytes += _size(message)
        self._silent -= reached.keys()
        for place, at in reached.items():
            _, end = self._consumer.get_watermark_offsets(self._partitions[place], cached=True)
            if self._bounded:
                end = self._ends[place]
            if at is None or at >= end >= 0:
                self._at_end.add(place)
            else:
                self._at_end.discard(place)

    def take(self, place: Place, most: int) -> tuple[list[Any], int]:
        """Return the next records of a partition, and the offset after them."""
        queue = self._waiting[place]
        messages = [queue.popleft() for _ in range(min(most, len(queue)))]
        self._bytes -= sum(map(_size, messages))
        return list(filter(self._passes, messages)), self._offsets[place]

    def in_turn(self) -> Iterator[Any]:
        """Yield one record of each partition in turn, while every partition that has not ended has one."""
        now = time.monotonic()
        while any(self._waiting.values()):
            if self._waits(now):
                return
            for queue in self._waiting.values():
                if queue:
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
        if not self._waits(time.monotonic(), held) and self._paused and not any(self._waiting.values()):
            self._hold_back([*self._paused])

    def _waits(self, now: float, held: Collection[Place] = ()) -> bool:
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
        """True if the records of a bounded reader were taken up to the end of all topics."""
        return self._bounded and all(self._offsets[place] >= end for place, end in self._ends.items())

    def close(self) -> None:
        """Release the client."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _gone(self, place: Place, why: str) -> str:
        return (
            f"topic {place[0]!r}, partition {place[1]} is to be read from offset {self._offsets[place]}, and {why}: "
            "records that were not read yet were deleted, or the topic was recreated; start from a new checkpoint, in "
            "Python with restore_from= a changelog, which keeps the state"
        )


def _size(message: Any) -> int:
    """Return the approximate number of bytes of a message, including the Python object."""
    return len(message.value() or b"") + len(message.key() or b"") + _MESSAGE
