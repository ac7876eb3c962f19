"""A key group's log played from its beginning, with the hash of what is live after each commit."""

from __future__ import annotations

from keyed.changelog.model import Blocks, Commit
from keyed.content.delta import Delta, deltas
from keyed.content.entry_hash import LiveHash
from keyed.stores import MemoryStore


class Replay:
    """The state after the commits that were applied, in memory.

    Attributes:
        store: The entries and tables.
        found: Their number and hash.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.store = MemoryStore()
        self.found = LiveHash(self.store)

    def apply(self, commit: Commit, blocks: Blocks) -> None:
        """Apply the next commit.

        Raises:
            CorruptionError: Rows of a table cannot be read.
        """
        if commit.snapshot:
            self._clear()
        where = f"commit {commit.sequence} of key group {commit.group}"
        for delta in deltas(blocks, commit.states, where):
            # Versions that took one key for several wrote an address twice.
            newest = {(prefix, sub): (prefix, sub, value) for prefix, sub, value in delta.entries}
            once = Delta(list(newest.values()), delta.tables)
            self.found.add(once)
            self.store.apply("replay", 1, once.entries, once.tables)
