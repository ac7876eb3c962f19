"""Operations on a checkpoint of the local runtime without a running query: flush, restore into a new one, inspect.

The folder is locked while it is open, so a running query is never disturbed. A copy of a checkpoint in use can be read.

The record ``outbox`` of the checkpoint has the rows of a batch that are committed with its state, and written to sinks
that cannot replace a batch (Kafka topics, Delta and Iceberg tables) afterwards. It has them until all sinks have the
batch, so the next run of the job writes them if this one ends before. It is a frame (`keyed.codec.frames`) of kind
``KOUT``, version 1.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import attrs

from keyed.base.scratch import ScratchFolder
from keyed.changelog.model import Changelog, ChangelogReader, ChangelogWriter, batch_id, decode_bundle, put_positions
from keyed.codec.frames import RecordFormat
from keyed.content.local_store import ReadStore
from keyed.engine.export import check_branch, export
from keyed.engine.group_log import GroupLog, GroupMeta
from keyed.engine.replica import Replica
from keyed.errors import CheckpointError, KeyedError, OperatorChanged
from keyed.stores import MemoryStore
from keyed.stores.commit_store import COMMITS_FOLDER, BufferedCommits, CommitStore, is_in_use

OUTBOX = "outbox"
"""The record."""


@attrs.frozen
class Outbox:
    """The rows of the last committed batch for sinks that get them after the commit.

    Attributes:
        batch: Its id.
        records: The rows by the id of their writer.
    """

    batch: int
    records: dict[str, list[tuple[bytes | None, bytes]]]


_OUTBOX: RecordFormat[Outbox] = RecordFormat(b"KOUT", 1, Outbox)
encode_outbox = _OUTBOX.encode


def waiting(commits: BufferedCommits, where: str) -> Outbox | None:
    """Return the rows that some sink may lack; ``None`` if all sinks have them.

    Args:
        commits: The committed state.
        where: The checkpoint, for a message.

    Raises:
        CorruptionError: The record is damaged.
    """
    record = commits.read(OUTBOX)
    return None if record is None else _OUTBOX.decode(record, f"{where}, record {OUTBOX!r}")


def without(outbox: Outbox, ids: Collection[str]) -> list[str]:
    """Return the ids of the sinks for which rows wait, and that are not among these."""
    return [name for name, records in outbox.records.items() if records and name not in ids]


_log = logging.getLogger(__name__)
#: Copies of a checkpoint in use that are tried.
_ATTEMPTS = 10
WAITING_POSITIONS = "positions"
"""The record of the positions that are exported with later ones, a bundle (`keyed.changelog.model`)."""


class Checkpoint:
    """The committed state of a local run.

    Attributes:
        commits: Its records.
    """

    def __init__(self, path: str, commits: CommitStore) -> None:
        self.path = path
        self.commits = commits

    @classmethod
    @contextmanager
    def open(cls, path: str | os.PathLike[str], *, copies: bool = False) -> Iterator[Checkpoint]:
        """Open an existing checkpoint.

        Args:
            path: Its folder.
            copies: Open a copy if a run is using it, with one of its last batches.

        Raises:
            CheckpointError: There is no checkpoint, or a run is using it.
        """
        folder = os.fspath(path)
        # `CommitStore` refuses a checkpoint of Spark.
        if not any(Path(folder, name).is_dir() for name in (COMMITS_FOLDER, "offsets")):
            raise CheckpointError(f"there is no checkpoint in {folder}")
        with ExitStack() as stack:
            if copies and is_in_use(folder):
                commits = _copied(folder, stack.enter_context(ScratchFolder("inspect")).path)
            else:
                commits = CommitStore(folder)
            stack.callback(commits.close)
            yield cls(folder, commits)

    def groups(self, operator: str) -> list[tuple[GroupMeta, GroupLog]]:
        """Return the meta record and the log of each key group of an operator.

        Raises:
            OperatorChanged: There is no such operator.
            CorruptionError: A meta record is damaged.
        """
        groups: list[tuple[GroupMeta, GroupLog]] = []
        parallelism = 1
        while len(groups) < parallelism:
            log = self.commits.group_log(operator, len(groups))
            meta = log.meta(f"checkpoint {self.path}, operator {operator!r}, key group {len(groups)}")
            if meta is None:
                raise OperatorChanged(f"the checkpoint {self.path} has no key group {len(groups)} of {operator!r}")
            parallelism = meta.parallelism
            groups.append((meta, log))
        return groups


def _copied(folder: str, scratch: Path) -> CommitStore:
    """Copy a checkpoint that a run is writing, and open the copy.

    A flush of the database writes a file, records it in the manifest and then removes the log. So the logs are copied
    first: the copy lacks at most the last batches, as after a crash. A compaction removes files; the copy is repeated.

    Raises:
        KeyedError: The copy cannot be opened.
    """
    source = Path(folder, COMMITS_FOLDER)
    for attempt in range(_ATTEMPTS):
        target = scratch / str(attempt) / COMMITS_FOLDER
        target.mkdir(parents=True)
        try:
            for log in source.glob("*.log"):
                shutil.copyfile(log, target / log.name)
            current = (source / "CURRENT").read_text()
            shutil.copyfile(source / current.strip(), target / current.strip())
            (target / "CURRENT").write_text(current)
            for pattern in ("*.sst", "*.blob", "OPTIONS-*", "IDENTITY"):
                for file in source.glob(pattern):
                    _link(file, target / file.name)
            return CommitStore(target.parent)
        except (FileNotFoundError, KeyedError):
            if attempt + 1 == _ATTEMPTS:
                raise
    raise AssertionError


def _link(file: Path, target: Path) -> None:
    """Link a file that never changes, or copy it to another file system."""
    try:
        os.link(file, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(file, target)


def committed(log: GroupLog, meta: GroupMeta, where: str) -> ReadStore:
    """Return the state of a key group from its log, in memory.

    Raises:
        CorruptionError: The log is damaged.
    """
    store = MemoryStore()
    Replica(store).catch_up(log, meta, where)
    return store


def check_changelog(group: ChangelogReader | ChangelogWriter, meta: GroupMeta, where: str) -> None:
    """Check that a key group's changelog belongs to its checkpoint, before anything is written to it.

    Raises:
        ChangelogDiverged: It belongs to another one.
    """
    last = group.last()
    # A changelog that has the last commit, or the next one of a running query, is checked when it is written.
    if last is not None and (last.source_log != meta.log_id or last.sequence < meta.commit):
        check_branch(last, meta, where)


def waiting_positions(commits: BufferedCommits) -> list[tuple[int, bytes]]:
    """Return the positions after batches before the last one that the changelogs may lack, with their sequences.

    Raises:
        CorruptionError: They are damaged.
    """
    record = commits.read(WAITING_POSITIONS)
    return [] if record is None else decode_bundle(record, f"checkpoint, record {WAITING_POSITIONS!r}")


def flush_checkpoint(checkpoint: str | os.PathLike[str], changelogs: Mapping[str, Changelog]) -> dict[str, int]:
    """Export the committed batches of a checkpoint of the local runtime that changelogs lack.

    Args:
        checkpoint: Folder of the checkpoint.
        changelogs: Changelogs by name of operator. An empty one starts with a snapshot.

    Returns:
        Id of the last batch by operator, which its changelog now has.

    Raises:
        CheckpointError: There is no checkpoint, or a run is using it.
        ChangelogDiverged: A changelog is not this checkpoint's.
        ChangelogError: It cannot be written.
    """
    done = {}
    with Checkpoint.open(checkpoint) as opened:
        record = opened.commits.read("run")
        outbox = waiting(opened.commits, f"checkpoint {opened.path}")
        for name in [] if outbox is None else without(outbox, []):
            _log.warning(
                "%s may lack rows of batch %d, and a query that is restored from the changelog begins after that "
                "batch; run the job once more on the checkpoint %s, which writes them, before you restore",
                name,
                outbox.batch if outbox else 0,
                opened.path,
            )
        for operator, changelog in changelogs.items():
            groups = opened.groups(operator)
            changelog.prepare(operator, len(groups))
            for meta, _ in groups:
                check_changelog(changelog.reader(meta.group), meta, f"checkpoint {opened.path}, operator {operator!r}")
            sequence = groups[0][0].commit
            done[operator] = batch_id(sequence)
            if record is not None:
                put_positions(changelog, [*waiting_positions(opened.commits), (sequence, record)])
            for meta, log in groups:
                where = f"checkpoint {opened.path}, operator {operator!r}, key group {meta.group}"
                with closing(changelog.writer(meta.group)) as writer:
                    export(log, meta, writer, partial(committed, log, meta, where), where)
    return done
