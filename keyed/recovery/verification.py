"""Verification: the state is rebuilt from a changelog or a checkpoint and compared with the hash in its commits.

A changelog is checked commit by commit, as far back as it goes, and the first commit that does not match the hash in
its marker is named. A checkpoint is checked at its last commit; if a changelog has the same commit, the two are
compared entry by entry, and the first difference is named.
"""

from __future__ import annotations

from typing import Any

import attrs

from keyed.changelog.commit_fold import FoldedCommit, difference, fold_group
from keyed.changelog.model import Changelog, LogHeader, all_positions, batch_id
from keyed.content.addresses import describe_entry
from keyed.content.contents import LiveHash, contents_hash, hash_text
from keyed.content.local_store import ReadStore
from keyed.engine.group_log import GroupLog, GroupMeta
from keyed.errors import CorruptionError, HistoryCompacted
from keyed.recovery.cut import TRIES, header_of
from keyed.recovery.local_checkpoint import committed
from keyed.stores import MemoryStore


@attrs.frozen
class Verified:
    """Result of the check of one key group.

    Attributes:
        operator: Name of the operator.
        group: Index of the key group.
        first: Id of the first batch that was checked; −1 if there was none.
        last: Id of the last one.
        entries: Live entries after it.
        problem: The first problem; empty without one.
        note: Parts that could not be checked; empty if all were.
    """

    operator: str
    group: int
    first: int = -1
    last: int = -1
    entries: int = 0
    problem: str = ""
    note: str = ""


def verify_changelog(changelog: Changelog) -> list[Verified]:
    """Check every commit and the positions of a changelog, and name the first wrong one in each key group.

    Needs memory for the state of one key group.

    Raises:
        ChangelogError: It was never written, or cannot be read.
    """
    header = header_of(changelog)
    try:
        # Before the commits, because a running job continues to write.
        before = [batch_id(sequence) for sequence, _ in changelog.positions()]
        groups = range(header.parallelism)
        results = [_replayed(changelog, header, group)[0] for group in groups]
        return _with_positions(results, before, {batch_id(sequence) for sequence, _ in all_positions(changelog)})
    except CorruptionError as error:
        return [Verified(header.operator, 0, problem=str(error))]


def verify_group(meta: GroupMeta, log: GroupLog, changelog: Changelog | None = None) -> Verified:
    """Check one key group of a checkpoint.

    Args:
        meta: Its meta record.
        log: Its log.
        changelog: Its changelog, to compare with.
    """
    result = Verified(meta.operator, meta.group, batch_id(meta.commit), batch_id(meta.commit))
    where = f"checkpoint, operator {meta.operator!r}, key group {meta.group}"
    try:
        store = committed(log, meta, where)
        live = contents_hash(store, meta.states)
        result = attrs.evolve(result, entries=live.live)
        marker = None if changelog is None else changelog.reader(meta.group).last()
        same = marker is not None and (marker.sequence, marker.attempt) == (meta.commit, meta.attempt)
        problem = difference(live, meta.live, meta.hash or hash_text(live.value))
        if changelog is not None and same:
            replayed, replay = _replayed(changelog, header_of(changelog), meta.group)
            problem = replayed.problem or problem
            if replay.live.value != live.value:
                problem = f"batch {batch_id(meta.commit)}: {_first_difference(store, replay.store, meta.states)}"
    except CorruptionError as error:
        return attrs.evolve(result, problem=str(error))
    note = "" if meta.hash else "no hash is kept: the query had no changelog in its last batch"
    if changelog is not None and not same:
        at = "is empty"
        if marker is not None:
            at = f"ends with batch {marker.batch}, the checkpoint with {batch_id(meta.commit)}"
        note = f"not compared with the changelog, which {at}; flush first"
    return attrs.evolve(result, problem=problem, note=note)


def _with_positions(results: list[Verified], before: list[int], kept: set[int]) -> list[Verified]:
    """Add the check of the positions, read before the commits and after them.

    The position after a batch, or the bundle of several, is logged before the batches are exported, and the next one
    when all groups have them. So the last position alone may lack its commits, which is noted. A restored query also
    logs its start, and exports its first batch as a snapshot.
    """
    cut = min(group.last for group in results)
    result = []
    for group in results:
        problem, note = group.problem, group.note
        missing = [batch for batch in before if batch > group.last]
        if not problem and len(missing) > (2 if group.last < 0 else 1):
            batches = f"from batch {missing[0]} to {missing[-1]}"
            problem = f"its last batch is {group.last}, and there are positions of the sources {batches}"
        elif not problem and group.last == cut and cut not in kept and any(batch < cut for batch in kept):
            problem = f"there is no position of the sources after batch {cut}, and there are positions before it"
        elif not problem and missing:
            note = (
                f"there is a position of the sources after batch {missing[-1]}, and no commit of it; a running job "
                "writes it soon, otherwise flush the checkpoint"
            )
        result.append(attrs.evolve(group, problem=problem, note=note))
    return result


class Replay:
    """A key group's log replayed from its beginning in memory, with the hash of the live entries after each commit.

    Attributes:
        store: The entries and tables.
        live: Their number and hash.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.store = MemoryStore()
        self.live = LiveHash(self.store)

    def apply(self, folded: FoldedCommit) -> None:
        """Apply the next commit.

        Raises:
            CorruptionError: Rows of a table cannot be read.
        """
        if folded.commit.snapshot:
            self._clear()
        for delta in folded.deltas():
            self.live.add(delta)
            self.store.apply("replay", 1, delta.entries, delta.tables)


def _replayed(changelog: Changelog, header: LogHeader, group: int) -> tuple[Verified, Replay]:
    """Check the commits of a key group of a changelog."""
    for _ in range(TRIES):
        replay, result = Replay(), Verified(header.operator, group)
        try:
            for each in fold_group(changelog.reader(group), header.log_id, group):
                replay.apply(each)
                commit = each.commit
                first = commit.batch if result.first < 0 else result.first
                result = attrs.evolve(result, first=first, last=commit.batch, entries=replay.live.live)
                problem = difference(replay.live, commit.entries, commit.hash)
                if problem:
                    return attrs.evolve(result, problem=f"batch {commit.batch}: {problem}"), replay
        except HistoryCompacted as error:
            # Compaction by a running job removed commits that were not read yet; or they are lost.
            result = attrs.evolve(result, problem=str(error))
            continue
        except CorruptionError as error:
            return attrs.evolve(result, problem=str(error)), replay
        return result, replay
    return result, replay


def _first_difference(checkpoint: ReadStore, changelog: ReadStore, states: dict[str, Any]) -> str:
    """Return the first entry, in the order of addresses, or row of a table that is not the same in both."""
    one, other = ({(prefix, sub): value for prefix, sub, value in store.items()} for store in (checkpoint, changelog))
    for address in sorted(one.keys() | other.keys()):
        a, b = one.get(address), other.get(address)
        if a != b:
            words = describe_entry(*address, states)
            return f"{words} is {_shown(a)} in the checkpoint and {_shown(b)} in the changelog"
    for name, state in states.items():
        if state["schema"]["kind"] == "table":
            rows, others = (_rows(store, state) for store in (checkpoint, changelog))
            for key in sorted(rows.keys() | others.keys(), key=repr):
                row, other_row = rows.get(key, "absent"), others.get(key, "absent")
                if row != other_row:
                    return f"row {key!r} of table {name!r} is {row} in the checkpoint and {other_row} in the changelog"
    return "its entries differ in their hash alone"


def _rows(store: ReadStore, state: dict[str, Any]) -> dict[tuple[Any, ...], Any]:
    """Return the rows of a table, by their keys."""
    table, keys = store.table(int(state["id"])), state["schema"]["key"]
    parts = table.select(None) if table is not None else ()
    return {tuple(row[name] for name in keys): row for _, part in parts for row in part.to_pylist()}


def _shown(value: bytes | None) -> str:
    return "absent" if value is None else f"{value[:40]!r}{'...' if len(value) > 40 else ''}"
