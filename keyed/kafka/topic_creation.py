"""Creation and check of topics."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from keyed.errors import ChangelogError
from keyed.kafka.client import Cluster, LastError, translated


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
        description = client.list_topics(topic, timeout=cluster.timeout).topics[topic]
    except ck.KafkaException as error:
        # Usually the first call of all, so errors of the address, TLS or the log-in are reported here.
        client.poll(0)
        raise translated(error, f"{where}{last_error}") from error
    if description.error is None:
        return {number: len(partition.replicas) for number, partition in description.partitions.items()}
    if description.error.code() in {ck.KafkaError.UNKNOWN_TOPIC_OR_PART, ck.KafkaError._UNKNOWN_TOPIC}:  # noqa: SLF001
        return {}
    raise translated(description.error, where)


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
