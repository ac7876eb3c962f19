"""Reading of several topics as one sequence: the next record is the one with the lowest timestamp.

Offsets are kept by the caller's checkpoint, as those of a `keyed.KafkaSource` are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from keyed.changelog.kafka.client import Cluster, Partition, check_client
from keyed.changelog.kafka.topic import create_topic, partitions
from keyed.errors import ChangelogError, CheckpointError, KeyedError, SourceError
from keyed.kafka_fetching import OUT_OF_RANGE, FetchedByTime, Place, fetched, is_passing


class TopicsReader:
    """Reads the committed records of topics, merged by timestamp.

    Args:
        cluster: The cluster.
        topics: The topics; true for those that a new reader begins at their end, not at their first record. Of records
            with equal timestamps, that of the first of these topics comes first.
        time_of: Returns the timestamp of a message; one below 0 comes first.
        bounded: End at the offsets at which the topics ended when reading began.
    """

    def __init__(
        self, cluster: Cluster, topics: Mapping[str, bool], time_of: Callable[[Any], int], *, bounded: bool
    ) -> None:
        self._cluster = cluster
        self._topics = dict(topics)
        self._time_of = time_of
        self._bounded = bounded
        self._offsets: dict[Place, int] = {}
        self._sought = False
        self._consumer: Any = None
        self._fetched: FetchedByTime
        self._ends: dict[Place, int] = {}

    def position(self) -> dict[str, dict[str, int]]:
        """Return the offset of the next record of each partition, by topic."""
        found: dict[str, dict[str, int]] = {topic: {} for topic in self._topics}
        for (topic, partition), at in self._offsets.items():
            found[topic][str(partition)] = at
        return found

    def seek(self, position: Mapping[str, Mapping[str, int]]) -> None:
        """Begin after a position of an earlier run.

        Raises:
            CheckpointError: It is one of other topics.
        """
        if position.keys() != self._topics.keys():
            raise CheckpointError(
                f"the checkpoint has read the Kafka topics {sorted(position)}, and the job reads "
                f"{sorted(self._topics)}; read the same ones, or start from a new checkpoint"
            )
        self._offsets = {(topic, int(n)): at for topic, each in position.items() for n, at in each.items()}
        self._sought = True

    def open(self) -> None:
        """Connect, and find the partitions.

        Raises:
            SourceError: A topic is missing, records are gone, or no broker answers.
        """
        import confluent_kafka as ck

        doing = f"Kafka at {self._cluster.bootstrap}"
        consumer: Any = self._cluster.consumer()
        ends: dict[Place, int] = {}
        try:
            for topic, from_end in self._topics.items():
                found = consumer.list_topics(topic, timeout=self._cluster.timeout).topics[topic]
                if found.error is not None:
                    raise SourceError(f"{doing} reports {found.error.name()} for topic {topic!r}: {found.error.str()}")
                for number in sorted(found.partitions):
                    place = topic, number
                    low, high = Partition(self._cluster, topic, number).offsets(consumer)
                    ends[place] = high
                    at = self._offsets.setdefault(place, high if from_end and not self._sought else low)
                    if not low <= at <= high:
                        raise SourceError(self._gone(place, f"has the offsets {low} to {high}"))
            gone = self._offsets.keys() - ends.keys()
            if gone:
                raise SourceError(self._gone(min(gone), "does not exist anymore"))
            consumer.assign([ck.TopicPartition(*place, at) for place, at in self._offsets.items()])
        except SourceError:
            consumer.close()
            raise
        except (ck.KafkaException, KeyedError) as error:
            consumer.close()
            raise SourceError(f"{doing} cannot be read: {error}") from error
        self._consumer, self._ends = consumer, ends
        self._fetched = FetchedByTime(consumer, dict(self._offsets), ends, self._time_of, bounded=self._bounded)

    def fetch(self, seconds: float) -> None:
        """Fetch records, waiting for a first one for some seconds.

        Raises:
            SourceError: Records are gone, or Kafka refuses.
        """
        messages = fetched(self._consumer, seconds)
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.name() in OUT_OF_RANGE:
                raise SourceError(self._gone((message.topic(), message.partition()), f"answers: {error.str()}"))
            if not is_passing(error):
                raise SourceError(f"Kafka at {self._cluster.bootstrap} reports {error.name()}: {error.str()}")
        self._fetched.add(messages)

    def first(self) -> tuple[int, Any] | None:
        """Return the next message with its timestamp; ``None`` if there is none for now."""
        while (found := self._fetched.first()) is not None and found[1].error() is not None:
            # Transaction markers have offsets too, but are not records.
            message = found[1]
            self._fetched.take()
            place = message.topic(), message.partition()
            self._offsets[place] = max(self._offsets[place], message.offset())
        return found

    def take(self) -> None:
        """Advance after the message that `first` has returned."""
        found = self._fetched.first()
        assert found is not None
        message = found[1]
        self._fetched.take()
        self._offsets[message.topic(), message.partition()] = message.offset() + 1

    @property
    def is_delayed(self) -> bool:
        """True if `first` waits for a partition that has not reached its end."""
        return self._fetched.is_delayed

    @property
    def is_ended(self) -> bool:
        """True if a bounded reader has reached the end of all topics."""
        return self._bounded and all(self._offsets[place] >= end for place, end in self._ends.items())

    def close(self) -> None:
        """Release the client."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _gone(self, place: Place, why: str) -> str:
        return (
            f"topic {place[0]!r}, partition {place[1]} is to be read from offset {self._offsets[place]}, and {why}: "
            "records that were not read yet were deleted, or the topic was recreated; start from a new checkpoint"
        )


class Topics:
    """The topics of a cluster.

    Args:
        bootstrap: Addresses of brokers.
        settings: Settings of the client.
        seconds: Time for which an operation waits for a broker.

    Raises:
        DefinitionError: A setting is keyed's own.
    """

    def __init__(self, bootstrap: str, settings: Mapping[str, Any], seconds: float) -> None:
        check_client(bootstrap, settings)
        self._cluster = Cluster(bootstrap, dict(settings), seconds)

    def reader(self, topics: Mapping[str, bool], time_of: Callable[[Any], int], *, bounded: bool) -> TopicsReader:
        """Return a reader. See `TopicsReader`."""
        return TopicsReader(self._cluster, topics, time_of, bounded=bounded)

    def count(self, topic: str) -> int:
        """Return the number of partitions of a topic, 0 if it does not exist.

        Raises:
            SourceError: No broker answers.
        """
        try:
            return len(partitions(self._cluster, topic))
        except ChangelogError as error:
            raise SourceError(f"Kafka at {self._cluster.bootstrap}: {error}") from error

    def create(self, topic: str, count: int, replicas: int | None, settings: Mapping[str, str]) -> None:
        """Create a topic.

        Args:
            topic: The topic.
            count: Number of partitions.
            replicas: Number of replicas; ``None`` for the broker's default.
            settings: Its settings.

        Raises:
            SourceError: It cannot be created.
        """
        try:
            create_topic(self._cluster, topic, count, replicas, settings)
        except ChangelogError as error:
            raise SourceError(f"Kafka at {self._cluster.bootstrap}: {error}") from error
