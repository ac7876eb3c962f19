"""The id of each key group on Spark, chosen so that the shuffle puts one group on each partition.

Spark sends a row with grouping column ``id`` to shuffle partition ``pmod(hash(id), partitions)``, where ``hash`` of an
int is Murmur3 (x86, 32 bit) with seed 42. The id of group ``i`` is the least non-negative int that goes to partition
``i``. The ids for any number of groups contain 0. A query that is started on a checkpoint with another number of groups
therefore always reads one of its groups, whose meta record has the number.
"""

from __future__ import annotations

from functools import lru_cache

_MASK = 0xFFFFFFFF


def spark_hash(value: int) -> int:
    """Return Spark's ``hash(CAST(value AS INT))``, a signed 32-bit integer."""
    mixed = _rotate((value & _MASK) * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    hashed = _rotate(42 ^ mixed, 13) * 5 + 0xE6546B64 & _MASK
    hashed ^= 4
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & _MASK
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & _MASK
    hashed ^= hashed >> 16
    return hashed - (1 << 32) if hashed >> 31 else hashed


@lru_cache(maxsize=64)
def group_ids(parallelism: int) -> tuple[int, ...]:
    """Return the id of each of ``parallelism`` key groups, by index of the group."""
    ids: dict[int, int] = {}
    candidate = 0
    while len(ids) < parallelism:
        ids.setdefault(spark_hash(candidate) % parallelism, candidate)
        candidate += 1
    return tuple(ids[partition] for partition in range(parallelism))


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> 32 - bits) & _MASK
