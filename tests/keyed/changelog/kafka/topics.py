"""Topics for tests: names that no other test has, and what any client sees and does there."""

from __future__ import annotations

import time
import uuid
from typing import Any

import confluent_kafka
import confluent_kafka.admin

from tests.support.waiting import until

#: Settings of a topic that is compacted within a second or two of each write.
COMPACTING = {"segment.ms": 100, "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": 1000}
_SECONDS = 120
_admin: Any = confluent_kafka.admin
_made: list[str] = []


def new_topic() -> str:
    """A name that nobody else has, and that no other begins with."""
    _made.append(f"keyed-test-{uuid.uuid4().hex[:12]}")
    return _made[-1]


def delete_made(kafka: str) -> None:
    """Delete the topics whose names begin with one that was made here."""
    client = _client(kafka)
    mine = [topic for topic in client.list_topics(timeout=_SECONDS).topics if topic.startswith(tuple(_made))]
    for deleted in client.delete_topics(mine).values() if mine else ():
        deleted.result(_SECONDS)


def create(kafka: str, topic: str, partitions: int, **settings: Any) -> None:
    """Create a topic; underscores in the names of settings stand for dots."""
    config = {name.replace("_", "."): str(value) for name, value in settings.items()}
    client = _client(kafka)
    client.create_topics([_admin.NewTopic(topic, partitions, 1, config=config)])[topic].result(_SECONDS)
    until(lambda: len(client.list_topics(topic, timeout=_SECONDS).topics[topic].partitions) == partitions)


def created(kafka: str, partitions: int, **settings: Any) -> str:
    """Create a topic, and return its name."""
    name = new_topic()
    create(kafka, name, partitions, **settings)
    return name


def grow(kafka: str, topic: str, partitions: int) -> None:
    """Add partitions, up to a number."""
    client = _client(kafka)
    client.create_partitions([_admin.NewPartitions(topic, partitions)])[topic].result(_SECONDS)
    until(lambda: len(client.list_topics(topic, timeout=_SECONDS).topics[topic].partitions) == partitions)


def alter(kafka: str, topic: str, **settings: Any) -> None:
    """Alter settings of a topic."""
    resource = _admin.ConfigResource(_admin.ResourceType.TOPIC, topic)
    for name, value in settings.items():
        entry = _admin.ConfigEntry(
            name.replace("_", "."), str(value), incremental_operation=_admin.AlterConfigOpType.SET
        )
        resource.add_incremental_config(entry)
    client = _client(kafka)
    client.incremental_alter_configs([resource])[resource].result(_SECONDS)


def described(kafka: str, topic: str) -> dict[str, str]:
    """The settings of a topic."""
    resource = _admin.ConfigResource(_admin.ResourceType.TOPIC, topic)
    client = _client(kafka)
    found = client.describe_configs([resource])[resource].result(_SECONDS)
    return {name: entry.value for name, entry in found.items()}


def made(kafka: str, topic: str) -> bool:
    """Return whether there is a topic. All topics are listed, because brokers create a topic that is queried alone."""
    return topic in _client(kafka).list_topics(timeout=_SECONDS).topics


def grant(kafka: str, user: str, topic: str) -> None:
    """Give a user the rights that docs/how-to/kafka.md lists."""
    kinds, operations = _admin.ResourceType, _admin.AclOperation
    rights = [
        (kinds.TOPIC, topic, _admin.ResourcePatternType.LITERAL, right)
        for right in (
            operations.DESCRIBE,
            operations.DESCRIBE_CONFIGS,
            operations.READ,
            operations.WRITE,
            operations.CREATE,
        )
    ]
    rights += [
        (kinds.TRANSACTIONAL_ID, "keyed-", _admin.ResourcePatternType.PREFIXED, right)
        for right in (operations.DESCRIBE, operations.WRITE)
    ]
    allow = _admin.AclPermissionType.ALLOW
    bindings = [
        _admin.AclBinding(kind, name, pattern, f"User:{user}", "*", right, allow)
        for kind, name, pattern, right in rights
    ]
    client = _client(kafka)
    for granted in client.create_acls(bindings).values():
        granted.result(_SECONDS)


def delete(kafka: str, topic: str) -> None:
    """Delete a topic, and wait until it is gone."""
    client = _client(kafka)
    client.delete_topics([topic])[topic].result(_SECONDS)
    until(lambda: not made(kafka, topic))


def delete_records(kafka: str, topic: str, partition: int, before: int) -> None:
    """Delete the records of a partition before an offset."""
    place = confluent_kafka.TopicPartition(topic, partition, before)
    client = _client(kafka)
    client.delete_records([place])[place].result(_SECONDS)


def produce(kafka: str, topic: str, records: list[tuple[bytes, bytes | None]], partition: int = 0) -> None:
    """Write records as any client does, without a transaction."""
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka})
    for key, value in records:
        producer.produce(topic, value, key, partition)
    assert producer.flush(_SECONDS) == 0


def produce_all(kafka: str, topic: str, partition: int, records: list[Any]) -> None:
    """Write records with their headers, as any client does, without a transaction."""
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka})
    for key, value, headers in records:
        producer.produce(topic, value, key, partition, headers=headers)
    assert producer.flush(_SECONDS) == 0


def ended(kafka: str, *of_topics: str) -> bool:
    """Return true if no transaction is open in topics. Kafka 4.1 to 4.3 forget the end of one if all brokers crash."""
    committed, uncommitted = (
        confluent_kafka.Consumer({"bootstrap.servers": kafka, "group.id": "-", "isolation.level": level})
        for level in ("read_committed", "read_uncommitted")
    )
    partitions = [
        confluent_kafka.TopicPartition(topic, number)
        for topic in of_topics
        for number in committed.list_topics(topic, timeout=_SECONDS).topics[topic].partitions
    ]
    return all(
        committed.get_watermark_offsets(each, _SECONDS) == uncommitted.get_watermark_offsets(each, _SECONDS)
        for each in partitions
    )


def end(kafka: str, topic: str, partition: int = 0) -> int:
    """The offset after the last record of a partition, which may be in no commit yet."""
    # A consumer that reads committed records only gets the offset where an open transaction begins.
    settings = {"bootstrap.servers": kafka, "group.id": "keyed-test-end", "isolation.level": "read_uncommitted"}
    consumer = confluent_kafka.Consumer(settings)
    found: int = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, partition), _SECONDS)[1]
    consumer.close()
    return found


def messages(kafka: str, topic: str, partition: int = 0, *, committed: bool = True) -> list[Any]:
    """All records of a partition."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": "keyed-test",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    # The client looks up OFFSET_BEGINNING half a second later.
    place = confluent_kafka.TopicPartition(topic, partition)
    place.offset = consumer.get_watermark_offsets(place, _SECONDS)[0]
    consumer.assign([place])
    found: list[Any] = []
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is not None:
            consumer.close()
            return found
        if message is not None:
            found.append(message)
    raise AssertionError(f"the end of {topic} was not reached in {_SECONDS} s")


def _client(kafka: str) -> Any:
    return _admin.AdminClient({"bootstrap.servers": kafka})


def read_stream(spark: Any, kafka: str, topic: str, most: int = 1000) -> Any:
    """Return the records of a topic from its start as a stream of Spark's connector, with so many a batch at most."""
    stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka).option("subscribe", topic)
    return stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", most).load()
