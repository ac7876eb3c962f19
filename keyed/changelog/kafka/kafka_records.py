"""The records of a changelog's topic and their byte layout.

A changelog with n key groups has a topic of n + 1 partitions: partition g is the log of key group g, and the last one
holds the positions, so that they can be read without a group's log. The topic is compacted, so a record is kept until a
later record of the same key, or if its value is null, for the tombstone retention. Keys, big-endian::

    H                                       header of the partition; its first record
    C                                       marker of a commit; the last record of the commit
    P | slot (u8)                           position, slot = sequence mod 64
    K | name (UTF-8)                        data under a name; in the partition of the positions
    E | length of operator (u16) | operator (UTF-8) | hash of the user's key (i64) | length of prefix (u32)
      | prefix | sub                        an entry

Values: of H, C, P and K the records of `keyed.changelog.model`; of E the value of the entry, or null if it was
removed. Prefix and sub are those of `keyed.content.addresses`; rows of tables are entries in the form of
`keyed.content.table_entries`. The hash is that of `keyed.codec.key_hash`, whose `group_of` gives the key group for any
number of groups.

Headers of E and C::

    group      u32
    sequence   u64
    batch      identity of the attempt that was committed (`Commit.attempt`), UTF-8
    base       C only: u64, sequence of the newest snapshot up to this commit

Every commit is one transaction, so readers of committed records get all of its records, adjacent, or none.

All markers of a partition have one key. Within the compaction lag all markers exist, and each has the number of records
of its commit. Below the lag, compaction leaves one marker, and the entries before it that no later record replaced. A
reader that folds the entries from the start therefore has the state of the first marker whose number and hash match the
entries; records older than the snapshot that ``base`` names do not count. Later records are not compacted, and are
checked against the counts of their markers.
"""

from __future__ import annotations

import time
from contextlib import closing
from struct import Struct
from typing import TYPE_CHECKING, Any

from keyed.base.ids import random_id
from keyed.changelog.model import Commit, LogHeader, decode_header, encode_header
from keyed.codec.key_hash import encoded_key_hash
from keyed.errors import ChangelogError, CorruptionError
from keyed.kafka.client import Cluster, Headers, Partition, Transactions

if TYPE_CHECKING:
    from confluent_kafka import Consumer


HEADER, COMMIT, POSITION, KEPT, ENTRY = b"H", b"C", b"P", b"K", b"E"
#: Number of the newest positions, which compaction never removes.
_SLOTS = 64

_LENGTH, _HASH_AND_LENGTH = Struct(">H"), Struct(">qI")
_GROUP, _NUMBER = Struct(">I"), Struct(">Q")
#: Offset of the user's key in a prefix, by the prefix's kind: after kind and state id, or for a timer after the kind.
_KEY_AT = {1: 3, 2: 3, 3: 3, 4: 1, 5: 1}


def position_key(sequence: int) -> bytes:
    """Return the key of a position's record."""
    return POSITION + bytes((sequence % _SLOTS,))


def kept_key(name: str) -> bytes:
    """Return the key of the record of named data."""
    return KEPT + name.encode()


class RecordKeys:
    """The keys of the records of an operator's entries.

    Args:
        operator: Name of the operator.
        where: For messages.
    """

    def __init__(self, operator: str, where: str) -> None:
        name = operator.encode()
        self._operator = operator
        self._where = where
        self._head = ENTRY + _LENGTH.pack(len(name)) + name

    def key(self, prefix: bytes, sub: bytes) -> bytes:
        """Return the key of the record of an entry."""
        hashed = encoded_key_hash(prefix, _KEY_AT[prefix[0]])
        return self._head + _HASH_AND_LENGTH.pack(hashed, len(prefix)) + prefix + sub

    def address(self, key: bytes) -> tuple[bytes, bytes]:
        """Return the prefix and the sub of the entry whose record has a key.

        Raises:
            CorruptionError: It is not such a key, or belongs to another operator.
        """
        at = len(self._head)
        start = at + _HASH_AND_LENGTH.size
        if len(key) > start and key.startswith(self._head):
            end = start + _HASH_AND_LENGTH.unpack_from(key, at)[1]
            if start < end <= len(key):
                return key[start:end], key[end:]
        raise CorruptionError(
            f"{key[:60]!r} is not a key of an entry of operator {self._operator!r}", where=self._where
        )


def entry_headers(commit: Commit) -> Headers:
    """Return the headers of the records of a commit."""
    return [
        ("group", _GROUP.pack(commit.group)),
        ("sequence", _NUMBER.pack(commit.sequence)),
        ("batch", commit.attempt.encode()),
    ]


def marker_headers(commit: Commit, base: int) -> Headers:
    """Return the headers of a commit's marker."""
    return [*entry_headers(commit), ("base", _NUMBER.pack(base))]


def sequence_of(headers: Any, where: str) -> int:
    """Return the sequence in the headers of a record.

    Raises:
        CorruptionError: They have none.
    """
    return _number(headers, 1, "sequence", where)


def base_of(headers: Any, where: str) -> int:
    """Return the sequence of the newest snapshot from the headers of a marker.

    Raises:
        CorruptionError: They have none.
    """
    return _number(headers, 3, "base", where)


def _number(headers: Any, index: int, name: str, where: str) -> int:
    if headers is not None and len(headers) > index and headers[index][0] == name:
        value = headers[index][1]
        # A header of another program may have no value.
        if value is not None and len(value) == _NUMBER.size:
            number: int = _NUMBER.unpack(value)[0]
            return number
    raise CorruptionError(f"a record has no header {name!r}: keyed did not write it", where=where)


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
