"""Compaction: the oldest segments of a key group folded into a base, which holds the state after them.

A base is written beside the files that it replaces, and read back; only then are the old base and the segments removed.
A crash at any moment therefore leaves a log with the same content. Readers of removed files get an error. One process
at a time compacts a log: it holds the lock in the group's folder.

Memory is needed for the changes that are folded at a time, not for the state: the old base is in the order of addresses
and is merged as it is read. Table rows are the exception: they are folded in memory.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import PurePath
from typing import TypeVar

import attrs

from keyed.base.background import Background, Status, WorkEnded
from keyed.changelog.commit_fold import GroupFold, difference
from keyed.changelog.directory.group_folder import AnyGroupFiles, Listing
from keyed.changelog.directory.segment_file import Segment
from keyed.changelog.model import Commit
from keyed.content.blocks import Block
from keyed.content.contents import LiveHash, hash_text
from keyed.content.delta import Delta, DeltaFold, apply_blocks, deltas
from keyed.errors import ChangelogError, CorruptionError

#: Approximate bytes of segments that are folded at a time.
_STEP_BYTES = 256 << 20
#: Least bytes for which a log is folded, except by command.
_LEAST_BYTES = 4 << 20
#: Key groups grow alike and are due together, so only one fold runs at a time, which bounds the memory.
_turn = threading.Lock()
_Snapshot = tuple[PurePath, int]
_Part = TypeVar("_Part")


@attrs.frozen
class CompactionLimits:
    """Limits of the history that compaction keeps.

    Attributes:
        lag_ms: Commits younger than this are kept, measured in processing time from the newest.
        history_bytes: If they have more bytes than this, only the younger half is kept. ``None`` for no limit.
    """

    lag_ms: int
    history_bytes: int | None = None


@attrs.frozen
class Compacted:
    """Result of the compaction of a key group.

    Attributes:
        group: Index of the key group.
        base: Sequence of its base; 0 if there is none.
        newest: Sequence of its newest commit; 0 if there is none.
        base_bytes: Bytes of its base.
        history_bytes: Bytes of its segments.
        removed_bytes: Bytes that were removed.
    """

    group: int
    base: int
    newest: int
    base_bytes: int
    history_bytes: int
    removed_bytes: int


class _Stopped(Exception):
    """The process is about to close the log."""


def compact_group(
    folder: AnyGroupFiles, limits: CompactionLimits, stopped: Callable[[], bool] = lambda: False, *, wait: bool = True
) -> Compacted:
    """Fold the commits that the limits allow.

    Args:
        folder: The folder of the key group.
        limits: The history to keep.
        stopped: Polled repeatedly; if it returns true, compaction ends.
        wait: Wait for another process that compacts the log; otherwise nothing is done in that case.

    Raises:
        CorruptionError: The log is damaged, or its state does not match its commits. Nothing was removed then.
        ChangelogError: The disk fails. The log is unchanged, or compacted.
    """
    with folder.compacting(wait=wait) as held:
        listing, newest = folder.look()
        if held:
            # An earlier compaction may have written a base that is not durable, and the segments in it are about to be
            # removed.
            folder.sync()
            try:
                with suppress(_Stopped):
                    for target in _targets(folder, listing, newest, limits):
                        _fold(folder, folder.listing(), target, stopped)
            except FileNotFoundError as error:
                raise ChangelogError(f"{error.filename} was removed while it was compacted; compact again") from error
            folder.remove(folder.listing().leftovers)
        after = folder.listing()
    return Compacted(
        folder.group,
        after.base,
        0 if newest is None else newest.sequence,
        after.base_bytes,
        after.history_bytes,
        listing.base_bytes + listing.history_bytes - after.base_bytes - after.history_bytes,
    )


def _targets(folder: AnyGroupFiles, listing: Listing, newest: Commit | None, limits: CompactionLimits) -> Iterator[int]:
    """Yield the sequences to fold up to, in steps of `_STEP_BYTES`."""
    if newest is None:
        return
    left = listing.history_bytes
    spared = left if limits.history_bytes is None or left <= limits.history_bytes else limits.history_bytes // 2
    target = step = 0
    for first, (again, size) in listing.segments.items():
        with folder.opened(folder.segment(first, again), first) as (commit, _):
            pass
        if commit is None:
            continue
        # Other groups of the job may still lack the newest segment, and only a state that all groups have can be
        # restored.
        if commit.sequence == newest.sequence:
            break
        if left <= spared and commit.processing_time > newest.processing_time - limits.lag_ms:
            break
        left -= size
        step += size
        target = commit.sequence
        if step >= _STEP_BYTES:
            yield target
            target = step = 0
    if target:
        yield target


def _fold(folder: AnyGroupFiles, listing: Listing, target: int, stopped: Callable[[], bool]) -> None:
    """Write the base of one sequence."""
    fold, group = DeltaFold(), GroupFold(folder.log_id, folder.group)
    snapshot: _Snapshot | None = None
    marker: Commit | None = None
    for stored, segment, path in folder.commits(listing, 0, target):
        each = group.add(stored.commit, stored.blocks())
        marker = commit = each.commit
        if commit.snapshot:
            fold, snapshot = DeltaFold(), None
            if segment.is_sorted():
                snapshot = path, commit.sequence
                continue
        apply_blocks(fold, commit.log_id, commit.sequence, _going_on(each.blocks, stopped), commit.states, str(path))
    assert marker is not None, "the target is one of the segments"
    marker = attrs.evolve(marker, snapshot=True)
    path = folder.base(target)
    state = _going_on(fold.onto(_base(folder, snapshot), str(folder.path)), stopped)
    folder.publish(path, Segment(marker, _checked(state, marker, path)))
    with folder.opened(path, target) as (written, segment):
        if written is None:
            raise CorruptionError("the base is torn, right after it was written", where=str(path))
        for _ in segment.blocks():
            pass
    folder.remove(folder.listing().leftovers)


def _base(folder: AnyGroupFiles, snapshot: _Snapshot | None) -> Iterator[Delta]:
    """Yield the state that is complete already, if there is one."""
    if snapshot is not None:
        with folder.opened(*snapshot) as (commit, segment):
            if commit is not None:
                yield from deltas(segment.blocks(), commit.states, str(snapshot[0]))


def _going_on(parts: Iterable[_Part], stopped: Callable[[], bool]) -> Iterator[_Part]:
    for part in parts:
        if stopped():
            raise _Stopped
        yield part


def _checked(state: Iterable[Delta], marker: Commit, path: PurePath) -> Iterator[Block]:
    """Yield the blocks of a state; raise at the end if it does not match the commit."""
    live = LiveHash()
    for delta in state:
        live.add(delta)
        yield from delta.blocks()
    if difference(live, marker.entries, marker.hash):
        raise CorruptionError(
            f"compaction was abandoned: the marker of commit {marker.sequence} has {marker.entries} entries with hash "
            f"{marker.hash}, and the log has {live.live} with {hash_text(live.value)}; nothing was removed",
            where=str(path.parent),
        )


class BackgroundCompaction:
    """Compacts a key group as its log grows, in a thread beside its writer.

    It is due when the segments have as many bytes as would be rewritten, so the bytes written are at most twice those
    appended (more if the segments are too large for one fold). A failure does not disturb the job: its log is longer
    than necessary, and compaction is retried when the log has grown.

    Args:
        folder: The folder of the key group.
        limits: The history to keep.

    Attributes:
        work: The work of the thread, which runs only during compaction.
    """

    def __init__(self, folder: AnyGroupFiles, limits: CompactionLimits) -> None:
        self.work = Background(f"compaction of {folder.path}", self._step, patience=math.inf)
        self._folder = folder
        self._limits = limits
        self._bytes = 0
        self._due = 0

    def begin(self, listing: Listing) -> None:
        """Initialize with the folder's content when the writer opens."""
        self._bytes = listing.history_bytes
        self._set_due(listing.base_bytes, 0)

    def grown(self, size: int) -> None:
        """Record that a segment was appended."""
        self._bytes += size
        is_over = self.work.status in (Status.FAILED, Status.CLOSED)
        if self._bytes >= self._due and not is_over and not self.work.is_running:
            self.work.start()

    def close(self) -> None:
        """Stop a running compaction."""
        self.work.close()

    def _step(self) -> None:
        """Compact once.

        Raises:
            WorkEnded: Always: the thread ends until the log has grown.
        """
        began = time.monotonic()
        while not _turn.acquire(timeout=0.1):
            if self.work.is_stopping:
                raise WorkEnded
        try:
            done = compact_group(self._folder, self._limits, lambda: self.work.is_stopping, wait=False)
        except Exception as error:  # noqa: BLE001 - counted; those who read the log meet the same error
            self._set_due(0, self._bytes)
            self.work.failed(error, began)
        else:
            self._bytes = done.history_bytes
            self._set_due(done.base_bytes, done.history_bytes)
            self.work.succeeded(began)
        finally:
            _turn.release()
        raise WorkEnded

    def _set_due(self, base_bytes: int, history_bytes: int) -> None:
        """Set the bytes of segments at which compaction is due again."""
        self._due = history_bytes + max(base_bytes, _LEAST_BYTES)
        if self._limits.history_bytes is not None:
            self._due = min(self._due, max(self._limits.history_bytes, history_bytes) + 1)


def _reset_turn() -> None:
    """Replace the lock in a forked process: a thread of the parent may hold it."""
    global _turn  # noqa: PLW0603 - there is one
    _turn = threading.Lock()


os.register_at_fork(after_in_child=_reset_turn)
