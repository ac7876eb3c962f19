"""The headers of a changelog's topic."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

from keyed.base.ids import random_id
from keyed.changelog.kafka.kafka_records import HEADER
from keyed.changelog.model import LogHeader
from keyed.changelog.records import decode_header, encode_header
from keyed.errors import ChangelogError
from keyed.kafka.client import Cluster, Partition
from keyed.kafka.transactions import Transactions

if TYPE_CHECKING:
    from confluent_kafka import Consumer


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
    with closing(Transactions(cluster, transactional_id, where)) as transactions:
        # Another program that prepares the same topic waits for this id, or takes it over.
        *groups, last = (Partition(cluster, topic, number) for number in range(parallelism + 1))
        existing = read_header(last)
        if existing is not None:
            return existing
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
    # A broker confirms a commit before it reaches the partitions and their readers. Taking the id waits for that.
    Transactions(cluster, transactional_id, where).close()
    return header
