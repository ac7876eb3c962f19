"""The export of a key group's commits to its changelog.

A batch is exported when it can no longer be undone: at the start of the group's next batch, or by a flush. A changelog
that supports staging gets it at the end of the batch, hidden from readers; it is published once the job has committed
it. If that fails, it is exported as usual.

The meta record has the attempt of the last commit in the group's log (`GroupMeta.attempt`) and of the one before it
(`GroupMeta.previous`), so a changelog of another branch can be refused:

- It ends with the previous attempt: the changes of the last commit are appended.
- It ends with the last attempt: there is nothing to do, as for a rerun of a batch.
- It is empty: it starts with a snapshot of the state, whether the job is new or got a changelog later.

Batches that reached no key group have a number too. They are exported as commits without changes, with the next commit.
If there are many of them, that commit is a snapshot, which may leave a gap.

Batches that were run without the changelog would be missing in it, so a changelog that ends earlier is refused too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import attrs

from keyed.changelog.model import ChangelogWriter, Commit, StagingWriter, batch_id
from keyed.content.blocks import Block, LogBlock
from keyed.content.contents import content_blocks, contents_hash
from keyed.content.delta import exported
from keyed.content.entry_hash import hash_text
from keyed.content.local_store import ReadStore
from keyed.engine.counters import COUNTERS
from keyed.engine.group_log import GroupLog
from keyed.engine.meta import GroupMeta
from keyed.engine.segment import decode_row
from keyed.errors import ChangelogDiverged, CorruptionError

#: Maximal number of consecutive batches without key groups that are exported as separate commits.
MOST_EMPTY = 64


def export(
    log: GroupLog,
    meta: GroupMeta,
    writer: ChangelogWriter,
    store: Callable[[], ReadStore],
    where: str,
    blocks: list[Block] | None = None,
) -> Commit | None:
    """Append the last commit of a key group to its changelog, if the changelog lacks it.

    Args:
        log: The group's log.
        meta: Its meta record. It gets the hash of the live entries if it has none.
        writer: The group's writer.
        store: Returns the group's entries, up to date with the log; called for a snapshot.
        where: For messages.
        blocks: The changes of the last commit, if they are in memory; otherwise they are read from the log.

    Returns:
        The appended commit, or ``None`` if the changelog had it.

    Raises:
        ChangelogDiverged: The changelog has another history.
        ChangelogError: It cannot be written.
        CorruptionError: The log is damaged.
    """
    last = writer.last()
    if last is not None and (last.sequence, last.attempt) == (meta.commit, meta.attempt):
        return None
    if last is not None:
        check_branch(last, meta, where)
    if not meta.hash:
        meta.hash = hash_text(contents_hash(store(), meta.states).value)
    if last is not None and meta.commit - last.sequence <= MOST_EMPTY:
        for number in range(last.sequence + 1, meta.commit):
            empty = attrs.evolve(last, sequence=number, previous=last.attempt, snapshot=False, records=0)
            last = writer.append(empty, ())
    elif last is not None:
        last = None
    if last is None:
        return writer.append(_marker(meta, snapshot=True), content_blocks(store(), meta.states))
    return writer.append(_marker(meta, snapshot=False), _committed(log, meta, where) if blocks is None else blocks)


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
    if isinstance(writer, StagingWriter) and writer.stage(_marker(meta, snapshot=False), map(exported, blocks)):
        return meta.attempt
    return ""


def _marker(meta: GroupMeta, *, snapshot: bool) -> Commit:
    return Commit(
        log_id="",
        group=meta.group,
        sequence=meta.commit,
        attempt=meta.attempt,
        previous=meta.previous,
        source_log=meta.log_id,
        snapshot=snapshot,
        entries=meta.live,
        hash=meta.hash,
        watermark=meta.watermark,
        processing_time=meta.processing_time,
        ended=meta.ended,
        states=meta.states,
        counters={name: meta.counters.get(name, 0) for name in COUNTERS},
        key_columns=meta.key_columns,
        key_type=meta.key_type,
        channels=meta.channels,
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
    """Check that a changelog that ends with ``last`` lacks only the last commit of the group's log.

    Raises:
        ChangelogDiverged: It lacks more, or has another history.
    """
    newest = batch_id(meta.commit)
    if last.source_log != meta.log_id:
        why = "was written from another checkpoint"
    elif last.sequence >= meta.commit:
        why = f"continues to batch {last.batch}, the checkpoint ends with {newest}: it was set back, or copied"
    elif last.sequence < meta.commit - 1 - meta.skipped:
        why = f"ends with batch {last.batch}, the checkpoint with {newest}: batches were run without it"
    elif last.attempt != meta.previous:
        why = f"has another batch {last.batch} than the checkpoint, which was set back, or copied"
    else:
        return
    raise ChangelogDiverged(
        f"{where}: the changelog {last.log_id} {why}; give changelog= an empty one, which starts with a snapshot, or "
        "restore_from= this one with a new checkpoint"
    )


def _committed(log: GroupLog, meta: GroupMeta, where: str) -> Iterator[Block]:
    """Yield the changes of the last commit from the log."""
    first, count = meta.last_row - meta.commit_rows + 1, 0
    for number, record in log.read(first, meta.last_row):
        place = f"{where}, log row {number}"
        row = decode_row(record, place)
        if row.attempt != meta.attempt:
            raise CorruptionError("the row does not belong to the last commit", where=place)
        count += 1
        yield from map(exported, row.changed)
    if count != meta.commit_rows:
        raise CorruptionError(f"{meta.commit_rows} rows of the last commit are expected, {count} found", where=where)
