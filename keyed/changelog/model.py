"""The protocols of a changelog for writers and readers, independent of its storage, and the records that all share.

A changelog holds the entries of one operator (`keyed.content.addresses`), in one *log* per key group. A group's log is
a sequence of *commits*. Each is one committed batch of the group: blocks of changes, ended by a commit marker. Commits
are numbered from 1 without gaps, and because every group commits once in each batch, equal sequence numbers are one
batch in all groups. The newest sequence that all groups have is the newest state that can be restored.

Users count batches from 0, as Spark does: progress, sinks, tables, restore points and commands all name a batch by its
id, and the commit of batch ``id`` has sequence ``id + 1`` (`batch_id`, `sequence_of`). Sequences are internal.

Beside the groups' logs a changelog stores *positions*: the runner's positions in its sources after a batch, as bytes in
the runner's own format. Data that positions depend on, and that compaction must not remove, is stored under a name.

All times are milliseconds since the epoch.

Records are frames (`keyed.codec.frames`), version 1, whose payload is msgpack:

    kind   payload
    KCLH   the fields of `LogHeader` as a map
    KCLC   the fields of `Commit` as a map
    KCLP   [sequence: int, position: bytes]
    KCLK   [name: str, data: bytes]
    KCLQ   [[sequence: int, position: bytes], ...]

A bundle, ``KCLQ``, has the positions after several batches whose commits are exported together, in order. It is stored
as the position after the last of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import attrs

from keyed.codec.frames import RecordFormat
from keyed.content.blocks import Block
from keyed.errors import ChangelogDiverged, ChangelogError, CorruptionError

Blocks = Iterable[Block]
"""The content of a commit: lists of changes, and blocks of table rows. Later ones win. It can be iterated over once."""


def _check_name(_header: LogHeader, _attribute: attrs.Attribute[str], name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", name):
        raise ChangelogError(
            f"operator={name!r:.200} of a changelog is not 1 to 128 of the characters A-Z, a-z, 0-9, _ and -: names of "
            "operators become paths; the changelog is damaged, or another program wrote it"
        )


@attrs.frozen
class LogHeader:
    """The identity of a changelog, written once, when it is created.

    Attributes:
        log_id: Identity of the changelog.
        operator: Name of the operator, of which readers make paths.
        parallelism: Number of key groups.
        created_ms: Time of its creation.
    """

    log_id: str
    operator: str = attrs.field(validator=_check_name)
    parallelism: int
    created_ms: int


@attrs.frozen
class Channel:
    """Status of a source or partition of an operator that reads several.

    Attributes:
        input: Number of the input.
        partition: Name of the partition, empty for all of the input.
        watermark: Its watermark.
        silent_ms: Processing time since its last row while the query ran.
    """

    input: int
    partition: str
    watermark: int
    silent_ms: int = 0


@attrs.frozen(kw_only=True)
class Commit:
    """The marker that ends a commit.

    Attributes:
        log_id: Identity of the changelog. Writers fill it in.
        group: Index of the key group.
        sequence: Number of the commit, from 1.
        attempt: Identity of the committed attempt: the same sequence with another attempt is another history.
        previous: The attempt of the previous commit; empty if there was none.
        source_log: Identity of the group's own log.
        snapshot: The commit holds the whole state; earlier commits do not count.
        records: Number of changes and table rows in it, counted by the writer.
        entries: Number of live entries after it: of states, timers and tables.
        hash: Order-independent hash of the live entries after it, as text (`keyed.content.contents`).
        watermark: The group's watermark after it.
        processing_time: The group's processing time after it, for retention and for ``as_of=`` a time.
        ended: The input has ended (drain).
        states: Descriptions of the states with their ids, by name, needed to read the log.
        counters: Counters with which a restored job continues.
        key_columns: Columns of the key.
        key_type: Type of the keys.
        channels: The sources and partitions that the operator reads, if there are several.
    """

    log_id: str
    group: int
    sequence: int
    attempt: str
    previous: str = ""
    source_log: str
    snapshot: bool = False
    records: int = 0
    entries: int
    hash: str
    watermark: int
    processing_time: int
    ended: bool = False
    states: dict[str, Any] = attrs.field(factory=dict)
    counters: dict[str, int] = attrs.field(factory=dict)
    key_columns: list[str] = attrs.field(factory=list)
    key_type: str = ""
    channels: list[Channel] = attrs.field(factory=list)

    @property
    def batch(self) -> int:
        """Id of the batch, from 0, as progress and sinks have it."""
        return batch_id(self.sequence)


def batch_id(sequence: int) -> int:
    """Return the public id of a commit's batch; −1 for sequence 0, before the first one."""
    return sequence - 1


def sequence_of(batch: int) -> int:
    """Return the sequence of the commit of a batch."""
    return batch + 1


def export_interval(changelog: Changelog | None) -> int:
    """Return the export interval of a changelog in milliseconds; 0 if every batch is exported."""
    interval: int = getattr(changelog, "export_interval", 0)
    return interval


def close_positions(changelog: Changelog) -> None:
    """Close what a changelog keeps open in this process to store positions, at the end of a query."""
    close = getattr(changelog, "close_positions", None)
    if close is not None:
        close()


def why_not_next(commit: Commit, last: Commit | None) -> str | None:
    """Return the reason why a commit does not follow the newest one of its log; ``None`` if it does."""
    if commit.snapshot:
        return None if last is None or commit.sequence > last.sequence else f"commit {last.sequence} exists already"
    if last is None:
        return None if commit.sequence == 1 else f"commit {commit.sequence} does not begin a log"
    if commit.sequence != last.sequence + 1:
        return f"commit {commit.sequence} does not follow commit {last.sequence}"
    if (commit.previous, commit.source_log) != (last.attempt, last.source_log):
        return f"commit {commit.sequence} follows a commit {last.sequence} of another attempt"
    return None


def refusal_of(commits: Sequence[tuple[Commit, Blocks]], last: Commit | None) -> str | None:
    """Return the reason why commits do not follow the newest one of a log, and each other; ``None`` if they do."""
    for number, (commit, _) in enumerate(commits):
        if number and commit.snapshot:
            return f"commit {commit.sequence} is a snapshot, and follows another commit in one segment"
        if (reason := why_not_next(commit, last)) is not None:
            return reason
        last = commit
    return None


class ChangelogWriter(Protocol):
    """Writes one key group's log, where the group runs, from batch to batch."""

    def last(self) -> Commit | None:
        """Return the newest complete commit, or ``None`` if there is none. Torn ones do not count."""

    def append(self, commit: Commit, blocks: Blocks) -> Commit:
        """Append a commit atomically; it is durable when this returns.

        Appending an existing commit again, by sequence and attempt, has no effect.

        Args:
            commit: The marker, whose sequence follows that of `last`; that of a snapshot may leave a gap.
            blocks: The content.

        Returns:
            The marker in the log.

        Raises:
            ChangelogDiverged: Another commit of this sequence exists, or it does not follow `last`.
            ChangelogFenced: Another writer of the group is ahead. Open a new one, and continue from its `last`.
            ChangelogError: It cannot be written. The writer can be used again.
        """

    def close(self) -> None:
        """Release what the writer holds. Closing again does nothing."""


@runtime_checkable
class GroupingWriter(ChangelogWriter, Protocol):
    """A writer that appends several commits at once: as one file, object or transaction.

    Those of another writer are appended one after the other.
    """

    def append_all(self, commits: Sequence[tuple[Commit, Blocks]]) -> Commit:
        """Append commits atomically; they are durable when this returns.

        Existing ones, by sequence and attempt, are left out.

        Args:
            commits: At least one marker with its content, in order. Only the first one may be a snapshot.

        Returns:
            The last marker in the log.

        Raises:
            ChangelogDiverged: Another commit of a sequence exists, or one does not follow the one before it.
            ChangelogFenced: Another writer of the group is ahead. Open a new one, and continue from its `last`.
            ChangelogError: They cannot be written. The writer can be used again.
        """


def append_all(writer: ChangelogWriter, commits: Sequence[tuple[Commit, Blocks]]) -> Commit:
    """Append commits, at once if the writer supports it. See `GroupingWriter.append_all`."""
    if len(commits) > 1 and isinstance(writer, GroupingWriter):
        return writer.append_all(commits)
    return [writer.append(commit, blocks) for commit, blocks in commits][-1]


@runtime_checkable
class StagingWriter(ChangelogWriter, Protocol):
    """A writer that accepts a commit before the job has committed it."""

    def stage(self, commit: Commit, blocks: Blocks) -> bool:
        """Write a commit that readers do not see, for `StagingChangelog.publish`. An earlier staged one is dropped.

        Args:
            commit: The marker of the running attempt.
            blocks: The content.

        Returns:
            True if it was staged. It is not if it does not follow `last`; `append` raises the reason.

        Raises:
            ChangelogError: It cannot be written.
        """


class ChangelogReader(Protocol):
    """Reads one key group's log: whole commits, in order, each once."""

    def last(self) -> Commit | None:
        """Return the newest complete commit, or ``None``."""

    def commits(self, after: int = 0, until: int | None = None) -> Iterator[tuple[Commit, Blocks]]:
        """Yield the existing commits, each with its content.

        Content is read as it is iterated over, before the next commit.

        Args:
            after: Begin after this sequence. 0 begins with the snapshot of compaction, if there is one.
            until: End with this sequence; the newest if ``None``.

        Raises:
            HistoryCompacted: ``after`` or ``until`` was compacted away.
            CorruptionError: A record fails its checks, or a commit is missing between others.
        """


@runtime_checkable
class IdentifiedReader(ChangelogReader, Protocol):
    """A reader that checks at a lower cost than `Changelog.header` that its changelog still exists."""

    def header(self) -> LogHeader | None:
        """Return the current identity of the changelog, or ``None`` if another one took its place, or none exists.

        Raises:
            ChangelogError: It cannot be read.
        """


@runtime_checkable
class Changelog(Protocol):
    """A changelog of an operator. Data only: it is sent to the workers.

    An optional attribute ``export_interval``, milliseconds, exports commits together when the oldest is as old, in
    processing time. A query calls an optional method ``close_positions()`` when it ends.
    """

    def prepare(self, operator: str, parallelism: int) -> LogHeader:
        """Create the changelog before the first batch, or check that it belongs to this operator.

        Raises:
            ChangelogError: It belongs to another operator or number of key groups, or cannot be created.
        """

    def header(self) -> LogHeader | None:
        """Return the identity of the changelog, or ``None`` if it was not created yet."""

    def writer(self, group: int) -> ChangelogWriter:
        """Open the writer of a key group. It fences earlier ones, if the storage supports it."""

    def reader(self, group: int) -> ChangelogReader:
        """Open a reader of a key group. Any number may be open."""

    def put_position(self, sequence: int, data: bytes) -> None:
        """Store the runner's position after a batch.

        Raises:
            ChangelogDiverged: Another position is stored for this sequence.
        """

    def positions(self, after: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield the stored positions after a sequence, in order."""

    def keep(self, name: str, data: bytes) -> None:
        """Store data of the runner under a name until `forget`. Storing it again has no effect.

        Args:
            name: 1 to 128 of the characters A-Z, a-z, 0-9, _, . and -.
            data: At most half a megabyte.

        Raises:
            ChangelogDiverged: Other data is stored under the name.
        """

    def forget(self, names: Iterable[str]) -> None:
        """Remove data that `keep` stored under names."""

    def kept(self) -> Iterator[tuple[str, bytes]]:
        """Yield the data of `keep`, in order of names."""


@runtime_checkable
class StagingChangelog(Changelog, Protocol):
    """A changelog that has a batch as soon as the job has committed it. Its writers are `StagingWriter`.

    Staged commits are invisible to readers, even when the job dies. The job commits one attempt of a batch, and only
    this one is published; the next batch appends it if it was not.
    """

    def publish(self, group: int, sequence: int, attempt: str) -> bool:
        """Make a staged commit the newest one of its key group.

        Args:
            group: Index of the key group.
            sequence: Number of the commit.
            attempt: The attempt that the job has committed.

        Returns:
            True if it was published. It is not if it is no longer staged, or the sequence exists.

        Raises:
            ChangelogError: It cannot be written.
        """


COMMIT = b"KCLC"
"""The kind of the frame of a commit marker."""

_HEADER: RecordFormat[LogHeader] = RecordFormat(b"KCLH", 1, LogHeader)
_COMMIT: RecordFormat[Commit] = RecordFormat(COMMIT, 1, Commit)
_POSITION: RecordFormat[tuple[int, bytes]] = RecordFormat(b"KCLP", 1, tuple[int, bytes])
_KEPT: RecordFormat[tuple[str, bytes]] = RecordFormat(b"KCLK", 1, tuple[str, bytes])
encode_header = _HEADER.encode
encode_commit = _COMMIT.encode
decode_position = _POSITION.decode
decode_kept = _KEPT.decode


def decode_header(record: bytes, where: str) -> LogHeader:
    """Decode a header.

    Raises:
        CorruptionError: Bad checksum, another version, or malformed fields.
    """
    try:
        header = _HEADER.decode(record, where)
    except ChangelogError as error:
        raise CorruptionError(str(error), where=where) from error
    if header.parallelism < 1:
        raise CorruptionError(f"malformed header: {header.parallelism} key groups", where=where)
    return header


def decode_commit(record: bytes, where: str) -> Commit:
    """Decode a commit marker.

    Raises:
        CorruptionError: Bad checksum, another version, or malformed fields.
    """
    commit = _COMMIT.decode(record, where)
    if commit.sequence < 1 or commit.group < 0 or commit.records < 0 or commit.entries < 0:
        raise CorruptionError("malformed commit marker: a number is out of range", where=where)
    return commit


def encode_position(sequence: int, position: bytes) -> bytes:
    """Return the record of a position."""
    return _POSITION.encode((sequence, position))


def encode_kept(name: str, data: bytes) -> bytes:
    """Return the record of named data."""
    return _KEPT.encode((name, data))


_KIND = b"KCLQ"
_BUNDLE: RecordFormat[list[tuple[int, bytes]]] = RecordFormat(_KIND, 1, list[tuple[int, bytes]])
encode_bundle = _BUNDLE.encode
decode_bundle = _BUNDLE.decode


def put_positions(changelog: Changelog, positions: Sequence[tuple[int, bytes]]) -> None:
    """Store positions after batches in one record. Storing the same ones again has no effect.

    Args:
        changelog: The changelog.
        positions: Sequences and positions, in order.

    Raises:
        ChangelogDiverged: Another position is stored for the last sequence.
        ChangelogError: They cannot be written.
    """
    sequence, last = positions[-1]
    try:
        changelog.put_position(sequence, last if len(positions) == 1 else encode_bundle(list(positions)))
    except ChangelogDiverged:
        # An earlier run with another export interval may have stored it with others.
        if next(all_positions(changelog, sequence - 1), None) != (sequence, last):
            raise


def all_positions(changelog: Changelog, after: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the positions after a sequence, in order, also those stored together with a later one.

    Raises:
        CorruptionError: One is damaged.
    """
    for sequence, data in changelog.positions(after):
        bundle = [(sequence, data)]
        if data[: len(_KIND)] == _KIND:
            bundle = decode_bundle(data, f"positions up to commit {sequence} in {changelog}")
        for number, position in bundle:
            if number > after:
                yield number, position
                after = number
