"""Reading of several topics, partition by partition.

Offsets are kept by the caller's checkpoint, as those of a `keyed.KafkaSource` are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from keyed.errors import KeyedError, SourceError
from keyed.kafka.client import Cluster, Partition
from keyed.kafka.fetching import OUT_OF_RANGE, Fetched, Place, fetched, is_passing


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
        self._consumer: Any = None
        self._fetched: Fetched
        self._ends: dict[Place, int] = {}

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
        self._consumer, self._ends = consumer, ends
        self._fetched = Fetched(consumer, dict(self._offsets), ends, bounded=self._bounded)
        return self._offsets

    def fetch(self, seconds: float) -> bool:
        """Fetch records, waiting for a first one for some seconds. Return whether there were any.

        Raises:
            SourceError: Records are gone, or Kafka refuses.
        """
        messages = fetched(self._consumer, seconds)
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.name() in OUT_OF_RANGE:
                raise SourceError(self._gone((message.topic(), message.partition()), error.str()))
            if not is_passing(error):
                raise SourceError(f"Kafka at {self._cluster.bootstrap} reports {error.name()}: {error.str()}")
        self._fetched.add(messages)
        return bool(messages)

    def take(self, place: Place, most: int) -> tuple[list[Any], int]:
        """Return the next records of a partition, and the offset after them."""
        found = list(filter(self._passes, self._fetched.take(place, most)))
        return found, self._offsets[place]

    def in_turn(self) -> Iterator[Any]:
        """Yield a record of each partition in turn, while every partition that has not ended has one."""
        return filter(self._passes, self._fetched.in_turn())

    def _passes(self, message: Any) -> bool:
        """Advance the offset of a partition, and return whether a message is a record."""
        # Transaction markers have offsets too, but are not records.
        is_record = message.error() is None
        place = message.topic(), message.partition()
        self._offsets[place] = max(self._offsets[place], message.offset() + is_record)
        return is_record

    def has_more(self, place: Place) -> bool:
        """Return whether a partition has more records, or they are expected."""
        return self._fetched.has_more(place)

    def is_delayed(self, held: Collection[Place]) -> bool:
        """Return whether a partition that has not reached its end delays the others.

        Args:
            held: The partitions of which records were taken that are not used yet.
        """
        return self._fetched.is_delayed(held)

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
