"""Stores of state: local stores, from which the engine reads, and commit stores, for runs without Spark.

A local store is a cache that follows a key group's log: `MemoryStore` in dictionaries, `open_rocks_store` on disk for
state larger than memory. A commit store is the log itself, and what else a local run must not lose: `CommitStore` on
disk, `MemoryCommitStore` for tests and runs that keep nothing. Importing this package does not load rocksdict.
"""

from __future__ import annotations

from keyed.stores.commit_store import CommitStore, MemoryCommitStore
from keyed.stores.memory_store import MemoryStore
from keyed.stores.rocks_store import RocksStore, open_rocks_store

__all__ = [
    "CommitStore",
    "MemoryCommitStore",
    "MemoryStore",
    "RocksStore",
    "open_rocks_store",
]
