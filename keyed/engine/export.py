"""The export of a key group's commits to its changelog.

A batch is exported when it can no longer be undone: at the start of the group's next batch, or by a flush. A changelog
that supports staging gets it at the end of the batch, hidden from readers; it is published once the job has committed
it. If that fails, it is exported as usual.

A changelog with an export interval gets the commits of several batches together, when the oldest one is as old. Until
then the group's log keeps their rows, and its meta record their markers (`GroupMeta.waiting`).

The meta record has the attempt of the last commit in the group's log (`GroupMeta.attempt`) and of the one before it
(`GroupMeta.previous`), and those of waiting commits, so a changelog of another branch can be refused:

- It ends with the attempt before one of these commits: this one and those after it are appended.
- It ends with the last attempt: there is nothing to do, as for a rerun of a batch.
- It is empty: it starts with a snapshot of the state, whether the job is new or got a changelog later.

Batches that reached no key group have a number too. They are exported as commits without changes, with the next commit.
If there are many of them, that commit is a snapshot, which may leave a gap.

Batches that were run without the changelog would be missing in it, so a changelog that ends earlier is refused too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs

from keyed.changelog.model import Blocks, ChangelogWriter, Commit, StagingWriter, append_all, batch_id
from keyed.content.blocks import Block, LogBlock
from keyed.content.contents import content_blocks
from keyed.content.delta import exported
from keyed.content.local_store import ReadStore
from keyed.engine.group_log import COUNTERS, MOST_COMMITS, GroupLog, GroupMeta, WaitingCommit, decode_row
from keyed.engine.replica import checked_hash
from keyed.errors import ChangelogDiverged, CorruptionError


def export(
    log: GroupLog,
    meta: GroupMeta,
    writer: ChangelogWriter,
    store: Callable[[], ReadStore],
    where: str,
    blocks: list[Block] | None = None,
) -> Commit | None:
    """Append the commits of a key group that its changelog lacks.

    Args:
        log: The group's log.
        meta: Its meta record. It gets the hash of the live entries if it has none.
        writer: The group's writer.
        store: Returns the group's entries, up to date with the log; called for a snapshot.
        where: For messages.
        blocks: The changes of the last commit, if they are in memory; otherwise they are read from the log.

    Returns:
        The newest appended commit, or ``None`` if the changelog had it.

    Raises:
        ChangelogDiverged: The changelog has another history.
        ChangelogError: It cannot be written.
        CorruptionError: The log is damaged.
        LocalStoreError: The entries are not those of the last commit.
    """
    last = writer.last()
    if last is not None and (last.sequence, last.attempt) == (meta.commit, meta.attempt):
        return None
    if last is not None:
        check_branch(last, meta, where)
    meta.hash = meta.hash or checked_hash(store(), meta)
    commits = [] if last is None else _lacking(log, meta, last, where, blocks)
    if not commits:
        checked_hash(store(), meta)
        return writer.append(_marker(meta, meta.last_commit(), snapshot=True), content_blocks(store(), meta.states))
    return append_all(writer, commits)


def _lacking(
    log: GroupLog, meta: GroupMeta, last: Commit, where: str, blocks: list[Block] | None
) -> list[tuple[Commit, Blocks]]:
    """Return the commits after the last one of the changelog; none if batches without key groups are too many."""
    commits: list[tuple[Commit, Blocks]] = []
    row = meta.last_row
    states: dict[str, Any] = meta.states
    for waiting in reversed(meta.unexported()):
        if waiting.sequence <= last.sequence:
            break
        states = states if waiting.states is None else waiting.states
        known = blocks if waiting.sequence == meta.commit else None
        content = _committed(log, waiting, row, where) if known is None else known
        commits.append((_marker(meta, attrs.evolve(waiting, states=states)), content))
        row -= waiting.rows
    lacking: list[tuple[Commit, Blocks]] = []
    for commit, changes in reversed(commits):
        if commit.sequence - last.sequence > MOST_COMMITS:
            return []
        for number in range(last.sequence + 1, commit.sequence):
            last = attrs.evolve(last, sequence=number, previous=last.attempt, snapshot=False, records=0)
            lacking.append((last, ()))
        lacking.append((commit, changes))
        last = commit
    return lacking


def stage(meta: GroupMeta, writer: ChangelogWriter | None, blocks: Iterable[LogBlock]) -> str:
    """Stage a key group's next commit in a changelog that supports it.

    Args:
        meta: The meta record of that commit.
        writer: The group's writer, at the previous commit.
        blocks: Its changes, in the form of the log.

    Returns:
        The attempt, to be published when the job has committed it; empty if the next batch has to export it.

    Raises:
        ChangelogError: It cannot be written.
    """
    changes = map(exported, blocks)
    if isinstance(writer, StagingWriter) and writer.stage(_marker(meta, meta.last_commit()), changes):
        return meta.attempt
    return ""


def _marker(meta: GroupMeta, commit: WaitingCommit, *, snapshot: bool = False) -> Commit:
    """Return the marker of the last commit, or of one that waits for its export."""
    return Commit(
        log_id="",
        group=meta.group,
        sequence=commit.sequence,
        attempt=commit.attempt,
        previous=commit.previous,
        source_log=meta.log_id,
        snapshot=snapshot,
        entries=commit.entries,
        hash=commit.hash,
        watermark=commit.watermark,
        processing_time=commit.processing_time,
        ended=meta.ended and commit.sequence == meta.commit,
        states=commit.states or {},
        counters=dict(zip(COUNTERS, commit.counters, strict=False)),
        key_columns=meta.key_columns,
        key_type=commit.key_type,
        channels=commit.channels,
    )


def check_new(writer: ChangelogWriter, where: str) -> None:
    """Check that the changelog of a key group that has no state yet is empty.

    Raises:
        ChangelogDiverged: It holds commits.
    """
    last = writer.last()
    if last is not None:
        raise ChangelogDiverged(
            f"{where}: its checkpoint is new, and its changelog {last.log_id} ends with batch {last.batch} of an "
            "earlier run; run from the checkpoint= that belongs to it, or give changelog= (or tables=, which holds "
            "it) a new folder, and restore_from= this one to take over its state"
        )


def check_branch(last: Commit, meta: GroupMeta, where: str) -> None:
    """Check that a changelog that ends with ``last`` lacks only the commits of the group's log that wait for it.

    Raises:
        ChangelogDiverged: It lacks more, or has another history.
    """
    newest, oldest = batch_id(meta.commit), meta.unexported()[0]
    if last.source_log != meta.log_id:
        why = "was written from another checkpoint"
    elif last.sequence >= meta.commit:
        why = f"continues to batch {last.batch}, the checkpoint ends with {newest}: it was set back, or copied"
    elif last.sequence < oldest.sequence - 1 - oldest.skipped:
        why = f"ends with batch {last.batch}, the checkpoint with {newest}: batches were run without it"
    elif not meta.follows(last.sequence, last.attempt):
        why = f"has another batch {last.batch} than the checkpoint, which was set back, or copied"
    else:
        return
    raise ChangelogDiverged(
        f"{where}: the changelog {last.log_id} {why}; give changelog= an empty one, which starts with a snapshot, or "
        "restore_from= this one with a new checkpoint"
    )


def _committed(log: GroupLog, commit: WaitingCommit, last_row: int, where: str) -> Iterator[Block]:
    """Yield the changes of a commit from the log."""
    count = 0
    for number, record in log.read(last_row - commit.rows + 1, last_row):
        place = f"{where}, log row {number}"
        row = decode_row(record, place)
        if row.attempt != commit.attempt:
            raise CorruptionError(f"the row does not belong to commit {commit.sequence}", where=place)
        count += 1
        yield from map(exported, row.changed)
    if count != commit.rows:
        raise CorruptionError(
            f"{commit.rows} rows of commit {commit.sequence} are expected, {count} found", where=where
        )
