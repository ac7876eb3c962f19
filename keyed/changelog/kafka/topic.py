"""Creation or check of a changelog's topic, and its headers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keyed.changelog.kafka.client import Cluster, LastError, Partition, translated
from keyed.changelog.kafka.kafka_records import HEADER
from keyed.changelog.kafka.transactions import Transactions
from keyed.changelog.model import LogHeader
from keyed.changelog.records import decode_header, encode_header
from keyed.errors import ChangelogError
from keyed.ids import random_id

if TYPE_CHECKING:
    from confluent_kafka import Consumer


def partitions(cluster: Cluster, topic: str) -> dict[int, int]:
    """Return the number of replicas of each partition of a topic; empty if there is no such topic.

    Raises:
        ChangelogError: The broker does not answer, or refuses.
    """
    last_error = LastError()
    client = cluster.admin(last_error.record)
    import confluent_kafka as ck

    where = f"topic {topic!r}"
    try:
        found = client.list_topics(topic, timeout=cluster.timeout).topics[topic]
    except ck.KafkaException as error:
        # Usually the first call of all, so errors of the address, TLS or the log-in are reported here.
        client.poll(0)
        raise translated(error, f"{where}{last_error}") from error
    if found.error is None:
        return {number: len(partition.replicas) for number, partition in found.partitions.items()}
    if found.error.code() in {ck.KafkaError.UNKNOWN_TOPIC_OR_PART, ck.KafkaError._UNKNOWN_TOPIC}:  # noqa: SLF001
        return {}
    raise translated(found.error, where)


def make_or_check(
    cluster: Cluster,
    topic: str,
    count: int,
    replication_factor: int | None,
    settings: Mapping[str, str],
    settings_if_new: Mapping[str, str],
) -> None:
    """Create a topic, or check that an existing one matches the options.

    Args:
        cluster: The cluster.
        topic: The topic.
        count: Number of partitions.
        replication_factor: Number of replicas; ``None`` for the broker's default.
        settings: Settings of the topic.
        settings_if_new: Defaults for ``settings`` of a new topic, which are not checked.

    Raises:
        ChangelogError: It cannot be created, or differs; the message has the differences.
    """
    there = partitions(cluster, topic)
    if not there:
        create_topic(cluster, topic, count, replication_factor, {**settings_if_new, **settings})
        there = partitions(cluster, topic)
    differences = []
    if len(there) != count:
        differences.append(f"it has {len(there)} partitions, and {count} are needed: one for each key group and one")
    wrong = [replicas for replicas in there.values() if replication_factor not in {None, replicas}]
    if wrong:
        differences.append(f"it has {wrong[0]} replicas, replication_factor={replication_factor}")
    have = cluster.topic_settings(topic)
    differences += [
        f"{name} is {have.get(name)}, and should be {value}"
        for name, value in settings.items()
        if have.get(name) != value
    ]
    if differences:
        raise ChangelogError(
            f"topic {topic!r} differs from the options: {'; '.join(differences)}. Alter the topic or the options, or "
            "give another topic, which is then created"
        )


def read_header(partition: Partition, consumer: Consumer | None = None) -> LogHeader | None:
    """Return the header of a partition, or ``None`` if the partition is empty.

    Args:
        partition: The partition.
        consumer: A consumer that is not in use; by default one is created.

    Raises:
        ChangelogError: The partition does not begin with a header.
        CorruptionError: It fails its checks.
    """
    consumer = consumer or partition.cluster.consumer()
    low, _ = partition.offsets(consumer)
    first = next(partition.read(consumer, low), None)
    if first is None:
        return None
    if first[0].key() != HEADER:
        raise ChangelogError(
            f"{partition} does not begin with the header of a changelog: it has other content, or its first records "
            "were deleted. Give another topic"
        )
    return decode_header(first[0].value() or b"", f"{partition}, header")


def write_headers(cluster: Cluster, topic: str, operator: str, parallelism: int) -> LogHeader:
    """Write the header to each partition of an empty topic, or return the one that another program has written.

    Raises:
        ChangelogError: The topic is not empty, or cannot be written.
    """
    where, transactional_id = f"topic {topic!r}", f"keyed-{topic}-header"
    transactions = Transactions(cluster, transactional_id, where)
    try:
        # Another program that prepares the same topic waits for this id, or takes it over.
        *groups, last = (Partition(cluster, topic, number) for number in range(parallelism + 1))
        there = read_header(last)
        if there is not None:
            return there
        # Uncommitted records of another program are not read.
        consumer = cluster.consumer()
        if any(read_header(partition, consumer) is not None for partition in groups):
            raise ChangelogError(f"{where} is not empty, and not a changelog of keyed; give another topic")
        header = LogHeader(random_id(), operator, parallelism, int(time.time() * 1000))
        transactions.begin()
        for partition in (*groups, last):
            transactions.send(partition, [(HEADER, encode_header(header))])
        transactions.deliver()
        transactions.commit()
    finally:
        transactions.close()
    # A broker confirms a commit before it reaches the partitions and their readers. Taking the id waits for that.
    Transactions(cluster, transactional_id, where).close()
    return header


def create_topic(
    cluster: Cluster, topic: str, count: int, replication_factor: int | None, settings: Mapping[str, str]
) -> None:
    """Create a topic, unless another program has done so meanwhile.

    Args:
        cluster: The cluster.
        topic: The topic.
        count: Number of partitions.
        replication_factor: Number of replicas; ``None`` for the broker's default.
        settings: Settings of the topic.

    Raises:
        ChangelogError: It cannot be created.
    """
    import confluent_kafka as ck
    import confluent_kafka.admin

    kafka: Any = confluent_kafka.admin
    # The client has to exist until it has its answer.
    client = cluster.admin()
    new = kafka.NewTopic(topic, count, replication_factor or -1, config=dict(settings))
    try:
        client.create_topics([new], operation_timeout=cluster.timeout)[topic].result(cluster.timeout)
    except (ck.KafkaException, TimeoutError) as error:
        # Another driver may have created it in the meantime.
        if isinstance(error, TimeoutError) or error.args[0].code() != ck.KafkaError.TOPIC_ALREADY_EXISTS:
            raise translated(error, f"creating topic {topic!r} with {count} partitions") from error
    # Metadata reaches the brokers with a delay.
    deadline = time.monotonic() + cluster.timeout
    while len(partitions(cluster, topic)) != count and time.monotonic() < deadline:
        time.sleep(0.05)
