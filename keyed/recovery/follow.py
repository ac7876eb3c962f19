"""A local store brought level with one key group of a changelog, from where it stands."""

from __future__ import annotations

from keyed.changelog.model import Blocks, ChangelogReader, Commit
from keyed.content.delta import apply_blocks
from keyed.content.local_store import LocalStore
from keyed.errors import HistoryCompacted


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
    where = f"commit {commit.sequence} of key group {commit.group} of a changelog"
    apply_blocks(store, log_id, commit.sequence, blocks, commit.states, where)
    return commit.records
