"""Records that a Kafka consumer has fetched and has not returned yet, of one topic or several.

`Fetched` returns them round-robin by partition, so that none is read far ahead of another (a consumer returns a
megabyte of one partition and then of the next), or those of one partition, for a reader that merges them. In both a
partition without fetched records delays the others unless its end was reached. It does so only once, and briefly,
because its leader may be down.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

#: A topic and the number of a partition.
Place: TypeAlias = tuple[str, int]
#: Records that a consumer returns at once.
AT_ONCE = 1000
#: Seconds for which a silent partition delays the others, once; the bytes of other partitions' records held in the
#: meantime; and the bytes that an empty record takes.
_PATIENCE, _AHEAD, _MESSAGE = 1.0, 64 << 20, 256
#: Errors that the client retries by itself, or that concern only consumer groups.
_IGNORED = {"_PARTITION_EOF", "_TRANSPORT", "_ALL_BROKERS_DOWN", "GROUP_AUTHORIZATION_FAILED"}
OUT_OF_RANGE = {"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"}


def is_passing(error: Any) -> bool:
    """Return whether the client recovers from an error by itself, or it does not concern readers."""
    return not error.fatal() and (error.retriable() or error.name() in _IGNORED)


def fetched(consumer: Any, seconds: float) -> list[Any]:
    """Return the messages that a consumer has, waiting for a first one for some seconds."""
    first = consumer.poll(seconds)
    # With a time-out, consume() would wait for the full number of records.
    return [] if first is None else [first, *consumer.consume(AT_ONCE - 1, 0)]


class Fetched:
    """Messages that wait to be returned.

    Args:
        consumer: The consumer, assigned to the partitions.
        offsets: First offset of each partition.
        ends: End of each partition when reading began.
        bounded: Skip records after the ends.
    """

    def __init__(
        self, consumer: Any, offsets: Mapping[Place, int], ends: Mapping[Place, int], *, bounded: bool
    ) -> None:
        import confluent_kafka as ck

        self._consumer = consumer
        self._partitions = {place: ck.TopicPartition(*place) for place in offsets}
        self._waiting: dict[Place, deque[Any]] = {place: deque() for place in offsets}
        self._ends = ends if bounded else None
        self._at_end = {place for place, at in offsets.items() if at >= ends[place]}
        self._lacks_since: float | None = None
        #: The partitions that stayed silent.
        self._silent: set[Place] = set()
        self._paused: list[Place] = []
        #: Bytes of the records that are held.
        self._bytes = 0

    def add(self, messages: list[Any]) -> None:
        """Add fetched messages: records, and ends of partitions; other errors are ignored."""
        reached: dict[Place, int | None] = {}
        for message in messages:
            place, offset, error = (message.topic(), message.partition()), message.offset(), message.error()
            if error is not None and error.name() != "_PARTITION_EOF":
                continue
            reached[place] = offset + 1 if error is None else None
            if self._ends is None or error is not None or offset < self._ends[place]:
                self._hold(place, message)
        self._silent -= reached.keys()
        for place, at in reached.items():
            _, end = self._consumer.get_watermark_offsets(self._partitions[place], cached=True)
            if self._ends is not None:
                end = self._ends[place]
            if at is None or at >= end >= 0:
                self._at_end.add(place)
            else:
                self._at_end.discard(place)

    def in_turn(self) -> Iterator[Any]:
        """Yield one message of each partition in turn, while every partition that has not ended has one."""
        now = time.monotonic()
        while any(self._waiting.values()):
            if self._waits(now):
                return
            for queue in self._waiting.values():
                if queue:
                    message = queue.popleft()
                    self._bytes -= _size(message)
                    yield message
        self._lacks_since = None
        self._hold_back([*self._paused])

    def take(self, place: Place, most: int) -> list[Any]:
        """Return the next messages of a partition: records, and ends of it."""
        queue = self._waiting[place]
        found = [queue.popleft() for _ in range(min(most, len(queue)))]
        self._bytes -= sum(map(_size, found))
        return found

    def has_more(self, place: Place) -> bool:
        """Return whether a partition has messages, or more are expected."""
        return bool(self._waiting[place]) or place not in self._at_end | self._silent

    def is_delayed(self, held: Collection[Place]) -> bool:
        """Return whether a partition without messages delays the others, except those that have some elsewhere."""
        if self._waits(time.monotonic(), held):
            return True
        if self._paused and not any(self._waiting.values()):
            self._hold_back([*self._paused])
        return False

    def _hold(self, place: Place, message: Any) -> None:
        self._waiting[place].append(message)
        self._bytes += _size(message)

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


def _size(message: Any) -> int:
    """Return the approximate number of bytes of a message, including the Python object."""
    return len(message.value() or b"") + len(message.key() or b"") + _MESSAGE
