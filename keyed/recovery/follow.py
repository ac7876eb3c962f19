"""A local store brought level with one key group of a changelog, from where it stands."""

from __future__ import annotations

from itertools import islice

from keyed.changelog.model import Blocks, ChangelogReader, Commit
from keyed.content.blocks import Change, TableBlock
from keyed.content.contents import delta_of_block, table_keys
from keyed.content.local_store import LocalStore
from keyed.errors import HistoryCompacted

__all__ = ["follow"]

#: Blocks that are applied at a time. A block has about a megabyte at most.
_BLOCKS = 8


def follow(store: LocalStore, reader: ChangelogReader, log_id: str, until: int) -> int:
    """Apply to ``store`` what it lacks of a key group's log.

    The store's position is the id of the changelog and the sequence of the last commit that it has as a whole. A store
    that follows another log, is beyond ``until``, or was away for longer than the log goes back is built anew.

    Args:
        store: The store.
        reader: Reader of the key group.
        log_id: Identity of the changelog.
        until: Sequence of the last commit to apply.

    Returns:
        How many records were read from the changelog.

    Raises:
        HistoryCompacted: ``until`` is older than what compaction left.
        CorruptionError: The log is damaged.
    """
    position = store.position()
    if position is not None and (position[0] != log_id or position[1] > until):
        store.reset()
        position = None
    if position is not None:
        try:
            return sum(_apply(store, log_id, *commit) for commit in reader.commits(position[1], until))
        except HistoryCompacted:
            store.reset()
    return sum(_apply(store, log_id, *commit) for commit in reader.commits(0, until))


def _apply(store: LocalStore, log_id: str, commit: Commit, blocks: Blocks) -> int:
    """Apply one commit; a large one in parts, under a position that no log has, so that half of it is no state."""
    keys = table_keys(commit.states)
    where = f"commit {commit.sequence} of key group {commit.group} of a changelog"
    rest = iter(blocks)
    part, following = list(islice(rest, _BLOCKS)), list(islice(rest, _BLOCKS))
    while True:
        changes: list[Change] = []
        for block in part:
            changes += [] if isinstance(block, TableBlock) else block
        tables = [delta_of_block(block, keys, where) for block in part if isinstance(block, TableBlock)]
        store.apply(f"part of {log_id}" if following else log_id, commit.sequence, changes, tables)
        if not following:
            return commit.records
        part, following = following, list(islice(rest, _BLOCKS))
