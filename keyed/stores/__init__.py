"""Stores of state: local stores, from which the engine reads, and commit stores, for runs without Spark.

A local store is a cache that follows a key group's log: `MemoryStore` in dictionaries, `open_rocks_store` on disk for
state larger than memory, `open_lmdb_store` on disk for several processes of a machine. A commit store holds the logs
and the other records of a local run: `CommitStore` on disk, `MemoryCommitStore` for tests and runs without a
checkpoint. Importing this package loads neither rocksdict nor lmdb.
"""

from __future__ import annotations

from keyed.stores.lmdb_store import open_lmdb_store
from keyed.stores.memory_store import MemoryStore
from keyed.stores.rocks_store import open_rocks_store

__all__ = [
    "MemoryStore",
    "open_lmdb_store",
    "open_rocks_store",
]
