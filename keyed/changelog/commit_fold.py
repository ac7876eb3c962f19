"""The fold of a changelog: the commits of key groups in order, each checked, for all that build a state of them.

State tables, `keyed.recovery.read_changelog`, restores, verification and compaction iterate over it, and differ only in
what they do at a commit. It checks

- that each commit belongs to the log and the key group,
- that it follows the commit before it, or is a snapshot, which replaces the state before it,
- which commit completes a batch of all key groups (`fold_groups`), and the number of records of each,
- the number and hash of the live entries, if the state is known (`difference`).

Only the storage can distinguish a commit that compaction has removed (`HistoryCompacted`) from a lost one, so its
readers check files, records and gaps before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import merge

import attrs

from keyed.changelog.model import Blocks, ChangelogReader, Commit, why_not_next
from keyed.content.blocks import Block, records_of
from keyed.content.contents import LiveHash, hash_text
from keyed.content.delta import Delta, deltas
from keyed.errors import CorruptionError


@attrs.frozen
class FoldedCommit:
    """A commit in its place.

    Attributes:
        commit: Its marker.
        blocks: Its content, which can be iterated over once, before the next commit.
        markers: The markers of all key groups, in their order, if it completes a batch; otherwise none.
    """

    commit: Commit
    blocks: Blocks
    markers: tuple[Commit, ...] = ()

    @property
    def place(self) -> str:
        """The commit for messages."""
        return f"commit {self.commit.sequence} of key group {self.commit.group}"

    def deltas(self, where: str = "") -> Iterator[Delta]:
        """Yield the changes.

        Args:
            where: The place for messages; by default `place`.

        Raises:
            CorruptionError: Rows of a table cannot be read.
        """
        return deltas(self.blocks, self.commit.states, where or self.place)


class GroupFold:
    """Checks the commits of one key group one after the other.

    Args:
        log_id: Identity of the changelog.
        group: Index of the key group.
        after: The sequence after which the first one begins.
    """

    def __init__(self, log_id: str, group: int, after: int = 0) -> None:
        self._owner = log_id, group
        self._after = after
        self._last: Commit | None = None

    def add(self, commit: Commit, blocks: Blocks) -> FoldedCommit:
        """Add the next commit.

        Raises:
            CorruptionError: It belongs to another log, or does not follow the one before it.
        """
        reason = None
        if (commit.log_id, commit.group) != self._owner:
            reason = f"it belongs to key group {commit.group} of changelog {commit.log_id}"
        elif self._last is not None or not self._after:
            reason = why_not_next(commit, self._last)
        elif not commit.snapshot and commit.sequence != self._after + 1:
            reason = f"commit {commit.sequence} does not follow commit {self._after}"
        if reason is not None:
            log_id, group = self._owner
            raise CorruptionError(reason, where=f"key group {group} of changelog {log_id}")
        self._last = commit
        return FoldedCommit(commit, blocks)


def fold_group(
    reader: ChangelogReader, log_id: str, group: int, after: int = 0, until: int | None = None
) -> Iterator[FoldedCommit]:
    """Yield the commits of a key group.

    Args:
        reader: Reads them.
        log_id: Identity of the changelog.
        group: Index of the key group.
        after: Begin after this sequence.
        until: End with this sequence.

    Raises:
        HistoryCompacted: See `ChangelogReader.commits`.
        CorruptionError: A commit is damaged, missing, or in a wrong place.
    """
    fold = GroupFold(log_id, group, after)
    for commit, blocks in reader.commits(after, until):
        yield fold.add(commit, blocks)


def fold_groups(
    readers: Mapping[int, ChangelogReader], log_id: str, after: int = 0, until: int | None = None
) -> Iterator[FoldedCommit]:
    """Yield the commits of key groups, batch by batch; that of the last group of a batch has the markers of all.

    The content of each is counted, because its readers do not compare the state with the hash of each commit.

    Args:
        readers: The reader of each key group, by its index, in order.
        log_id: Identity of the changelog.
        after: Begin after this sequence.
        until: End with this sequence.

    Raises:
        HistoryCompacted: See `ChangelogReader.commits`.
        CorruptionError: A commit is damaged, missing, or in a wrong place, or has another number of records.
    """
    commits = (fold_group(reader, log_id, group, after, until) for group, reader in readers.items())
    last: dict[int, Commit] = {}
    for each in merge(*commits, key=lambda stored: stored.commit.sequence):
        last[each.commit.group] = each.commit
        markers = [last[group] for group in readers if group in last and last[group].sequence == each.commit.sequence]
        complete = tuple(markers) if len(markers) == len(readers) else ()
        yield FoldedCommit(each.commit, _counted(each), complete)


def difference(live: LiveHash, entries: int, hash_: str) -> str:
    """Return the difference between a state and its marker; empty without one.

    Args:
        live: The number and hash of the state's entries.
        entries: The number in the marker.
        hash_: The hash in the marker.
    """
    if live.live != entries:
        return f"there are {live.live} live entries, its marker says {entries}"
    if hash_text(live.value) != hash_:
        return f"the hash of its {live.live} live entries is {hash_text(live.value)}, its marker says {hash_}"
    return ""


def _counted(folded: FoldedCommit) -> Iterator[Block]:
    """Yield the content of a commit, and compare the number of its records with the marker at the end."""
    records, commit = 0, folded.commit
    for block in folded.blocks:
        records += records_of(block)
        yield block
    if records != commit.records:
        where = f"{folded.place} of changelog {commit.log_id}"
        raise CorruptionError(f"it has {records} records, its marker says {commit.records}", where=where)
